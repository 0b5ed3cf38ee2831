"""What machines have, and whether that is what something needs."""

from __future__ import annotations

import contextlib
import operator
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.plan import Resources
from rankwise.spec.matrix_tests import COMPARISON, FEATURE

_SIGNS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_GB = 1e9
_GPU = "gpu"
# Words that a machine answers for by itself; others mean what people want them to mean.
_LOOKED_FOR = re.compile(
    r"gpu|linux|darwin|x86_64|aarch64|arm64|ppc64le|riscv64"
    r"|s?sse\w*|avx\w*|amx\w*|fma|f16c|bmi[12]|popcnt|neon|asimd\w*|s[vm]e\w*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a machine has."""

    words: frozenset[str] = frozenset()
    amounts: Mapping[str, float] = field(default_factory=dict)
    """Of `mem` (in GB), `cores` and `gpus`, as far as they are known."""

    def lacks(self, need: str, *, who: str = "it") -> str:
        """Say what is missing, or too much, for one need; empty: nothing is.

        `who` is what the machine is called.
        """
        comparison = COMPARISON.fullmatch(need)
        if comparison is not None:
            name, number = comparison["name"], float(comparison["number"])
            has = self.amounts.get(name)
            if has is None:
                return f"needs {need}, and nobody says what {who} has of that"
            if _SIGNS[comparison["sign"]](has, number):
                return ""
            return f"needs {need}, and {who} has {round(has, 1):g}"
        found = FEATURE.fullmatch(need)
        assert found is not None, need
        has_word = found["word"] in self.words
        if found["minus"]:
            return f"must not have {found['word']}, which {who} has" if has_word else ""
        return "" if has_word else f"needs {need}, which {who} does not have"


def found_here(resources: Resources, *, root: Path = Path("/")) -> Features:
    """Look at what this machine has, beside what is known of its size already."""
    words = {platform.system().lower(), platform.machine().lower(), *_processor(root)}
    if any(word.startswith("avx512") for word in words):
        words.add("avx512")
    if resources.gpus:
        words.add(_GPU)
    return Features(words=frozenset(words), amounts=_amounts(resources))


def stated(features: Iterable[str], resources: Resources | None = None) -> Features:
    """Take what people say of a machine that cannot be looked at."""
    words, amounts = set(), _amounts(resources or Resources())
    for feature in features:
        comparison = COMPARISON.fullmatch(feature)
        if comparison is not None:
            amounts[comparison["name"]] = float(comparison["number"])
        else:
            words.add(feature)
    if amounts.get("gpus"):
        words.add(_GPU)
    return Features(words=frozenset(words), amounts=amounts)


def check_here(said: Iterable[str], here: Features) -> tuple[Features, str]:
    """Compare what people say of this machine with what is found.

    Give what it has, with all that was said, and the first of that which is missing.
    """
    said = list(said)
    missing = next((one for one in said if _can_be_looked_for(one) and here.lacks(one)), "")
    told = stated(said)
    words = here.words | {word for word in told.words if not word.startswith("-")}
    return Features(words=words, amounts={**told.amounts, **here.amounts}), missing


def _can_be_looked_for(feature: str) -> bool:
    return bool(COMPARISON.fullmatch(feature) or _LOOKED_FOR.fullmatch(feature.lstrip("-")))


def _amounts(resources: Resources) -> dict[str, float]:
    known = {
        "mem": resources.memory / _GB,
        "cores": float(resources.cores),
        "gpus": float(resources.gpus),
    }
    # Without a GPU there is none; without memory nobody has said how much.
    return {name: value for name, value in known.items() if value or name == "gpus"}


def _processor(root: Path) -> set[str]:
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() in ("flags", "features"):
                return set(value.split())
    return set()
