"""What the analysis of a sweep has made of the samples: text and pictures for reports."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.files import read_left
from rankwise.plan import ANALYSIS, is_analysis
from rankwise.records import PROCESSES
from rankwise.safe_text import clean, fit
from rankwise.store import Store, TaskRow

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode

_MOST_PICTURES = 20
_LARGEST_PICTURE = 2_000_000
_LONGEST_TEXT = 50_000
_PNG = b"\x89PNG\r\n\x1a\n"

# Where there is no such picture, its name is in italics.
_PICTURE = "i"
Span = tuple[str, str]
"""Words, after how they stand out: `strong`, `em`, `i`, `code` or not at all."""
Block = Mapping[str, Any]
"""A part of a text by its `kind`: `heading` (level, spans), `text` (spans), `item` (depth, mark,
spans), `table` (rows of cells of spans), `code` (text), `picture` (picture)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture that a program has written."""

    name: str
    data: bytes

    @property
    def url(self) -> str:
        """The picture as an address: what is in it can do nothing on a page."""
        kind = "png" if self.data.startswith(_PNG) else "svg+xml"
        return f"data:image/{kind};base64,{base64.b64encode(self.data).decode()}"

    @property
    def svg(self) -> str:
        """The picture as SVG, which may be a frame around points."""
        if not self.data.startswith(_PNG):
            return self.data.decode(errors="replace")
        width, height = (int.from_bytes(self.data[at : at + 4]) for at in (16, 20))
        size = f'width="{width}" height="{height}"'
        image = f'<image {size} href="{self.url}"/>'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{image}</svg>'


AnalysisResult = tuple[TaskRow, Sequence[Block]]
"""What became of one analysis, and what it has left."""


def analyses_of(store: Store, run: str, rows: Iterable[TaskRow]) -> list[AnalysisResult]:
    """Read what the analyses of a run have left, also those that failed after a part of it."""
    return [
        (row, list(_blocks_in(store.attempts(run, row.key)[-1].folder)))
        for row in rows
        if row.body is not None and is_analysis(row.body) and row.state.is_over and row.attempts
    ]


def _blocks_in(attempt: Path) -> Iterator[Block]:
    """Return the Markdown of an analysis, or else what it has printed, and all its pictures."""
    files = sorted(path for path in (attempt / ANALYSIS).glob("*") if path.is_file())
    found = [path for path in files if path.suffix.lower() in (".png", ".svg")]
    shown = [path for path in found if path.stat().st_size <= _LARGEST_PICTURE][:_MOST_PICTURES]
    pictures = {path.name: Picture(name=path.name, data=_read(path)) for path in shown}
    texts = [_read(path).decode(errors="replace") for path in files if path.suffix == ".md"]
    texts += [_of_notebook(_read(path)) for path in files if path.suffix == ".ipynb"]
    if not texts:
        printed = _read(attempt / PROCESSES / ANALYSIS / "stdout.log")
        texts = [_quoted(printed.decode(errors="replace"))]
    blocks = [part for text in texts for part in markdown_blocks(text[:_LONGEST_TEXT], pictures)]
    yield from blocks
    # A picture stands where the text has it; the others follow.
    placed = [block.get("picture") for block in blocks]
    yield from (
        {"kind": "picture", "picture": one} for one in pictures.values() if one not in placed
    )
    if left_out := [path.name for path in found if path not in shown]:
        yield {"kind": "text", "spans": [("", f"Too large or too many: {', '.join(left_out)}")]}


def _read(path: Path) -> bytes:
    # What cannot be read is no part of the report; the outcome is there all the same.
    with suppress(OSError):
        return read_left(path)
    return b""


def _quoted(text: str) -> str:
    """Return Markdown that shows a text as it is."""
    return "\n\n" + "".join(f"    {clean(line)}\n" for line in text.splitlines()) + "\n"


def _of_notebook(content: bytes) -> str:
    """Return the texts and the printed lines of a notebook as Markdown; its code is left out."""
    parts: list[str] = []
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        for cell in json.loads(content)["cells"]:
            if cell["cell_type"] == "markdown":
                parts.append("".join(cell["source"]))
            for output in cell.get("outputs") or ():
                shown = output.get("data", {})
                if "text/markdown" in shown:
                    parts.append("".join(shown["text/markdown"]))
                elif output.get("name") == "stdout":
                    parts.append(_quoted("".join(output["text"])))
                elif not any(kind.startswith("image/") for kind in shown):
                    parts.append(_quoted("".join(shown.get("text/plain", ""))))
    return "\n\n".join(parts)


def markdown_blocks(text: str, pictures: Mapping[str, Picture]) -> Iterator[Block]:
    """Part Markdown into blocks; HTML in it is text, as it is in `Span`."""
    # Late; rich needs it too, and so it is there.
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    return _blocks(SyntaxTreeNode(reader.parse(text)), pictures)


def _blocks(
    node: SyntaxTreeNode, pictures: Mapping[str, Picture], depth: int = 0, mark: str = ""
) -> Iterator[Block]:
    match node.type:
        case "heading" | "paragraph":
            spans = list(_spans(node.children[0]))
            level = int(node.tag[1]) if node.type == "heading" else 0
            kind = "heading" if level else "item" if depth else "text"
            shown = [name for style, name in spans if style == _PICTURE and name in pictures]
            if words := [one for one in spans if one[0] != _PICTURE or one[1] not in shown]:
                about = {"kind": kind, "level": level, "depth": depth, "mark": mark}
                yield {**about, "spans": words}
            yield from ({"kind": "picture", "picture": pictures[name]} for name in shown)
        case "bullet_list" | "ordered_list":
            for number, item in enumerate(node.children, int(node.attrs.get("start", 1))):
                own = f"{number}." if node.tag == "ol" else "•"
                for child in item.children:
                    yield from _blocks(child, pictures, depth + 1, own)
                    own = ""
        case "table":
            rows = [row for part in node.children for row in part.children]
            cells = [[list(_spans(cell.children[0])) for cell in row.children] for row in rows]
            yield {"kind": "table", "rows": cells}
        case "fence" | "code_block":
            yield {"kind": "code", "text": fit(node.content.rstrip())}
        case _:
            for child in node.children:
                yield from _blocks(child, pictures, depth, mark)


_STYLES = {"strong": "strong", "em": "em", "code_inline": "code", "image": _PICTURE}


def _spans(node: SyntaxTreeNode, style: str = "") -> Iterator[Span]:
    for child in node.children:
        own = _STYLES.get(child.type, style)
        if child.type == "image":
            yield own, str(child.attrs.get("src", ""))
        elif child.children:
            yield from _spans(child, own)
        elif words := " " if child.type.endswith("break") else fit(child.content):
            yield own, words
