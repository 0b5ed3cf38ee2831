"""What is done when a run is over, by whoever has driven it to its end: the report, the news.

A run remembers what it was asked to do then, so that it does not matter who is there at its end.
Nothing here fails a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankwise.plan import NOTIFIED, REPORTED

if TYPE_CHECKING:
    from rankwise.plan import Plan
    from rankwise.store import RunRow, Store

_WHEN_COMPLETE = "when-complete"
_DONE = "afterwards"


def remembering(plan: Plan, notified: Sequence[str]) -> Plan:
    """Have the run of a plan remember whom to tell of its end; InputError: nobody is called so."""
    if not notified:
        return plan
    from pathlib import Path

    from rankwise.site import find_site

    site = find_site(Path(plan.source).parent)
    for name in notified:
        site.notify(name)
    return dataclasses.replace(plan, tags={**plan.tags, NOTIFIED: ",".join(notified)})


def is_to_follow(run: RunRow) -> bool:
    """Tell whether anything is to be done when a run is over."""
    return NOTIFIED in run.tags or REPORTED in run.tags


def see_off(store: Store, run: str) -> None:
    """Do what a run that is over was to be followed by, once; all that goes wrong is only said."""
    row = store.run(run)
    names = [name for name in row.tags.get(NOTIFIED, "").split(",") if name]
    is_report_wanted = row.tags.get(REPORTED) == _WHEN_COMPLETE
    folder = store.run_folder(run)
    if not row.state.is_over or not (names or is_report_wanted) or (folder / _DONE).exists():
        return
    from rankwise.cli.notify import say, tell

    try:
        if is_report_wanted:
            _write_report(store, run)
        if names:
            _send_waiting(store)
            tell(store, row, names)
    except Exception as error:
        say(f"{run} is over, but not all that was to follow was done: {error}")
    with contextlib.suppress(OSError):
        (folder / _DONE).touch()


def _write_report(store: Store, run: str) -> None:
    from rankwise.cli.notify import say
    from rankwise.errors import InputError
    from rankwise.report.facts import gather
    from rankwise.report.files import write_whole
    from rankwise.report.html import html_report
    from rankwise.report.pdf import pdf_report

    data = gather(store, store.run(run), now=time.time())
    folder = store.run_folder(run)
    page = write_whole(folder / "report.html", html_report(data).encode())
    say(f"the report is in {page}")
    try:
        write_whole(folder / "report.pdf", pdf_report(data))
    except InputError as error:
        say(f"there is no report.pdf: {error}")


def _send_waiting(store: Store) -> None:
    """Try again what earlier runs could not send."""
    from rankwise.cli.notify import say
    from rankwise.notify.delivery import retry
    from rankwise.notify.outbox import Outbox

    outbox = Outbox(store.folder)
    if outbox.waiting():
        retry(outbox, say=say)
