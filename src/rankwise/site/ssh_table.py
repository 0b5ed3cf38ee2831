"""`[compute.NAME]` of hosts with a login."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankwise.site.choices import SshChoice
from rankwise.site.page import Key, Page
from rankwise.site.values import from_file, read_number, read_text, read_truth, read_words

SSH_KEYS = (
    *("hosts", "options", "config", "folder", "python", "init", "shared", "patience"),
    "oversubscribe",
)
# What we give ourselves, and could not do without.
_OURS = ("ControlMaster", "ControlPath", "ControlPersist", "BatchMode", "RemoteCommand")


def read_ssh(at: Key, table: Mapping[str, Any], page: Page) -> SshChoice:
    """Read what only hosts with a login have."""
    hosts = read_words((*at, "hosts"), table, page)
    if not hosts:
        page.complain(
            at,
            f'[{page.header(at)}] names no hosts: hosts = ["gpu1", "user@gpu2"], as ssh has them',
        )
    for host in hosts:
        if host.startswith("-") or any(letter.isspace() for letter in host):
            page.complain((*at, "hosts"), f'"{host}" is no host')
    options = read_words((*at, "options"), table, page)
    for option in options:
        if any(name.lower() in option.lower() for name in _OURS):
            page.complain((*at, "options"), f'"{option}" is given by rankwise itself')
    texts: dict[str, Any] = {
        name: read_text((*at, name), table, page) for name in ("folder", "python") if name in table
    }
    config = read_text((*at, "config"), table, page) if "config" in table else ""
    patience = read_number((*at, "patience"), table, page, least=1)
    return SshChoice(
        **texts,
        hosts=hosts,
        options=options,
        config=from_file(config, page) if config else "",
        init=read_words((*at, "init"), table, page),
        shared=read_truth((*at, "shared"), table, page),
        patience=600.0 if patience is None else patience,
    )
