"""`rankwise report`, `compare`, `trend` and `notify`."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli.options import (
    AsJson,
    Quiet,
    Run,
    StoreFolder,
    choose_as_it_is,
    choose_run,
    open_for_reading,
    store_folder,
    value,
)
from rankwise.errors import InputError

if TYPE_CHECKING:
    from rankwise.reports.comparison import Side
    from rankwise.store import RunRow, Store
    from rankwise.store.samples import SeriesRow

_SHARE = re.compile(r"(?:(?P<metric>.+)=)?(?P<number>[\d.]+)\s*(?P<percent>%?)")


class Gate(StrEnum):
    """What makes the exit code 1."""

    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    NEVER = "never"


_Side = "Runs: an id or a name, a tag KEY=VALUE, a branch, or a commit."


def compare_command(
    a: Annotated[str, typer.Argument(metavar="A", help=_Side, show_default=False)],
    b: Annotated[
        str, typer.Argument(metavar="B", help="Those to compare with A.", show_default=False)
    ],
    *,
    metric: Annotated[
        list[str] | None, value("--metric", "NAME", "Only this one; may be given again.")
    ] = None,
    threshold: Annotated[
        list[str] | None,
        value(
            "--threshold",
            "[METRIC=]SHARE",
            "What counts as a change: 5%, or latency=10% for one metric; may be given again.",
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
    from rankwise.reports.comparison import compare_sides, compared_data

    threshold_of = thresholds(threshold or ())
    with open_for_reading(store_folder(store)) as opened:
        before, after = (side_of(opened, side, last=last, folder=Path.cwd()) for side in (a, b))
        compared = compare_sides(
            opened, before, after, metrics=metric or (), threshold_of=threshold_of
        )
    if as_json:
        print(json.dumps(compared_data(compared), indent=2))
    else:
        from rankwise.reports.terminal.compare import show_compared
        from rankwise.reports.terminal.console import inert_output, make_console

        with inert_output():
            show_compared(make_console(), compared, everything=everything)
    return int(_fails(compared.verdict, fail_on))


def thresholds(given: Sequence[str]) -> Callable[[str], float]:
    """Read thresholds, and give the function that says that of a metric; raises InputError."""
    from rankwise.stats.comparison import THRESHOLD

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


_NOT_TOLD = 1


def notify_command(
    run: Run = None,
    *,
    to: Annotated[
        list[str] | None,
        value(
            "--to",
            "NAME",
            "Whom to tell: [notify.NAME] in rankwise.toml; may be given several times.",
        ),
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Send what has waited in the outbox, and nothing else.")
    ] = False,
    store: StoreFolder = None,
) -> int:
    """Tell somebody what became of a run, by mail or into a chat.

    Mail has the summary, the plots and the report as PDF. What cannot be sent waits in the outbox.
    The exit code is 1 if it does.

    \b
    For example:
      rankwise notify --to team
      rankwise notify osu-sweep-3 --to team --to chat
      rankwise notify --retry
    """
    from rankwise.notify.delivery import Outbox
    from rankwise.notify.delivery import retry as try_again

    with open_for_reading(store_folder(store)) as opened:
        if retry:
            return 0 if try_again(Outbox(opened.folder), say=say) else _NOT_TOLD
        chosen = choose_run(opened, run)
        return 0 if tell(opened, chosen, _names(chosen, to or [])) else _NOT_TOLD


def tell(store: Store, run: RunRow, names: list[str]) -> bool:
    """Send what became of a run to these; return whether all have it."""
    from rankwise.notify.delivery import notify
    from rankwise.reports.model import ReportData

    return notify(ReportData(store=store, run=run, now=time.time()), names, say=say)


def say(text: str) -> None:
    """Say something beside what was asked for."""
    print(f"rankwise: {text}", file=sys.stderr)


def _names(run: RunRow, given: list[str]) -> list[str]:
    """Return whom to tell: those who are named, or the only one whom the site file has."""
    from rankwise.documents.site import find_site
    from rankwise.notify.delivery import site_folder

    if given:
        return given
    site = find_site(site_folder(run))
    if len(site.notified) == 1:
        return list(site.notified)
    known = f"; there are {', '.join(site.notified)}" if site.notified else ""
    raise InputError(f"no recipient: use --to NAME, with [notify.NAME] in {site.file}{known}")


_SCREEN = "-"


def report_command(
    run: Run = None,
    *,
    html: Annotated[
        str | None, value("--html", "FILE", "One HTML file that needs nothing else.")
    ] = None,
    pdf: Annotated[str | None, value("--pdf", "FILE", "A document to hand on or print.")] = None,
    csv: Annotated[
        str | None, value("--csv", "FILE", "A row for each value, and case without.")
    ] = None,
    json: Annotated[str | None, value("--json", "FILE", "All of it, for programs.")] = None,
    junit: Annotated[
        str | None, value("--junit", "FILE", "Results as JUnit XML, for a CI.")
    ] = None,
    markdown: Annotated[str | None, value("--markdown", "FILE", "A summary in Markdown.")] = None,
    format_: Annotated[
        str | None, value("--format", "NAME", "Any format, also of another package.")
    ] = None,
    output: Annotated[
        str | None, value("--output", "FILE", "The file of --format; without it, the screen.")
    ] = None,
    quiet: Quiet = False,
    store: StoreFolder = None,
) -> None:
    """Write a report of a run, for people or programs.

    What failed and why, plots, tables, and how to repeat each case.

    Without a file, an HTML report is written beside the run's other files. A file named - is the
    screen.

    \b
    For example:
      rankwise report --html report.html --pdf report.pdf
      rankwise report osu-sweep-3 --csv values.csv
      rankwise report --json - | jq .counts
    """
    from rankwise.reports.model import ReportData, write_report

    if output is not None and format_ is None:
        raise InputError(f"--output {output}: name the format, too, with --format NAME")
    with open_for_reading(store_folder(store)) as opened:
        chosen = choose_as_it_is(opened, run)
        wanted = {"html": html, "pdf": pdf, "csv": csv, "json": json}
        wanted |= {"junit": junit, "markdown": markdown}
        places = [(name, place) for name, place in wanted.items() if place is not None]
        if format_ is not None:
            places.append((format_, output or _SCREEN))
        if not places:
            places = [("html", str(opened.run_folder(chosen.id) / "report.html"))]
        data = ReportData(store=opened, run=chosen, now=time.time())
        for name, place in places:
            if place != _SCREEN:
                data = data.with_parts(folder=Path(place).absolute().parent)
            _write(write_report(data, name), place)
            if place != _SCREEN and not quiet:
                _say(place, is_screen_taken=any(place == _SCREEN for _, place in places))


def _write(content: bytes, place: str) -> None:
    """Write a file beside its place, then put it there: whoever reads finds all of it."""
    if place == _SCREEN:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    from rankwise.files import write_whole

    write_whole(Path(place), content)


def _say(place: str, *, is_screen_taken: bool) -> None:
    """Say what was written, where it does not get into what is read by a program."""
    from rankwise.wording import short_path, size

    stream = sys.stderr if is_screen_taken else sys.stdout
    print(f"{short_path(place)} ({size(Path(place).stat().st_size)})", file=stream)


_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_TAG = re.compile(r"(?P<name>[\w.-]+)=(?P<value>.*)")
# So many runs are looked through; older ones are not what anybody compares with today.
_MOST = 2000
_GIT_SECONDS = 10.0


def side_of(store: Store, given: str, *, last: int, folder: Path) -> Side:
    """Return the runs that are meant; of a tag or a branch the last ones, of a commit all.

    Raises InputError if there are none.
    """
    from rankwise.reports.comparison import Side

    return Side(given=given, runs=_runs(store, given, last=last, folder=folder))


def _runs(store: Store, given: str, *, last: int, folder: Path) -> list[RunRow]:
    runs = store.runs(_MOST)

    def having(matches: Callable[[RunRow], bool], most: int = _MOST) -> list[RunRow]:
        return [run for run in runs if matches(run)][:most]

    if tag := _TAG.fullmatch(given):
        if found := having(lambda run: run.tags.get(tag["name"]) == tag["value"], last):
            return found
        raise InputError(f"{store.path}: no run has the tag {given}")
    if found := having(lambda run: run.id == given):
        return found
    if found := having(lambda run: run.tags.get("git.branch") == given, last):
        return found
    for commit in filter(None, (given, _resolved(given, folder))):
        if _COMMIT.fullmatch(commit) and (found := having(_is_at(commit))):
            return found
    return [store.find_run(given)]


def _is_at(commit: str) -> Callable[[RunRow], bool]:
    def is_at(run: RunRow) -> bool:
        is_clean = "git.dirty" not in run.tags
        return is_clean and run.tags.get("git.commit", "").startswith(commit)

    return is_at


def _resolved(given: str, folder: Path) -> str:
    """Return the commit that git knows by this name here: HEAD~1, v1.0; empty: none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--verify", "-q", f"{given}^{{commit}}", "--"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.split("\n")[0].strip() if done.returncode == 0 else ""


def trend_command(
    metric: Annotated[
        str, typer.Argument(metavar="METRIC", help="Such as latency.", show_default=False)
    ],
    *,
    name: Annotated[
        str | None, typer.Option("--name", help="Only of the document of this name.")
    ] = None,
    case: Annotated[
        str | None, value("--case", "TEXT", "Only cases and points with this in them.")
    ] = None,
    last: Annotated[int, typer.Option("--last", min=1, help="So many runs at most.")] = 200,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Show how a metric was in all runs, and where it has changed.

    For each change, the commits are named that may be to blame.

    \b
    For example:
      rankwise trend latency --case size=8
    """
    from rankwise.reports.measurements import trend_data, trend_of

    with open_for_reading(store_folder(store)) as opened:
        chosen = _series(opened, metric, name, case)
        trends = [trend_of(opened, series, last_runs=last) for series in chosen]
    if as_json:
        print(json.dumps([trend_data(trend) for trend in trends], indent=2))
        return
    from rankwise.reports.terminal.compare import show_trends
    from rankwise.reports.terminal.console import inert_output, make_console

    with inert_output():
        show_trends(make_console(), trends)


def _series(store: Store, metric: str, name: str | None, case: str | None) -> list[SeriesRow]:
    """Return the series that are meant; raises InputError with those that there are."""
    from rankwise.reports.terminal.compare import place
    from rankwise.wording import name_nearest

    everything = store.series(metric=metric, name=name)
    if not everything:
        known = sorted({series.metric for series in store.series(name=name)})
        of = f" of {name}" if name else ""
        hint = name_nearest(metric, known) if known else "Nothing was measured yet."
        raise InputError(f"{store.path}: there is no metric {metric!r}{of}. {hint}")
    found = [series for series in everything if not case or case in place(series)]
    if not found:
        raise InputError(
            f"{store.path}: no case or point of {metric} has {case!r} in it. There are, among "
            f"others: {', '.join(place(series) or '(none)' for series in everything[:5])}"
        )
    return found
