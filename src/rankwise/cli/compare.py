"""`rankwise compare`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rankwise.cli.options import AsJson, StoreFolder
from rankwise.errors import InputError

_SHARE = re.compile(r"(?:(?P<metric>.+)=)?(?P<number>[\d.]+)\s*(?P<percent>%?)")


class Gate(StrEnum):
    """What makes the exit code 1."""

    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    NEVER = "never"


_Side = "Runs: an id or a name, a tag KEY=VALUE, a branch, or a commit."


def command(
    a: Annotated[str, typer.Argument(metavar="A", help=_Side, show_default=False)],
    b: Annotated[
        str, typer.Argument(metavar="B", help="Those to compare with A.", show_default=False)
    ],
    *,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="Only this one; may be given again."),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold",
            metavar="[METRIC=]SHARE",
            help="What counts as a change: 5%, or latency=10% for one metric; may be given again.",
        ),
    ] = None,
    last: Annotated[
        int, typer.Option("--last", min=1, help="So many runs of a branch or a tag at most.")
    ] = 5,
    fail_on: Annotated[
        Gate, typer.Option("--fail-on", help="What makes the exit code 1, for a CI.")
    ] = Gate.REGRESSED,
    everything: Annotated[
        bool, typer.Option("--all", help="Show all series, however many there are.")
    ] = False,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> int:
    """Say whether B is slower than A, or that nobody can know.

    Each metric of each case has improved, regressed, or is unchanged, or it is inconclusive.

    \b
    For example:
      rankwise compare main HEAD
      rankwise compare osu-1 osu-2 --metric latency --threshold 3%
    """
    from rankwise.cli.sides import side_of
    from rankwise.cli.stores import open_for_reading, store_folder
    from rankwise.report.comparison import compare_sides, compared_data

    threshold_of = thresholds(threshold or ())
    with open_for_reading(store_folder(store)) as opened:
        before, after = (side_of(opened, side, last=last, folder=Path.cwd()) for side in (a, b))
        compared = compare_sides(
            opened, before, after, metrics=metric or (), threshold_of=threshold_of
        )
    if as_json:
        print(json.dumps(compared_data(compared), indent=2))
    else:
        from rankwise.report.terminal import make_console
        from rankwise.report.terminal_compare import show_compared

        show_compared(make_console(), compared, everything=everything)
    return int(_fails(compared.verdict, fail_on))


def thresholds(given: Sequence[str]) -> Callable[[str], float]:
    """Read thresholds, and give the function that says that of a metric; raises InputError."""
    from rankwise.stats.compare import THRESHOLD

    shares: dict[str, float] = {"": THRESHOLD}
    for text in given:
        found = _SHARE.fullmatch(text.strip())
        try:
            number = float(found["number"]) if found else math.nan
        except ValueError:
            number = math.nan
        share = number / 100 if found and found["percent"] else number
        if not 0 < share < 1:
            raise InputError(
                f"--threshold {text}: it must be a share such as 5% or 0.05, for all metrics, or "
                "latency=5% for one"
            )
        shares[found["metric"] or "" if found else ""] = share
    return lambda metric: shares.get(metric, shares[""])


def _fails(verdict: str, gate: Gate) -> bool:
    bad = {Gate.NEVER: (), Gate.REGRESSED: ("regressed",)}
    return verdict in bad.get(gate, ("regressed", "inconclusive"))
