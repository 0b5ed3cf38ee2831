"""Gives back what was left elsewhere: instances of providers, and folders on hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rankwise.compute.remote.ledger import Entry, Ledger
from rankwise.errors import RankwiseError
from rankwise.site import Site
from rankwise.site.choices import SSH


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What became of one thing."""

    entry: Entry
    trouble: str = ""
    """Why it is still there; empty: it is gone."""


def describe(entry: Entry) -> str:
    """Say what something is, for people."""
    if entry.kind == "instance":
        known = ", ".join(f"{key} {value}" for key, value in entry.about["values"].items())
        state = known or "its id was never heard: it may be there or not"
        return f"instance {entry.name} of {entry.compute}, made for {entry.run} ({state})"
    return f"folder {entry.name} on {entry.about['machine']} ({entry.compute}), of {entry.run}"


def clean(
    entries: Sequence[Entry], ledger: Ledger, site: Site, *, needed: Callable[[Entry], str]
) -> Iterator[Cleaned]:
    """Give everything back that nobody needs; `needed` says who does, or nothing."""
    for entry in entries:
        if who := needed(entry):
            yield Cleaned(entry=entry, trouble=who)
        elif entry.kind == "instance":
            from rankwise.compute.provider.instances import give_back

            yield Cleaned(entry=entry, trouble=give_back(entry, ledger))
        else:
            yield Cleaned(entry=entry, trouble=_remove_folder(entry, ledger, site))


def _remove_folder(entry: Entry, ledger: Ledger, site: Site) -> str:
    """End what an attempt has left on a host, and remove its folder there."""
    from rankwise.compute.ssh.fleet import machine_at

    choice = site.compute(entry.compute)
    if choice.backend != SSH:
        return (
            f"{site.file} has no [compute.{entry.compute}] of hosts any more, by which to get there"
        )
    try:
        machine = machine_at(choice, entry.about["machine"])
        machine.ask("remove", {"root": entry.about["root"], "marker": entry.name})
        machine.line.close()
    except RankwiseError as failure:
        return str(failure)
    ledger.drop(entry.name)
    return ""
