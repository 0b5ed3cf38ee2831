"""Hosts with a login, checked one by one."""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.compute.finding import Finding
from rankwise.compute.ssh.fleet import machine_at
from rankwise.errors import RankwiseError
from rankwise.site import ComputeChoice


def check_hosts(choice: ComputeChoice) -> Iterator[Finding]:
    """See whether each can be reached and has what is needed."""
    for host in choice.ssh.hosts:
        try:
            machine = machine_at(choice, host)
            found = machine.reach()
        except RankwiseError as failure:
            what, _, remedy = str(failure).partition("; ")
            yield Finding(what=what, is_well=False, remedy=remedy)
            continue
        has = f"{found.cores:g} cores, {found.memory / 2**30:.1f} GiB, {len(found.gpus)} GPUs"
        yield Finding(what=f"{host} answers: {has}; Python {found.version} at {found.python}")
        yield Finding(what=f"{host}: files go to {found.root}")
        tools = ", ".join([*(["uv"] if found.uv else []), *found.engines]) or "none"
        yield Finding(what=f"{host}: for runtimes, beside its Python: {tools}")
        machine.line.close()
