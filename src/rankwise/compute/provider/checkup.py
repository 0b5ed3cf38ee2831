"""A provider's command line, checked without making anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from rankwise.compute.finding import Finding
from rankwise.compute.provider.instances import new_name
from rankwise.compute.provider.templates import fill
from rankwise.compute.remote.exchange import exchange
from rankwise.compute.remote.ledger import FOLDER, Ledger
from rankwise.compute.remote.line import last_words
from rankwise.site import ComputeChoice
from rankwise.site.command_table import TEMPLATES

_LIST_SECONDS = 120.0


def check_provider(choice: ComputeChoice, ledger: Ledger) -> Iterator[Finding]:
    """See whether its programs are there, and whether something was left."""
    command = choice.command
    programs = {getattr(command, name)[0] for name in TEMPLATES if getattr(command, name)}
    for program in sorted(programs):
        if place := shutil.which(program):
            yield Finding(what=f"{program} is {place}")
        else:
            remedy = "install the provider's command line, or name it with its folder"
            yield Finding(what=f"{program} is not on PATH", is_well=False, remedy=remedy)
            return
    yield _list_of(choice)
    left = list(ledger.entries(compute=choice.name))
    if left:
        yield Finding(
            what=f"{len(left)} instances are recorded in {FOLDER} as not yet deleted",
            is_well=False,
            is_needed=False,
            remedy="rankwise clean --list  shows them;  rankwise clean  deletes those not in use",
        )


def _list_of(choice: ComputeChoice) -> Finding:
    """Try `list`, which makes nothing and tells whether we are logged in."""
    if not choice.command.list:
        return Finding(
            what="there is no `list`: an instance whose id was never heard cannot be found",
            is_well=False,
            is_needed=False,
            remedy="write how to list instances, with their names",
        )
    said = exchange(fill(choice.command.list, {"name": new_name()}), seconds=_LIST_SECONDS)
    if said is not None and said.exit_code == 0:
        return Finding(what="`list` works")
    why = last_words(said) if said is not None else "no answer"
    return Finding(what=f"`list` fails: {why}", is_well=False, remedy="log in to the provider")
