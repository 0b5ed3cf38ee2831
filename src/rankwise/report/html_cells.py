"""What is behind a cell of the matrix: its tests, what went wrong, what differs, its pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankwise.report.ansi import as_markup
from rankwise.report.contrasts import Contrast
from rankwise.report.environments import Change, Environment
from rankwise.report.facts import cut
from rankwise.report.html_cell_tests import Page, tests_of
from rankwise.report.html_environments import environment_key
from rankwise.report.markup import Markup, tag
from rankwise.report.matrix import Cell, CellTest
from rankwise.report.matrix_looks import machine_words
from rankwise.report.notebook_files import Picture, notebook_files, pictures_of
from rankwise.report.outcomes import TONES
from rankwise.report.words import counted, listed

_LONGEST = 120
_LONGEST_LINE = 400
_MOST_LINES = 16
_MOST_CHANGES = 12
_MOST_FOLDED = 150
_MOST_PICTURES = 6
_LARGEST_PICTURE = 60_000


def cell_panel(
    cell: Cell,
    *,
    tone: str,
    summary: str,
    page: Page,
    is_open: bool,
) -> Markup:
    """Make what is behind a cell; it opens by itself when its address is followed."""
    name = tag("b", f"{cut(cell.runtime, _LONGEST)} on {cut(cell.machine, _LONGEST)}")
    number = page.cells[cell.runtime, cell.machine]
    head = tag(
        "summary",
        tag("b", str(cell.verdict), class_=f"o {tone}"),
        name,
        tag("span", summary, class_="soft"),
    )
    content: list[Markup] = []
    for part in _parts(cell, page):
        if page.left < 0:
            content.append(
                tag("p", "There was no room for more; the files have it all.", class_="soft")
            )
            break
        page.left -= len(part.encode())
        content.append(part)
    # What is inside is the target: browsers open what it is in, without any script.
    inside = tag("div", *content, id=f"cell-{number}", class_="panel")
    return tag("details", head, inside, open=is_open, class_=f"of {tone}")


def _parts(cell: Cell, page: Page) -> Iterator[Markup]:
    # What keeps one from running keeps the others, too.
    blocked = next((one for one in cell.tests if one.is_blocked), None)
    for one in cell.tests:
        if one.has_failed or one is blocked:
            yield _failure(one)
    if not any(one.folder for one in cell.tests):
        if blocked is None:
            yield tag("p", cut(cell.reason) or "Nothing of it has run yet.")
        return
    for contrast in cell.contrasts:
        yield _contrast(contrast, cell, page)
    yield tests_of(cell.tests, page)
    if pictures := list(_pictures(cell, page)):
        yield tag("div", *pictures, class_="pictures")
    if cell.environment is not None:
        yield _environment(cell.environment, page)


def _environment(one: Environment, page: Page) -> Markup:
    words = f"{one.python} with {counted(len(one.packages), 'package')}"
    place = page.environments.get(environment_key(one))
    about = words if place is None else tag("a", words, href=f"#environment-{place}")
    parts = [machine_words(one), one.host and f"host {one.host}", *one.modules]
    return tag("p", about, "".join(f" · {cut(part, _LONGEST)}" for part in parts if part))


def _failure(one: CellTest) -> Markup:
    word = f"{one.state}, softly" if one.is_soft else str(one.state)
    head = tag(
        "p",
        tag("b", word, class_=f"o {'warn' if one.is_soft else TONES[one.state]}"),
        f" {cut(one.name, _LONGEST)}",
        f": {cut(one.reason.partition(chr(10))[0])}" if one.reason else "",
        class_="what",
    )
    # What could not even start has its words in the reason.
    told = one.tail or one.reason.splitlines()[1:][-_MOST_LINES:]
    lines = "\n".join(as_markup(line[:_LONGEST_LINE]) for line in told)
    return tag("div", head, tag("pre", Markup(lines), tabindex="0") if lines else "")


def _contrast(one: Contrast, cell: Cell, page: Page) -> Markup:
    what = listed([cut(name, _LONGEST) for name in one.tests], most=4)
    if one.machine == cell.machine:
        where = f"{cut(one.runtime, _LONGEST)} on the same machine"
    else:
        where = f"the same runtime on {cut(one.machine, _LONGEST)}"
    verb = "passes" if len(one.tests) == 1 else "pass"
    number = page.cells[one.runtime, one.machine]
    head = tag("p", f"{what} {verb} with ", tag("a", where, href=f"#cell-{number}"), ".")
    if not one.is_known:
        words = "What differs is not known: one of the two has not said what is around it."
        return tag("div", head, tag("p", words, class_="soft"), class_="differs")
    if not one.changes:
        words = "Nothing differs that is known: no package, no version, nothing of the machine."
        return tag("div", head, tag("p", words, class_="soft"), class_="differs")
    named = [change for change in one.changes if change.is_named]
    first = one.changes[: max(_MOST_CHANGES, len(named))]
    rest = one.changes[len(first) :]
    content = [head, _changes(first)]
    if rest:
        words = f"{counted(len(rest), 'more difference')}"
        shown = _changes(rest[:_MOST_FOLDED])
        content.append(tag("details", tag("summary", words), tag("div", shown), class_="more"))
    return tag("div", tag("h4", "What differs"), *content, class_="differs")


def _changes(changes: Sequence[Change]) -> Markup:
    heads = ("what", "fails here", "passes there")
    rows = (
        tag(
            "tr",
            tag("th", tag("small", one.kind), " ", cut(one.name, 300), scope="row"),
            tag("td", cut(one.here, _LONGEST) or "not there"),
            tag("td", cut(one.there, _LONGEST) or "not there"),
            class_="named" if one.is_named else None,
            title="what went wrong speaks of it" if one.is_named else None,
        )
        for one in changes
    )
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in heads)))
    return tag("div", tag("table", head, tag("tbody", *rows), class_="changes"), class_="scroll")


def _pictures(cell: Cell, page: Page) -> Iterator[Markup]:
    """Show the pictures of the notebooks; not again what is in another cell already."""
    count = 0
    for test, picture in _all_pictures(cell):
        if count == _MOST_PICTURES:
            return
        if picture.digest in page.shown:
            runtime, machine = page.shown[picture.digest]
            words = f"the same picture as in {cut(runtime, _LONGEST)} on {cut(machine, _LONGEST)}"
            place = page.cells[runtime, machine]
            yield _caption(test, picture, tag("a", words, href=f"#cell-{place}"))
        elif len(picture.data) <= min(page.pictures, page.left):
            page.pictures -= len(picture.data)
            page.shown[picture.digest] = cell.runtime, cell.machine
            words = f"{cut(test.name, _LONGEST)}, {cut(picture.words, _LONGEST)}"
            shown = tag("img", src=picture.address, alt=words, loading="lazy")
            # It has no end of its own.
            yield _caption(test, picture, Markup(shown.removesuffix("</img>")))
        else:
            continue
        count += 1


def _all_pictures(cell: Cell) -> Iterator[tuple[CellTest, Picture]]:
    for test in cell.tests:
        for path in notebook_files(test.folder) if test.folder is not None else ():
            if path.suffix == ".ipynb":
                for picture in pictures_of(path, largest=_LARGEST_PICTURE):
                    yield test, picture


def _caption(test: CellTest, picture: Picture, content: Markup) -> Markup:
    words = f"{cut(test.name, _LONGEST)}, {picture.words.partition(':')[0]}"
    return tag("figure", content, tag("figcaption", words))
