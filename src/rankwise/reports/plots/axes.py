"""Axes: scales, ticks, and numbers beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rankwise.wording import size

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
BYTES = "B"
"""The unit of what is counted in bytes."""
_BYTE_NAMES = {"size", "bytes", "message", "message_size", "msg_size"}


def number_text(value: float, digits: int = 4) -> str:
    """Write a number shortly: `1,234`, `0.0125`, `1.2·10⁸`."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{places}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = f"{value:.{max(0, digits - 2)}e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    sign = "-" if mantissa == "-1" else ""
    return f"{sign}{power}" if mantissa in ("1", "-1") else f"{mantissa}·{power}"


def unit_of(name: str) -> str:
    """Return the unit of a parameter of this name, where that is known."""
    return BYTES if name.lower() in _BYTE_NAMES else ""


def labelled(value: float, *, in_bytes: bool = False) -> str:
    """Write a number for an axis."""
    # Beyond all units of bytes there are powers of ten.
    return size(value) if in_bytes and 0 <= value < 2**50 else number_text(value)


# A logarithmic axis shows more where values differ by more than this factor.
_FACTOR = 20.0
_MOST_TICKS = 7
_MOST_OWN_TICKS = 10
# Ticks that are closer than this, as a share of the axis, would be written over each other.
_CLOSEST = 0.075


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis, from `low` to `high`."""

    low: float
    high: float
    is_log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()

    def at(self, value: float) -> float:
        """Return where a value is: 0 is the low end, 1 the high one."""
        if self.is_log:
            low, high, value = (math.log(one) for one in (self.low, self.high, value))
        else:
            # By halves: the difference of two great numbers may be greater than all numbers.
            low, high, value = self.low / 2, self.high / 2, value / 2
        return (value - low) / (high - low) if high > low else 0.5

    def shows(self, value: float) -> bool:
        """Return whether a value has a place here."""
        return math.isfinite(value) and (value > 0 or not self.is_log)


def axis_for(
    values: Iterable[float],
    *,
    in_bytes: bool = False,
    own_ticks: bool = False,
    is_log: bool | None = None,
) -> Axis:
    """Make an axis for values: a logarithmic one where that shows more, unless it is said which.

    With `own_ticks`, the values themselves are written if they are few. What is not finite does
    not count, nor does what is not positive on a logarithmic axis.
    """
    known = sorted({value for value in values if math.isfinite(value)})
    positive = [value for value in known if value > 0]
    if is_log is None:
        is_log = len(positive) > 1 and known[0] >= 0 and _differ_much(positive, own_ticks)
    if is_log and positive:
        return _log_axis(positive, in_bytes=in_bytes, own_ticks=own_ticks)
    return _linear_axis(known, in_bytes=in_bytes, own_ticks=own_ticks)


def _differ_much(values: Sequence[float], own_ticks: bool) -> bool:
    """Return whether values differ by factors; powers of two, as of ranks, are chosen to do so."""
    if own_ticks and len(values) > 3 and all(map(_is_power_of_two, values)):
        return True
    return values[-1] / values[0] > _FACTOR


def _log_axis(values: Sequence[float], *, in_bytes: bool, own_ticks: bool) -> Axis:
    low, high = values[0], values[-1]
    # One value is in the middle; the greatest numbers have no double.
    if low == high:
        low, high = low / 2, high * 2 if high < 1e307 else high
    if not own_ticks:
        # The least numbers of all have no power of ten below them, the greatest none above.
        low = max((one for one in _steps(low) if 0 < one <= low), default=low)
        high = min((one for one in _steps(high) if high <= one < math.inf), default=high)
    axis = Axis(low=low, high=high, is_log=True)
    # Sizes and numbers of ranks are mostly powers of two.
    base = 2.0 if in_bytes or (own_ticks and all(_is_power_of_two(one) for one in values)) else 10.0
    places = list(values) if own_ticks and len(values) <= _MOST_OWN_TICKS else _powers(axis, base)
    return _with_ticks(axis, places, in_bytes=in_bytes)


def _steps(value: float) -> list[float]:
    power = 10.0 ** math.floor(math.log10(value))
    return [step * power for step in (1, 2, 5, 10)]


def _is_power_of_two(value: float) -> bool:
    return math.frexp(value)[0] == 0.5


def _powers(axis: Axis, base: float) -> list[float]:
    # The logarithm of a power is not exact.
    first = math.ceil(math.log(axis.low, base) - 1e-9)
    last = math.floor(math.log(axis.high, base) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / _MOST_TICKS))
    powers = [base**exponent for exponent in range(first, last + 1, step)]
    # Of few powers, steps between them are written, too.
    if base == 10.0 and math.log10(axis.high) - math.log10(axis.low) < 2.2:
        between = (step * 10.0**power for power in range(first - 1, last + 1) for step in (1, 2, 5))
        # Powers of ten are not exact.
        return [one for one in between if axis.low * 0.999 <= one <= axis.high * 1.001]
    return powers


def _linear_axis(values: Sequence[float], *, in_bytes: bool, own_ticks: bool) -> Axis:
    low, high = (values[0], values[-1]) if values else (0.0, 1.0)
    if low == high:
        low, high = min(low, 0.0), max(high, 0.0) or 1.0
    if own_ticks and 1 < len(values) <= _MOST_OWN_TICKS:
        return _with_ticks(Axis(low=low, high=high), values, in_bytes=in_bytes)
    # From zero where that costs little room, so that lengths can be compared.
    if 0 < low < 0.4 * high:
        low = 0.0
    step = _nice_step(high / 2 - low / 2)
    first, last = math.floor(low / step), math.ceil(high / step)
    places = [at * step for at in range(first, last + 1) if math.isfinite(at * step)]
    low, high = min(low, places[0]), max(high, places[-1])
    return _with_ticks(Axis(low=low, high=high), places, in_bytes=in_bytes)


def _nice_step(half_span: float) -> float:
    # The first step in which people count that makes no more ticks than there is room for.
    rough = half_span / (_MOST_TICKS - 1) * 2
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next((step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough), rough) or (
        half_span or 1.0
    )


def _with_ticks(axis: Axis, places: Iterable[float], *, in_bytes: bool) -> Axis:
    ticks: list[tuple[float, str]] = []
    for place in places:
        if not ticks or axis.at(place) - axis.at(ticks[-1][0]) >= _CLOSEST:
            ticks.append((place, labelled(place, in_bytes=in_bytes)))
    return replace(axis, ticks=tuple(ticks))
