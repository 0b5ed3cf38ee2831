"""Amounts as Kubernetes writes them: `500m`, `2Gi`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankwise.plan import Resources

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:[eE]-?\d+)?)([A-Za-z]*)")
_UNITS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3}
for _power, _letter in enumerate("kMGTPE", 1):
    _UNITS[_letter] = 1000.0**_power
    _UNITS[f"{_letter.upper()}i"] = 1024.0**_power


def number_in(text: str) -> float:
    """Read an amount; 0 for what is none."""
    found = _QUANTITY.fullmatch(text.strip())
    return float(found[1]) * _UNITS[found[2]] if found and found[2] in _UNITS else 0.0


def resources_of(amounts: Mapping[str, str], gpu: str) -> Resources:
    """Read what a node has."""
    return Resources(
        cores=number_in(amounts.get("cpu", "0")),
        memory=int(number_in(amounts.get("memory", "0"))),
        gpus=int(number_in(amounts.get(gpu, "0"))),
    )


def quantities(claim: Resources, gpu: str) -> dict[str, str]:
    """Write what is claimed; what does not matter is left out."""
    found = {}
    if claim.cores:
        thousandths = max(1, round(claim.cores * 1000))
        found["cpu"] = f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)
    if claim.memory:
        found["memory"] = _size(claim.memory)
    if claim.gpus and gpu:
        found[gpu] = str(claim.gpus)
    return found


def _size(size: int) -> str:
    for power, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)
