"""What an analysis has written, as a part of reports."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from rankwise.reports.analysis import Picture, markdown_blocks
from rankwise.reports.data_formats import json_report
from rankwise.reports.html import html_report
from rankwise.reports.model import ReportData
from rankwise.reports.pdf import pdf_report
from rankwise.store import State, Store
from tests.reports.measured_runs import analysed_run

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="9"/>'


def png() -> bytes:
    """Return a picture of two points."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", 2, 1, 8, 2, 0, 0, 0)
    points = zlib.compress(b"\0\xff\0\0\0\0\xff")
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", points), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def analysed(store: Store, files: Mapping[str, bytes], state: State = State.PASSED) -> ReportData:
    return ReportData(store=store, run=store.run(analysed_run(store, files, state)), now=4.0)


def kinds(data: ReportData) -> list[str]:
    return [block["kind"] for _, blocks in data.analyses for block in blocks]


def test_markdown_is_parted_into_blocks() -> None:
    text = (
        "# A *b*\n\nOne\ntwo `c`, [site](https://x.org).\n\n3. three\n4. four\n   - deep\n\n"
        "| h |\n| --- |\n| **v** |\n\n```\ncode\n```\n\n![p](plot.svg) ![q](other.svg)\n"
    )
    picture = Picture(name="plot.svg", data=SVG.encode())
    blocks = list(markdown_blocks(text, {"plot.svg": picture}))
    assert [block["kind"] for block in blocks] == [
        *("heading", "text", "item", "item", "item", "table", "code", "text", "picture")
    ]
    assert blocks[0]["spans"] == [("", "A "), ("em", "b")]
    assert "".join(words for _, words in blocks[1]["spans"]) == "One two c, site."
    found = [(block["depth"], block["mark"]) for block in blocks[2:5]]
    assert found == [(1, "3."), (1, "4."), (2, "•")]
    assert blocks[5]["rows"] == [[[("", "h")]], [[("strong", "v")]]]
    assert blocks[-1]["picture"] is picture


def test_nothing_in_a_text_is_markup_of_a_page(store: Store) -> None:
    page = b"<script>alert(1)</script>\n\n[x](javascript:alert(1)) <b onclick=x>y</b>\n\x1b[31m\x00"
    data = analysed(store, {"a.md": page, "p.svg": b"<svg><script>alert(2)</script></svg>"})
    part = html_report(data)
    part = part[part.index('id="analysis"') : part.index("</section>")]
    for bad in ("<script", "<b ", 'javascript:alert(1)"', "alert(2)", "\x1b", "\x00"):
        assert bad not in part, bad
    assert "&lt;script&gt;" in part


def test_pictures_of_both_kinds_are_on_the_page_and_on_paper(store: Store) -> None:
    files = {"a.svg": SVG.encode(), "b.PNG": png(), "note.txt": b"no part of it"}
    data = analysed(store, files)
    assert kinds(data) == ["picture", "picture"]
    part = html_report(data)
    assert 'src="data:image/svg+xml;base64,' in part
    assert 'src="data:image/png;base64,' in part
    # A picture of points takes room in the file; the frame of a drawing alone does not.
    assert b"/Image" in pdf_report(data)


def test_a_picture_that_is_none_is_named_and_the_rest_is_there(store: Store) -> None:
    cut = png()[:30]
    data = analysed(store, {"a.svg": b"<svg garbage", "b.png": cut, "c.png": b"", "d.md": b"# d"})
    assert kinds(data) == ["heading", "picture", "picture", "picture"]
    assert pdf_report(data).startswith(b"%PDF-")
    assert "<h3>d</h3>" in html_report(data)


def test_what_is_too_large_is_left_out_and_named(store: Store) -> None:
    files = {f"{number:02}.svg": SVG.encode() for number in range(21)}
    data = analysed(store, {**files, "x.png": png() + bytes(2_000_000)})
    [*pictures, last] = [block for _, blocks in data.analyses for block in blocks]
    assert len(pictures) == 20
    assert last["spans"] == [("", "Too large or too many: 20.svg, x.png")]


def test_without_a_page_what_was_printed_is_the_text(store: Store) -> None:
    data = analysed(store, {"stdout": b"# no heading\n  indented | a\n"})
    [block] = data.analyses[0][1]
    assert block == {"kind": "code", "text": "# no heading\n  indented | a"}


def test_programs_get_the_text(store: Store) -> None:
    data = analysed(store, {"a.md": b"# In *short*", "b.svg": SVG.encode()})
    heading = {"kind": "heading", "level": 1, "depth": 0, "mark": ""}
    texts = {"analysis": [{**heading, "spans": [["", "In "], ["em", "short"]]}]}
    assert json.loads(json_report(data))["analyses"] == texts


def test_a_failed_analysis_is_said_above_what_it_has_written(store: Store) -> None:
    data = analysed(store, {"a.md": b"half of it"}, State.FAILED)
    assert "analysis failed</strong> it &lt;failed&gt;</p><p>half of it</p>" in html_report(data)
    assert pdf_report(data).startswith(b"%PDF-")


def test_a_notebook_that_is_none_and_an_empty_analysis_say_nothing(
    store: Store, tmp_path: Path
) -> None:
    bad = (b"", b"[]", b'{"cells": 3}', b'{"cells": [{"outputs": 7}]}', b"\xff")
    for number, content in enumerate(bad):
        with Store.open(tmp_path / str(number)) as other:
            data = analysed(other, {"n.ipynb": content})
            assert kinds(data) == []
            assert pdf_report(data).startswith(b"%PDF-")
    assert kinds(analysed(store, {})) == []
