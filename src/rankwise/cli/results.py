"""`rankwise report`, `compare`, `trend` and `notify`."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.cli import options
from rankwise.errors import ComputeFailure, InputError
from rankwise.git import git

if TYPE_CHECKING:
    from rankwise.store import RunRow, Store
    from rankwise.store.samples import SeriesRow

_SHARE = re.compile(r"(?:(?P<metric>.+)=)?(?P<number>\d+\.?\d*|\.\d+)\s*(?P<percent>%?)")


class Gate(StrEnum):
    """What makes the exit code 1."""

    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    NEVER = "never"


def compare_command(
    a: str,
    b: str,
    *,
    metric: list[str] | None = None,
    threshold: list[str] | None = None,
    last: options.Positive = 5,
    fail_on: Gate = Gate.REGRESSED,
    all_: bool = False,
    json_: options.AsJson = False,
    store: options.StoreFolder = None,
) -> int:
    """Compare runs: faster, slower, unchanged or inconclusive.

    Each metric of each case of B has improved, regressed, or is unchanged against A, or it is
    inconclusive.

    Arguments:
      A  Runs: an id or a name, a tag KEY=VALUE, a branch, or a commit.
      B  Those to compare with A.

    Options:
      --metric NAME               Only this one; may be given again.
      --threshold [METRIC=]SHARE  What counts as a change: 5%, or latency=10% for one metric; may
                                  be given again.
      --last N                    So many runs of a branch or a tag at most.
      --fail-on                   What makes the exit code 1, for a CI.
      --all                       Show all series, however many there are.

    Examples:
      rankwise compare main HEAD
      rankwise compare osu-1 osu-2 --metric latency --threshold 3%
    """
    from rankwise.reports.comparison import Side, compare_sides, compared_data

    threshold_of = thresholds(threshold or ())
    with options.open_for_reading(options.store_folder(store)) as opened:
        before, after = (Side(given=one, runs=runs_of(opened, one, last=last)) for one in (a, b))
        metrics = metric or ()
        compared = compare_sides(opened, before, after, metrics=metrics, threshold_of=threshold_of)
    if json_:
        print(json.dumps(compared_data(compared), indent=2))
    else:
        from rankwise.reports.terminal.compare import show_compared
        from rankwise.reports.terminal.console import inert_output, make_console

        with inert_output():
            show_compared(make_console(), compared, everything=all_)
    bad = {Gate.REGRESSED: ("regressed",), Gate.INCONCLUSIVE: ("regressed", "inconclusive")}
    return int(compared.verdict in bad.get(fail_on, ()))


def thresholds(given: Sequence[str]) -> Callable[[str], float]:
    """Return a function from a metric to its threshold; raises InputError."""
    from rankwise.stats.comparison import THRESHOLD

    shares: dict[str, float] = {"": THRESHOLD}
    for text in given:
        found = _SHARE.fullmatch(text.strip())
        share = float(found["number"]) / (100 if found["percent"] else 1) if found else 0
        if found is None or not 0 < share < 1:
            raise InputError(
                f"--threshold {text}: it must be a share such as 5% or 0.05, for all metrics, or "
                "latency=5% for one"
            )
        shares[found["metric"] or ""] = share
    return lambda metric: shares.get(metric, shares[""])


def notify_command(
    run: options.Run = None,
    *,
    to: list[str] | None = None,
    retry: bool = False,
    store: options.StoreFolder = None,
) -> int:
    """Send a run's result by mail or chat.

    Mail has the summary, the plots and the report as PDF. What cannot be sent waits in the outbox,
    and the exit code is 1.

    Options:
      --to NAME  A recipient: [notify.NAME] in rankwise.toml; may be given several times.
      --retry    Send what waits in the outbox, and nothing else.

    Examples:
      rankwise notify --to team
      rankwise notify osu-sweep-3 --to team --to chat
      rankwise notify --retry
    """
    from rankwise.notify.delivery import Outbox
    from rankwise.notify.delivery import retry as try_again

    with options.open_for_reading(options.store_folder(store)) as opened:
        if retry:
            return int(not try_again(Outbox(opened.folder), say=say))
        # Not refreshed: what is stored is sent, also of a run that still goes on.
        chosen = options.choose_run(opened, run)
        return int(not send_result(opened, chosen, to or _only_recipient(chosen)))


def send_result(store: Store, run: RunRow, names: list[str]) -> bool:
    """Send a run's result to these recipients; return whether all have it."""
    from rankwise.notify.delivery import notify
    from rankwise.reports.model import ReportData

    return notify(ReportData(store=store, run=run, now=time.time()), names, say=say)


def say(text: str) -> None:
    """Print something on standard error, beside what was asked for."""
    print(f"rankwise: {text}", file=sys.stderr)


def _only_recipient(run: RunRow) -> list[str]:
    """Return the recipient of the site file; raises InputError if it has not exactly one."""
    from rankwise.documents.site import site_of

    site = site_of(run.source)
    if len(site.notified) == 1:
        return list(site.notified)
    known = f"; there are {', '.join(site.notified)}" if site.notified else ""
    raise InputError(f"no recipient: use --to NAME, with [notify.NAME] in {site.file}{known}")


def report_command(
    run: options.Run = None,
    *,
    html: str | None = None,
    pdf: str | None = None,
    csv: str | None = None,
    json_: str | None = None,
    junit: str | None = None,
    markdown: str | None = None,
    format_: str | None = None,
    output: str | None = None,
    quiet: options.Quiet = False,
    store: options.StoreFolder = None,
) -> None:
    """Write a report of a run, for people or programs.

    What failed and why, plots, tables, and how to repeat each case. Without a file, an HTML report
    is written beside the run's other files. A file named - is standard output.

    Options:
      --html FILE      One HTML file that needs nothing else.
      --pdf FILE       A document to hand on or print.
      --csv FILE       A row for each value, and for each case without one.
      --json FILE      All of it, for programs.
      --junit FILE     Results as JUnit XML, for a CI.
      --markdown FILE  A summary in Markdown.
      --format NAME    Any format, also of another package.
      --output FILE    The file of --format; without it, standard output.

    Examples:
      rankwise report --html report.html --pdf report.pdf
      rankwise report osu-sweep-3 --csv values.csv
      rankwise report --json - | jq .counts
    """
    from rankwise.reports.model import ReportData, write_report
    from rankwise.wording import short_path, size

    if output is not None and format_ is None:
        raise InputError(f"--output {output}: name its format, too: --format NAME")
    with options.open_for_reading(options.store_folder(store)) as opened:
        chosen = options.choose_refreshed(opened, run)
        wanted = {"html": html, "pdf": pdf, "csv": csv, "json": json_}
        wanted |= {"junit": junit, "markdown": markdown}
        places = [(name, place) for name, place in wanted.items() if place is not None]
        if format_ is not None:
            places.append((format_, output or STDOUT))
        places = places or [("html", str(opened.run_folder(chosen.id) / "report.html"))]
        data = ReportData(store=opened, run=chosen, now=time.time())
        # What is printed for people does not get into what a program reads.
        news = sys.stderr if any(place == STDOUT for _, place in places) else sys.stdout
        for name, place in places:
            if place == STDOUT:
                write_report_to(place, write_report(data, name))
                continue
            # Links in a report lead from its own folder to the logs.
            data = data.with_parts(folder=Path(place).absolute().parent)
            write_report_to(place, write_report(data, name))
            if not quiet:
                print(f"{short_path(place)} ({size(Path(place).stat().st_size)})", file=news)


STDOUT = "-"
"""The name of a file that stands for standard output."""


def write_report_to(place: str, content: bytes) -> None:
    """Write a whole file at once, or to standard output, after what was printed before."""
    if place == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
    else:
        from rankwise.files import write_whole

        write_whole(Path(place), content)


# Git shortens commits to seven digits at least; fewer could be a word.
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_TAG = re.compile(r"(?P<name>[\w.-]+)=(?P<value>.*)")
# So many runs are searched: older ones are hardly what is compared with today.
_MOST = 2000
# A repository may be on a file system that hangs.
_GIT_SECONDS = 10.0


def runs_of(store: Store, given: str, *, last: int) -> list[RunRow]:
    """Return the runs that are meant: of a tag or a branch the last ones, of a commit all.

    Raises InputError if there are none.
    """
    runs = store.runs(_MOST)

    def having(name: str, value: str) -> list[RunRow]:
        return [run for run in runs if run.tags.get(name) == value][:last]

    # What is meant is found by its form: a name of a run has no `=`, a commit is hexadecimal.
    if tag := _TAG.fullmatch(given):
        if found := having(tag["name"], tag["value"]):
            return found
        raise InputError(f"{store.path}: no run has the tag {given}")
    if found := [run for run in runs if run.id == given] or having("git.branch", given):
        return found
    for commit in filter(_COMMIT.fullmatch, (given, _resolved(given))):
        # Of code with changes that are not committed, the commit says too little.
        clean = [run for run in runs if "git.dirty" not in run.tags]
        if found := [run for run in clean if run.tags.get("git.commit", "").startswith(commit)]:
            return found
    return [store.find_run(given)]


def _resolved(given: str) -> str:
    """Return the commit that git knows by this name here: HEAD~1, v1.0; empty: none."""
    try:
        # `^{commit}` leads from a tag to its commit; with `--` a file is no revision.
        words = ("rev-parse", "--verify", "-q", f"{given}^{{commit}}", "--")
        return git(*words, seconds=_GIT_SECONDS).split("\n")[0].strip()
    except (ComputeFailure, ValueError):
        return ""


def trend_command(
    metric: str,
    *,
    name: str | None = None,
    case: str | None = None,
    last: options.Positive = 200,
    json_: options.AsJson = False,
    store: options.StoreFolder = None,
) -> None:
    """Show how a metric was in all runs, and where it has changed.

    For each change, the commits are named that may have caused it.

    Arguments:
      METRIC  Such as latency.

    Options:
      --name NAME  Only of the document of this name.
      --case TEXT  Only cases and points with this in them.
      --last N     So many runs at most.

    Examples:
      rankwise trend latency
      rankwise trend latency --case size=8 --last 50
    """
    from rankwise.reports.measurements import history_of, trend_data

    with options.open_for_reading(options.store_folder(store)) as opened:
        chosen = _series(opened, metric, name, case)
        trends = [(series, history_of(opened, series, last_runs=last)) for series in chosen]
    if trouble := next((trend.trouble for _, trend in trends if trend.trouble), ""):
        raise InputError(trouble)
    if json_:
        print(json.dumps([trend_data(*one) for one in trends], indent=2))
        return
    from rankwise.reports.terminal.compare import show_trend
    from rankwise.reports.terminal.console import inert_output, make_console

    console = make_console()
    with inert_output():
        for number, (series, trend) in enumerate(trends):
            if number:
                console.print()
            show_trend(console, series, trend)


def _series(store: Store, metric: str, name: str | None, case: str | None) -> list[SeriesRow]:
    """Return the series that are meant; InputError names those that exist."""
    from rankwise.reports.terminal.compare import place
    from rankwise.wording import name_nearest

    everything = store.series(metric=metric, name=name)
    if not everything:
        known = sorted({series.metric for series in store.series(name=name)})
        of = f" of {name}" if name else ""
        hint = name_nearest(metric, known) if known else "No run has measured anything yet."
        raise InputError(f"{store.path}: there is no metric {metric!r}{of}. {hint}")
    found = [series for series in everything if not case or case in place(series)]
    if not found:
        raise InputError(
            f"{store.path}: no case or point of {metric} has {case!r} in it. There are, for "
            f"example: {', '.join(place(series) or '(none)' for series in everything[:5])}"
        )
    return found
