"""Templates of pages and mails: Jinja escapes whatever is not markup."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Protocol
from xml.sax.saxutils import quoteattr

from markupsafe import Markup, escape

from rankwise import __version__
from rankwise.reports.markup import as_markup
from rankwise.reports.palette import EMOJI, TONES
from rankwise.reports.plots.svg import coordinate
from rankwise.safe_text import cut, fit, fit_for_xml, one_line
from rankwise.wording import counted, duration

if TYPE_CHECKING:
    from jinja2 import Environment

# Ends of lines are for readers of a template: between elements they are nothing, else a space.
_NOTHING = re.compile(r"(?<=[>}])\s*\n\s*|\s*\n\s*(?=[<{]|$)")
_SPACE = re.compile(r"\s*\n\s*")
_PLAIN = re.compile(r"-?[\d,]+(\.\d+)?")
_FUNCTIONS = {
    "safe_text": "clip cut",
    "wording": "counted duration ending fold label listed moment size",
    "reports.environments": "notebook_files",
    "reports.lanes": "COLOURS lane_names",
    "reports.markup": "as_markup attributes",
    "reports.matrix": "about_machine about_runtime gist machine_words marks_of",
    "reports.measurements": "as_number",
    "reports.plots.axes": "number_text",
    "reports.plots.charts": "outline",
    "reports.plots.svg": "corners",
    "reports.plots.timeline": "tones_of",
    "reports.timeline": "visible_causes timeline_cards with_options",
}
"""What templates may call, by module."""


class Room:
    """How much may still be written, in bytes."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.count = 0
        """How many parts were written."""

    def take(self, part: Markup) -> Markup:
        """Return a part that is written, and remember how large it is."""
        self.left -= len(part.encode())
        self.count += 1
        return part

    @property
    def is_full(self) -> bool:
        return self.left < 0


def render(template: str, **content: Any) -> Markup:
    """Fill in a template: `web/task` is task.html.j2 in the folder templates of web.

    `notify/slack.json` is slack.json.j2: of another kind, with the same rules.
    """
    return Markup(environment().get_template(template).render(content))


def render_markdown(template: str, **content: Any) -> str:
    """Fill in a template of Markdown: `reports/summary` is summary.md.j2 there.

    What is filled in is text: nothing in it can be markup, unless it is marked as such.
    """
    return _markdown().get_template(template).render(content)


class Macros(Protocol):
    """The macros of a template."""

    def __getattr__(self, name: str) -> Callable[..., Markup]: ...


def macros(template: str) -> Macros:
    """Return the macros of a template."""
    made: Any = environment().get_template(template).module
    return made  # type: ignore[no-any-return]  # Jinja does not know what is in a template


@cache
def template_text(name: str) -> str:
    """Return a style sheet, script or other text from reports/templates."""
    return (resources.files("rankwise.reports") / "templates" / name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Return the environment of all templates; rooms above this one add functions to it."""
    # Late: it takes longer to load than most commands take.
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        finalize=_finished,
        # A misspelt name is an error, not an empty place in a page.
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do"],
    )
    for module, names in _FUNCTIONS.items():
        loaded = importlib.import_module(f"rankwise.{module}")
        made.globals.update({name: getattr(loaded, name) for name in names.split()})
    made.globals.update(sort_value=_sort_value, tones=TONES, version=__version__)
    made.filters.update(commas="{:,}".format, cut=cut, ansi_lines=_ansi_lines, px=coordinate)
    # Of XML: the text of an element, and the value of an attribute with its quotes.
    made.filters.update(xml=lambda text: escape(fit_for_xml(text)))
    made.filters.update(quoted=lambda text: Markup(quoteattr(fit_for_xml(text))))
    return made


@cache
def _markdown() -> Environment:
    # Late, as above; a matrix is described with the words of its own module.
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    from rankwise.reports.matrix import cell_words

    made = Environment(
        loader=FunctionLoader(lambda template: _text(template, "md")),
        autoescape=False,  # That would be for HTML: here `finalize` does it.
        finalize=_plain_markdown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals.update(
        cell_words=cell_words, code=Markup, counted=counted, duration=duration, emoji=EMOJI
    )
    return made


def _source(template: str) -> str:
    name, _, kind = template.partition(".")
    return _SPACE.sub(" ", _NOTHING.sub("", _text(name, kind or "html")))


def _text(template: str, kind: str) -> str:
    room, _, name = template.partition("/")
    path = resources.files("rankwise") / room / "templates" / f"{name}.{kind}.j2"
    return path.read_text(encoding="utf-8")


# What would make something else of a text than text.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#@&!])")
_LONGEST_CELL = 300


def _plain_markdown(value: object) -> object:
    """Make one line of a text that Markdown takes as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _SPECIAL.sub(r"\\\1", one_line(value, _LONGEST_CELL))


def _finished(value: object) -> object:
    """Take out of a text what no document may contain."""
    kind = type(value)
    # The types that come in thousands, by themselves.
    if kind is Markup or kind is int:
        return value
    if kind is str:
        return fit(value)  # type: ignore[arg-type]  # it is one
    if value is None:
        return ""
    return fit(str(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def _ansi_lines(lines: list[str]) -> Markup:
    return Markup("\n".join(map(as_markup, lines)))


def _sort_value(value: float | None, shown: str) -> str | None:
    """Return what a cell sorts by; None: its words say it, which thousands of cells make use of."""
    return None if value is None or _PLAIN.fullmatch(shown) else f"{value:.6g}"
