"""`rankwise notify`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli.options import Run, StoreFolder

if TYPE_CHECKING:
    from rankwise.store import RunRow, Store

_NOT_TOLD = 1


def command(
    run: Run = None,
    *,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="NAME",
            help="Whom to tell: [notify.NAME] in rankwise.toml; may be given several times.",
            show_default=False,
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
    from rankwise.cli.stores import choose_run, open_for_reading, store_folder
    from rankwise.notify.delivery import retry as try_again
    from rankwise.notify.outbox import Outbox

    with open_for_reading(store_folder(store)) as opened:
        if retry:
            return 0 if try_again(Outbox(opened.folder), say=say) else _NOT_TOLD
        chosen = choose_run(opened, run)
        return 0 if tell(opened, chosen, _names(chosen, to or [])) else _NOT_TOLD


def tell(store: Store, run: RunRow, names: list[str]) -> bool:
    """Tell these what became of a run; gives whether all know it now."""
    from rankwise.notify.delivery import deliver
    from rankwise.notify.notice import notice_of
    from rankwise.notify.outbox import Outbox
    from rankwise.report.facts import gather
    from rankwise.site import find_site
    from rankwise.site.choices import MailChoice

    folder = site_folder(run)
    choices = [find_site(folder).notify(name) for name in names]
    is_mail = any(isinstance(choice, MailChoice) for choice in choices)
    notice = notice_of(gather(store, run, now=time.time()), with_files=is_mail)
    return deliver(notice, names, Outbox(store.folder), folder=folder, say=say)


def site_folder(run: RunRow) -> Path:
    """Give the folder whose site file counts for a run: that of its document."""
    return Path(run.source).parent if run.source else Path.cwd()


def say(text: str) -> None:
    """Say something beside what was asked for."""
    print(f"rankwise: {text}", file=sys.stderr)


def _names(run: RunRow, given: list[str]) -> list[str]:
    """Give whom to tell: those who are named, or the only one whom the site file has."""
    from rankwise.errors import InputError
    from rankwise.site import find_site

    if given:
        return given
    site = find_site(site_folder(run))
    if len(site.notified) == 1:
        return list(site.notified)
    known = f"; there are {', '.join(site.notified)}" if site.notified else ""
    raise InputError(f"whom to tell? Say it with --to NAME, [notify.NAME] of {site.file}{known}")
