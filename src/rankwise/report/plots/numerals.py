"""Numbers as people read them on axes and in tables."""

from __future__ import annotations

import math

from rankwise.report.words import size

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
BYTES = "B"
"""The unit of what is counted in bytes."""
_BYTE_NAMES = {"size", "bytes", "message", "message_size", "msg_size"}


def number(value: float, digits: int = 4) -> str:
    """Write a number shortly: `1,234`, `0.0125`, `1.2·10⁸`."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        return _plain(value, digits)
    mantissa, _, exponent = f"{value:.{max(0, digits - 2)}e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    sign = "-" if mantissa == "-1" else ""
    return f"{sign}{power}" if mantissa in ("1", "-1") else f"{mantissa}·{power}"


def _plain(value: float, digits: int) -> str:
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def unit_of(name: str) -> str:
    """Give the unit of a parameter of this name, where that is known."""
    return BYTES if name.lower() in _BYTE_NAMES else ""


def labelled(value: float, *, in_bytes: bool = False) -> str:
    """Write a number for an axis."""
    if in_bytes and 0 <= value < 2**50:
        return size(value)
    return number(value)
