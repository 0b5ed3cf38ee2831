"""Checks: what must be true of something that has run, beside its exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from rankwise import plan
from rankwise.checks.json_path import steps_of
from rankwise.documents import values
from rankwise.documents.common import Conflict, Model
from rankwise.documents.values import number_in, one_or_more, wrong
from rankwise.documents.written import Scalar, given_in
from rankwise.wording import alternatives, quoted

KINDS = ("contains", "absent", "regex", "json", "exists", "exit_code", "python")
_COMPARISONS = ("equals", "less_than", "greater_than", "approx")
_TEXTS = ("contains", "absent", "regex")
# The kinds that each of the other fields goes with.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "count": ("contains", "regex"),
    "on": (*_TEXTS, "json"),
    "rank": (*_TEXTS, "json", "exists"),
    **dict.fromkeys((*_COMPARISONS, "tolerance"), ("json",)),
}
_COUNT = re.compile(r"(?:(?P<how>==|>=|<=|>|<)\s*)?(?P<number>\d+)(?:\s*\.\.\s*(?P<most>\d+))?")
_FUNCTION = re.compile(r"[^:\n]+\.py:[A-Za-z_]\w*")


class CountRange(NamedTuple):
    """How often something must be found; `most` is None without an upper limit."""

    least: int
    most: int | None


def _often(value: Any) -> CountRange:
    # A number is a Scalar, whose text is the same as that of `"4"`.
    found = _COUNT.fullmatch(str(value).strip()) if not isinstance(value, Mapping | list) else None
    if found is None or (found["how"] and found["most"]):
        raise wrong(f"must be a number, or such as `>= 2`, `< 5` or `1..3`, not {quoted(value)}")
    number, how = int(found["number"]), found["how"]
    bounds: Mapping[str, tuple[int, int | None]] = {
        ">=": (number, None),
        ">": (number + 1, None),
        "<=": (0, number),
        "<": (0, number - 1),
    }
    # A number alone, or with `==`, means exactly that often.
    least, most = bounds.get(how, (number, int(found["most"] or number)))
    # `< 0`, or a range whose end comes first.
    if most is not None and most < least:
        raise wrong(
            "cannot be less than 0 times" if how else f"must go up, not down: {quoted(value)}"
        )
    return CountRange(least, most)


def _rank(value: Any) -> str:
    if value == "all":
        return "all"
    number = number_in(value)
    if not isinstance(number, int) or number < 0:
        raise wrong(f"must be the number of a rank, or `all`, not {quoted(value)}")
    return str(number)


def _pattern(value: str) -> str:
    try:
        # As it is used later; a huge pattern can also exceed limits of `re`.
        re.compile(value, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise wrong(f"is no regular expression of Python: {error}") from None
    return value


def _json_path(value: str) -> str:
    try:
        steps_of(value)
    except ValueError as error:
        raise wrong(str(error)) from None
    return value


def _codes(value: Any) -> tuple[int, ...]:
    if not (given := one_or_more(value)):
        raise wrong("needs at least one exit code")
    return tuple(map(values.whole(0, 255), given))


def _plain(value: Any) -> str | float | bool:
    if isinstance(value, Scalar):
        return value.value
    if isinstance(value, str | int | float | bool):
        return value
    raise wrong(f"must be a number, text, `true` or `false`, not {quoted(value)}")


class CheckSpec(Model):
    """What must be true after a test or a step has run. A text alone is `contains`."""

    short_form: ClassVar[str] = "contains"

    contains: values.Text = Field(default="", examples=["all ranks done"])
    """A text that must be there."""
    absent: values.Text = Field(default="", examples=["Traceback"])
    """A text that must not be there."""
    regex: Annotated[values.Text, AfterValidator(_pattern)] = Field(
        default="", examples=[r"rank (\d+) of 4"]
    )
    """A regular expression of Python that must be found; `^` and `$` are those of lines."""
    json_: Annotated[values.Text, AfterValidator(_json_path)] = Field(
        default="", alias="json", examples=["$.epochs[-1].loss"]
    )
    """A path into JSON at which there must be a value."""
    exists: values.Text = Field(default="", examples=["model.pt"])
    """A file or folder that must have been written. `{rank}` is the rank."""
    exit_code: Annotated[
        tuple[int, ...],
        BeforeValidator(_codes),
        values.listed_schema({"type": "integer", "minimum": 0, "maximum": 255}),
    ] = Field(default=(), examples=[3, [0, 3]])
    """What counts as success, in place of 0."""
    python: Annotated[
        values.Text,
        values.check_that(
            _FUNCTION.fullmatch, "must be FILE.py:FUNCTION, such as `checks.py:is_small`"
        ),
    ] = Field(default="", examples=["checks.py:loss_is_small"])
    """FILE.py:FUNCTION, called after the run; it must give something true."""
    count: Annotated[
        CountRange | None,
        BeforeValidator(_often),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "integer", "minimum": 0},
                    {"type": "string", "pattern": r"^((==|>=|<=|>|<) *)?[0-9]+( *\.\. *[0-9]+)?$"},
                ]
            }
        ),
    ] = Field(default=None, examples=[4, ">= 2", "1..3"])
    """How often it must be found; none given: once at least."""
    on: values.Text = Field(default="output", examples=["stdout", "metrics.json"])
    """Where to look: `output` is all that was written, `stdout`, `stderr`, or the name of a file.
    `{rank}` in it is the rank.
    """
    rank: Annotated[
        str,
        BeforeValidator(_rank),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "all"}]}),
    ] = Field(default="", examples=[0, "all"])
    """On which rank: its number, or `all` for each of them; none given: all processes are taken
    together. `{rank}` in what is looked for is the rank.
    """
    equals: Annotated[
        str | int | float | bool | None,
        BeforeValidator(_plain),
        WithJsonSchema({"type": ["string", "number", "boolean"]}),
    ] = Field(default=None, examples=[4, "ok"])
    """The value in JSON must be this one."""
    less_than: values.Number | None = Field(default=None, examples=[0.5])
    """The value in JSON must be less."""
    greater_than: values.Number | None = Field(default=None, examples=[0.9])
    """The value in JSON must be greater."""
    approx: values.Number | None = Field(default=None, examples=[3.14159])
    """The value in JSON must be about this one."""
    tolerance: values.Number | None = Field(default=None, examples=[0.01])
    """How far `approx` may be off; none given: by a millionth of the value."""
    # A function of the user may hang, and the run would never get its verdict.
    timeout: values.Seconds = Field(default=10.0, examples=[60])
    """Longest time that the check itself may take."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from cls.exactly_one(contents, KINDS, "a check")
        if len(given := given_in(contents, KINDS)) == 1:
            yield from _misplaced(contents, given[0])

    def planned(self, folder: Path) -> plan.Check:
        """Return the check as plain data; `folder` is where its files of code are."""
        # `json` is a method of pydantic models, so the field has another name.
        kind = next(kind for kind in KINDS if getattr(self, "json_" if kind == "json" else kind))
        text = {"json": self.json_, "exit_code": "", "python": str(folder / self.python)}
        # Without a count, once is enough, and more do no harm.
        often = self.count or CountRange(1, None)
        compare = next((each for each in _COMPARISONS if getattr(self, each) is not None), "")
        return plan.Check(
            kind=kind,
            what=text.get(kind, getattr(self, kind, "")),
            on=self.on,
            rank=self.rank,
            least=often.least,
            most=often.most,
            compare=compare,
            value=getattr(self, compare) if compare else None,
            tolerance=self.tolerance,
            codes=self.exit_code,
            seconds=self.timeout,
        )


def _misplaced(contents: Mapping[str, Any], kind: str) -> Iterator[Conflict]:
    """Find fields that do not go with a kind of check, or with each other."""
    present = given_in(contents, _PARTS)
    for name in present:
        if kind not in _PARTS[name]:
            fit = alternatives([f"`{each}`" for each in _PARTS[name]])
            yield Conflict((name,), f"`{name}` goes with {fit}, not with `{kind}`")
    if len(compared := given_in(contents, _COMPARISONS)) > 1:
        yield Conflict((compared[1],), f"a check has `{compared[0]}` or `{compared[1]}`, not both")
    if "tolerance" in present and "approx" not in present and kind == "json":
        yield Conflict(("tolerance",), "`tolerance` goes with `approx`")
