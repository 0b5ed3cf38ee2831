"""The files of a run: the executed notebook, pictures, HTML, PDF, outcome.json and JUnit."""

from __future__ import annotations

import base64
import contextlib
import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from string import Template
from typing import Any
from xml.etree import ElementTree

from . import notebook_results as results
from .cells import as_text, joined, pictures_of, read_notebook, readable_lines, redacted
from .execution import NotebookRun
from .kernels import kill_group
from .notebook_results import CellResult, Ended, NotebookFailure, NotebookResult

# Characters that XML cannot hold, not even as references.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _redact_result(result: NotebookResult) -> None:
    result.notes = list(map(results.without_secrets, result.notes))
    told: list[NotebookResult | CellResult] = [result, *result.cases]
    for one in told:
        one.reason, one.details = map(results.without_secrets, (one.reason, one.details))


def write_artifacts(run: NotebookRun) -> None:
    """Write all files; that one cannot be written is an outcome of its own."""
    order, result = run.order, run.result
    _redact_result(result)
    try:
        if run.notebook is not None:
            run.notebook = redacted(run.notebook)
            # The notebook first: it says more than the other files, if the disk gets full.
            results.write(order.out / order.notebook.name, as_text(run.notebook))
            result.files.insert(0, order.notebook.name)
            for _, name, data in pictures_of(run.notebook, order.stem, result.injected):
                results.write(order.out / name, data)
                result.files.append(name)
            if order.html or order.pdf:
                _write_pages(run)
    except OSError as error:
        result.outcome, result.cell = Ended.CANNOT_WRITE, None
        before = f"; before that: {result.reason}" if result.reason else ""
        place = error.filename or order.out
        result.reason = f"cannot write {place}: {error.strerror}{before}"
        for name in result.files:
            # Files of a part of the notebook would look like those of all of it.
            with contextlib.suppress(OSError):
                (order.out / name).unlink()
        result.files = []
    except Exception as error:
        result.fail_late(results.internal_error(error))
    finally:
        _write_results(result)


def _write_pages(run: NotebookRun) -> None:
    order, result = run.order, run.result
    page = order.out / f"{order.stem}.html"
    results.write(page, page_of(run.notebook, result))
    result.files.append(page.name)
    if order.pdf:
        try:
            results.write(order.out / f"{order.stem}.pdf", pdf_of(run.notebook, page))
            result.files.append(f"{order.stem}.pdf")
        except NotebookFailure as failure:
            result.fail_late(failure)


def _write_results(result: NotebookResult) -> None:
    """Write the small files that rankwise and pytest read."""
    order = result.order
    try:
        if order.junit is not None:
            results.write(order.junit, junit_of(result))
        results.write(order.out / "outcome.json", json.dumps(result.as_dict(), indent=1) + "\n")
    except OSError as error:
        if result.outcome != Ended.CANNOT_WRITE:
            result.reason = f"cannot write {error.filename or order.out}: {error.strerror}"
        result.outcome = Ended.CANNOT_WRITE


def junit_of(result: NotebookResult) -> bytes:
    """Return a JUnit file with a case for each cell."""
    cases = list(result.cases)
    if result.outcome != Ended.PASSED and all(case.state != "failed" for case in cases):
        # The failure is of no cell, such as a missing kernel.
        cases.append(
            CellResult(0, result.outcome, "failed", reason=result.reason, details=result.details)
        )
    states = [case.state for case in cases]
    counts = {"tests": str(len(cases)), "errors": "0"}
    counts.update(failures=str(states.count("failed")), skipped=str(states.count("skipped")))
    name = result.order.stem
    root = ElementTree.Element("testsuites")
    suite = _element(root, "testsuite", name=name, **counts, time=f"{result.seconds:.3f}")
    sources = sources_of_failed(result)
    for case in cases:
        title = f"cell {case.cell}: {case.title}" if case.cell else case.title
        seconds = f"{case.seconds:.3f}"
        element = _element(suite, "testcase", classname=name, name=title, time=seconds)
        if case.state == "failed":
            parts = [case.reason, sources.get(case.cell), case.details[-2000:]]
            fault = _element(element, "failure", message=case.reason, type=result.outcome)
            fault.text = _NO_XML.sub("?", "\n\n".join(filter(None, parts)))
        elif case.state in ("skipped", "not run"):
            _element(element, "skipped", message=case.reason or "not run")
    whole: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return whole


def _element(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    """Add an element, without the characters that XML does not allow."""
    clean = {name: _NO_XML.sub("?", value) for name, value in attributes.items()}
    return ElementTree.SubElement(parent, tag, clean)


def sources_of_failed(result: NotebookResult) -> dict[int, str]:
    """Return the sources of the cells that failed, numbered as in tracebacks."""
    try:
        notebook = read_notebook(result.order.notebook)
    except NotebookFailure:
        return {}
    # Cell 0 stands for parameters or the script.
    failed = [case.cell for case in result.cases if case.state == "failed" and case.cell]
    return {n: numbered(notebook.cells[n - 1].source) for n in failed if n <= len(notebook.cells)}


def numbered(source: str) -> str:
    """Return a source with line numbers, cut where it is long."""
    text = "\n".join(f"{number:4} | {line}" for number, line in enumerate(source.splitlines(), 1))
    return text if len(text) <= 1500 else text[:1500] + "\n     | …"


PDF_SECONDS = 120.0


def _data(name: str) -> str:
    """Return a file that lies beside this module."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


# A page of HTML. It fetches nothing, and a browser runs nothing that a cell has put out.


def page_of(notebook: Any, result: NotebookResult) -> str:
    """Return the executed notebook as a page of HTML."""
    states = {case.cell: case for case in result.cases if case.cell}
    cells = [
        _cell_html(cell, states.get(results.number_of(at, result.injected)), result.order.folder)
        for at, cell in enumerate(notebook.cells)
    ]
    return Template(_data("page.html")).substitute(
        title=html.escape(result.order.notebook.name),
        tone="passed" if result.outcome == Ended.PASSED else "failed",
        outcome=html.escape(result.outcome),
        reason=html.escape(result.reason),
        cells="\n".join(cells),
    )


def _cell_html(cell: Any, case: CellResult | None, folder: Path) -> str:
    if cell.cell_type == "markdown":
        return f'<div class="cell text">{_markdown(cell, folder)}</div>'
    if cell.cell_type != "code":
        return f'<div class="cell"><pre>{html.escape(cell.source)}</pre></div>'
    about = ""
    if case is not None:
        seconds = f", {case.seconds:.2f} s" if case.seconds else ""
        reason = f": {html.escape(case.reason)}" if case.reason else ""
        about = (
            f'<div class="what">cell {case.cell} <span class="{html.escape(case.state)}">'
            f"{html.escape(case.state)}</span>{seconds}{reason}</div>"
        )
    broken = " broken" if case is not None and case.state == "failed" else ""
    outputs = "\n".join(_output_html(output) for output in cell.get("outputs") or ())
    source = f'<pre class="source">{_highlighted(cell.source)}</pre>'
    return f'<div class="cell code{broken}">{about}{source}<div class="out">{outputs}</div></div>'


def _highlighted(source: str) -> str:
    try:
        from pygments import highlight  # type: ignore[import-untyped]
        from pygments.formatters.html import HtmlFormatter  # type: ignore[import-untyped]
        from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]
    except ImportError:
        return html.escape(source)
    text = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return str(text).rstrip("\n")


def _markdown(cell: Any, folder: Path) -> str:
    try:
        import mistune
    except ImportError:
        return f"<pre>{html.escape(cell.source)}</pre>"
    source = re.sub(
        r"\]\(([^)\s]+)", lambda found: f"]({_embedded(found[1], cell, folder)}", cell.source
    )
    # With `escape`, HTML in it is shown as text.
    text = mistune.create_markdown(escape=True, plugins=["table", "strikethrough"])(source)
    return str(text)


def _embedded(address: str, cell: Any, folder: Path) -> str:
    """Return a picture as a data URL if it is attached or in a file; any other address as it is."""
    kinds = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".gif": "gif"}
    if address.startswith("attachment:"):
        for kind, data in (cell.get("attachments") or {}).get(address[11:], {}).items():
            return f"data:{kind};base64,{joined(data)}"
    path = folder / address
    kind = kinds.get(path.suffix.lower())
    with contextlib.suppress(OSError, ValueError):
        if kind and "://" not in address and path.stat().st_size < 2_000_000:
            return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    return address


def _output_html(output: Any) -> str:
    kind = output.get("output_type")
    if kind == "stream":
        return f"<pre>{html.escape(results.readable(joined(output.get('text'))))}</pre>"
    if kind == "error":
        lines = results.plain("\n".join(map(str, output.get("traceback") or ())))
        text = lines or f"{output.get('ename')}: {output.get('evalue')}"
        return f'<pre class="error">{html.escape(text)}</pre>'
    data = output.get("data") or {}
    # The richest form that needs no script, as in Jupyter.
    for picture in ("image/png", "image/jpeg", "image/gif"):
        if picture in data:
            content = "".join(joined(data[picture]).split())
            return f'<img alt="" src="data:{picture};base64,{html.escape(content)}">'
    if "image/svg+xml" in data:
        # As a picture, its scripts and links do nothing; as a part of the page they would.
        content = base64.b64encode(joined(data["image/svg+xml"]).encode()).decode()
        return f'<img alt="" src="data:image/svg+xml;base64,{content}">'
    if "text/html" in data:
        return joined(data["text/html"])
    return f"<pre>{html.escape(results.plain(joined(data.get('text/plain'))))}</pre>"


# PDF


def find_browser() -> str:
    """Return a Chromium that can print to PDF; empty if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next(filter(None, map(shutil.which, names)), "")


def can_make_pdf() -> bool:
    return bool(find_browser()) or importlib.util.find_spec("typst") is not None


def pdf_of(notebook: Any, page: Path) -> bytes:
    """Return a page as PDF, printed by a browser or set by typst; raises NotebookFailure."""
    return _printed(browser, page) if (browser := find_browser()) else _typeset(notebook)


def _printed(browser: str, page: Path) -> bytes:
    with tempfile.TemporaryDirectory(prefix="rankwise-pdf-", ignore_cleanup_errors=True) as folder:
        made = Path(folder) / "page.pdf"
        # A sandbox is not possible in most containers; the page runs no scripts.
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--no-first-run", f"--user-data-dir={folder}/profile"]
        options += ["--no-pdf-header-footer", f"--print-to-pdf={made}"]
        process = subprocess.Popen(
            [browser, *options, page.absolute().as_uri()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # Chromium makes a socket there, and aborts where the name of the folder is long.
            env={**os.environ, "TMPDIR": "/tmp"},
            start_new_session=True,
        )
        try:
            problem = process.communicate(timeout=PDF_SECONDS)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            problem = f"it took longer than {PDF_SECONDS:g} s"
        finally:
            kill_group(process.pid)
            process.wait()
        if not made.is_file():
            problem = " ".join(problem.split())[-300:]
            raise NotebookFailure(Ended.CANNOT_WRITE, f"{browser} has made no PDF: {problem}")
        return made.read_bytes()


def _typeset(notebook: Any) -> bytes:
    """Set the notebook with typst; its text is data there, and never read as typst's language."""
    try:
        import typst
    except ImportError:
        why = "PDF needs chromium, or pip install 'rankwise[report]'"
        raise NotebookFailure(Ended.CANNOT_WRITE, why) from None
    with tempfile.TemporaryDirectory(prefix="rankwise-pdf-") as folder:
        cells: list[dict[str, str]] = []
        pictures: dict[int, list[str]] = {}
        for index, name, data in pictures_of(notebook, "picture"):
            # typst cannot read GIF.
            if not name.endswith(".gif"):
                Path(folder, name).write_bytes(data)
                pictures.setdefault(index, []).append(name)
        for index, cell in enumerate(notebook.cells):
            kind = "source" if cell.cell_type == "code" else "text"
            cells.append({"kind": kind, "text": cell.source})
            text = "\n".join(readable_lines(cell.get("outputs") or ()))
            if text:
                cells.append({"kind": "output", "text": text})
            cells += [{"kind": "picture", "text": name} for name in pictures.get(index, ())]
        source = Path(folder, "notebook.typ")
        source.write_text(_data("page.typ"), encoding="utf-8")
        try:
            inputs = {"cells": json.dumps(cells)}
            made: bytes = typst.compile(source, sys_inputs=inputs, format="pdf")
        except RuntimeError as error:
            raise NotebookFailure(Ended.CANNOT_WRITE, f"typst has made no PDF: {error}") from None
    return made
