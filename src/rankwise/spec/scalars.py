"""What YAML 1.2 takes a word without quotes for: nothing, a truth value, a number or text.

YAML 1.1 saw more: `no` was false, `1:30` was 90, `010` was 8. These are text here, or the number
that a reader sees.
"""

from __future__ import annotations

import re

from rankwise.spec.written import Scalar

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTHS = {
    written: value
    for word, value in (("true", True), ("false", False))
    for written in (word, word.capitalize(), word.upper())
}
_WHOLE = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FRACTION = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# Longer ones are no numbers that anybody means, and Python refuses to read the longest.
_LONGEST_NUMBER = 100


def resolve(text: str) -> str | Scalar | None:
    """Tell what a plain word stands for; numbers and truth values keep how they were written."""
    if text in _NULLS:
        return None
    if text in _TRUTHS:
        return Scalar.of(text, _TRUTHS[text])
    if len(text) > _LONGEST_NUMBER:
        return text
    if _WHOLE.fullmatch(text):
        return Scalar.of(text, int(text))
    if _OTHER_BASE.fullmatch(text):
        return Scalar.of(text, int(text, 0))
    if _FRACTION.fullmatch(text):
        return Scalar.of(text, float(text))
    if _NO_NUMBER.fullmatch(text):
        return Scalar.of(text, float(text.replace(".", "")))
    return text
