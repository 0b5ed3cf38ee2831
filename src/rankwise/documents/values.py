"""Types of single values: counts, times, sizes, names.

Each type has its own error message, and describes itself to JSON Schema.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from rankwise.documents.written import Scalar, resolve
from rankwise.wording import quoted

_T = TypeVar("_T")
OWN_WORDS = "rankwise"
"""The type of errors whose message is ours and complete."""

# Names become names of folders, where file systems take 255 bytes and others add to them.
_LONGEST_NAME = 100
# A letter or a digit first: `-x` would look like an option, and `.x` is a hidden folder.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# From the largest to the smallest: in this order the units stand in a time, such as 1h30m.
_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?=.)" + "".join(rf"(?:([0-9.]+){unit})?" for unit in _SECONDS))
# A year. A longer time has a wrong unit.
_LONGEST_DURATION = 365 * 86_400

# The units of Kubernetes and SI: with `i` powers of 1024, else of 1000.
_POWERS = {letter: power for power, letter in enumerate("kMGTPE", start=1)}
_SIZE = re.compile(r"([0-9]*\.?[0-9]+) ?(?:([kKMGTPE])(i?))?B?")
# 1 EiB. A larger number is a wrong unit, and would not fit into what systems use for sizes.
_MOST_BYTES = 2**60

# Thousandths of a core, as Kubernetes writes them; at most twelve digits, so that int() is quick.
_CORES = re.compile(r"([0-9]{1,12})m")
_MOST_CORES = 1_000_000


def wrong(message: str) -> PydanticCustomError:
    """Return an error with a message that follows the name of the field: `must be …`."""
    return PydanticCustomError(OWN_WORDS, "{message}", {"message": message})


def number_in(value: Any) -> int | float | None:
    """Return a value as a number; None for anything else, also for true, false and nan."""
    # In YAML a number arrives as a Scalar, in TOML as a plain number.
    found = value.value if isinstance(value, Scalar) else value
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    # TOML has whole numbers of any size, and a larger one cannot become a float.
    return found if is_number and abs(found) <= sys.float_info.max else None


def whole(least: int, most: int | None = None) -> Callable[[Any], int]:
    """Return a validator for whole numbers within bounds."""

    def check(value: Any) -> int:
        number = number_in(value)
        if not isinstance(number, int):
            raise wrong(f"must be a whole number, not {_with_remedy(value)}")
        if isinstance(value, Scalar) and re.match(r"[-+]?0[0-9]", value):
            # Some programs take 010 for an octal number, others for 10.
            raise wrong(f"must be a whole number without leading zeros, not {quoted(value)}")
        if number < least:
            raise wrong(f"must be at least {least}, not {quoted(value)}")
        if most is not None and number > most:
            raise wrong(f"must be at most {most}, not {quoted(value)}")
        return number

    return check


def whole_number(least: int, most: int | None = None) -> tuple[BeforeValidator, WithJsonSchema]:
    """Return a validator for whole numbers within bounds, and its JSON Schema."""
    schema = {"type": "integer", "minimum": least}
    if most is not None:
        schema["maximum"] = most
    return BeforeValidator(whole(least, most)), WithJsonSchema(schema)


def check_that(is_right: Callable[[Any], object], message: str) -> AfterValidator:
    """Return a validator that raises the message, followed by the value, if `is_right` is false."""

    def check(value: _T) -> _T:
        if not is_right(value):
            raise wrong(f"{message}, not {quoted(value)}")
        return value

    return AfterValidator(check)


def _with_remedy(value: Any) -> str:
    """Quote a value; for a number in quotes, add how to write it."""
    # A Scalar is a text of its own type: here only texts that had quotes in the document count.
    is_quoted_number = type(value) is str and isinstance(resolve(value), Scalar)
    return f"the text {quoted(value)}; leave the quotes out" if is_quoted_number else quoted(value)


def _ranks(value: Any) -> int | str:
    if value == GPUS:
        return GPUS
    if number_in(value) is None:
        raise wrong(f"must be a whole number or `gpus`, not {_with_remedy(value)}")
    return whole(1)(value)


def _seconds(value: Any) -> float:
    number = number_in(value)
    if number is None and isinstance(value, str) and (found := _DURATION.fullmatch(value)):
        try:
            parts = zip(found.groups(), _SECONDS.values(), strict=True)
            number = sum(float(amount) * unit for amount, unit in parts if amount)
        except ValueError:  # such as 1.2.3h
            number = None
    if number is None:
        raise wrong(
            f"must be a time: a number of seconds, or such as 90s, 10m, 1h30m, not {quoted(value)}"
        )
    if not 0 < number <= _LONGEST_DURATION:
        raise wrong(f"must be more than 0 and at most 365d, not {quoted(value)}")
    return float(number)


def _bytes(value: Any) -> int:
    number = number_in(value)
    if number is None and isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        amount, letter, binary = found.groups()
        power = _POWERS["k" if letter == "K" else letter] if letter else 0
        number = float(amount) * (1024 if binary else 1000) ** power
    if number is None:
        raise wrong(
            "must be a size: a number of bytes, or such as 500M, 2Gi (with a capital letter), "
            f"not {quoted(value)}"
        )
    if not 1 <= number <= _MOST_BYTES:
        raise wrong(f"must be at least 1 byte and at most 1Ei, not {quoted(value)}")
    return int(number)


def _cores(value: Any) -> float:
    number = number_in(value)
    if number is None and isinstance(value, str) and (found := _CORES.fullmatch(value)):
        number = int(found[1]) / 1000
    if number is None:
        raise wrong(
            "must be a number of cores, such as 4, 0.5 or 500m (thousandths), "
            f"not {_with_remedy(value)}"
        )
    if not 0 < number <= _MOST_CORES:
        raise wrong(f"must be more than 0 and at most {_MOST_CORES}, not {quoted(value)}")
    return float(number)


def _number(value: Any) -> float:
    number = number_in(value)
    if number is None:
        raise wrong(f"must be a number, not {_with_remedy(value)}")
    return float(number)


def _truth(value: Any) -> bool:
    found = value.value if isinstance(value, Scalar) else value
    if not isinstance(found, bool):
        raise wrong(f"must be `true` or `false`, not {quoted(value)}")
    return found


def is_word(value: str) -> bool:
    """Return whether a program takes a text for one word, and not for an option."""
    return not value.startswith("-") and not any(letter.isspace() for letter in value)


def one_or_more(value: Any) -> Any:
    """Return a single value as a list of one."""
    return value if isinstance(value, list | tuple | Mapping) else [value]


def _text(value: str) -> str:
    if not value.strip():
        raise wrong("must not be empty")
    # The system cannot pass it on, neither in arguments nor in variables.
    if "\0" in value:
        raise wrong(f"must not have the character {chr(0)!r} in it")
    return value


def _name(value: str) -> str:
    if len(value) > _LONGEST_NAME:
        raise wrong(f"must have at most {_LONGEST_NAME} characters, not {len(value)}")
    if not _NAME.fullmatch(value):
        raise wrong(
            "must be made of letters, digits, `.`, `_` and `-`, a letter or a digit first, "
            f"not {quoted(value)}"
        )
    return value


def _secret(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        # The value may be the secret itself, so the message must not show it.
        raise wrong("must be the name of an environment variable, never what it holds")
    return value


def _list_of_secrets(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise wrong("must be a list of names of environment variables, such as `[HF_TOKEN]`")
    return value


def fit_name(text: str) -> str:
    """Return a valid name made of any text: other characters become `-`."""
    fit = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")
    return fit[:_LONGEST_NAME] or "document"


def listed_schema(item: Mapping[str, Any]) -> WithJsonSchema:
    """Return the JSON Schema of one value or a list of them."""
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item}]})


Text = Annotated[str, AfterValidator(_text)]
# A text that stands alone is a list of one, so that documents need no brackets.
Texts = Annotated[tuple[Text, ...], BeforeValidator(one_or_more), listed_schema({"type": "string"})]
"""One text, or a list of them."""
Image = Annotated[Text, check_that(is_word, "must be the name of an image")]
_PATTERN = "must have `**` for whole folders only, as in `src/**/*.c`"


def _is_pattern(value: str) -> bool:
    return all(part == "**" for part in value.split("/") if "**" in part)


_Pattern = Annotated[Text, check_that(_is_pattern, _PATTERN)]
Patterns = Annotated[
    tuple[_Pattern, ...], BeforeValidator(one_or_more), listed_schema({"type": "string"})
]
"""One pattern of files, or a list of them."""
Name = Annotated[
    str,
    AfterValidator(_name),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$", "maxLength": _LONGEST_NAME}),
]
Variable = Annotated[
    str,
    check_that(_VARIABLE.fullmatch, "must be a name of letters, digits and `_`, no digit first"),
    WithJsonSchema({"type": "string", "pattern": f"^{_VARIABLE.pattern}$"}),
]
Secrets = Annotated[
    tuple[Annotated[str, AfterValidator(_secret)], ...], BeforeValidator(_list_of_secrets)
]
# Azure ML writes `azureml:NAME`; a site file has the name alone.
Target = Annotated[str, AfterValidator(lambda name: _text(name.removeprefix("azureml:")))]

PositiveInt = Annotated[int, *whole_number(1)]
"""A whole number from 1."""
NonNegativeInt = Annotated[int, *whole_number(0)]
"""A whole number from 0."""
ExitCode = Annotated[int, *whole_number(1, 255)]
GPUS = "gpus"
Ranks = Annotated[
    int | Literal["gpus"],
    BeforeValidator(_ranks),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": GPUS}]}),
]
"""A whole number from 1, or as many as there are GPUs."""


def _number_or_text(example: str, pattern: str) -> WithJsonSchema:
    text = {"type": "string", "pattern": pattern, "examples": [example]}
    return WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, text]})


Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    _number_or_text("1h30m", r"^(?=.)([0-9.]+d)?([0-9.]+h)?([0-9.]+m)?([0-9.]+s)?$"),
]
Bytes = Annotated[
    int, BeforeValidator(_bytes), _number_or_text("2Gi", r"^[0-9]*\.?[0-9]+ ?([kKMGTPE]i?)?B?$")
]
Number = Annotated[float, BeforeValidator(_number), WithJsonSchema({"type": "number"})]
Bool = Annotated[bool, BeforeValidator(_truth), WithJsonSchema({"type": "boolean"})]
Cores = Annotated[float, BeforeValidator(_cores), _number_or_text("500m", r"^[0-9]+m$")]

# pydantic takes a Scalar for text, as it is a subclass of str: it arrives as it was written.
Written = Annotated[str, WithJsonSchema({"type": ["string", "number", "boolean"]})]
"""A text that may look like a number or a truth value: it is taken as it is written."""
Variables = dict[Variable, Written]
"""Environment variables."""
Tags = dict[Text, Written]
