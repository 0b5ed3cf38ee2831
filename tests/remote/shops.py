"""Shops whose documents run on hosts or instances, and what is left there."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from sshd import Sshd

from rankwise.runtimes.uv import settings_for_uv
from tests.acceptance.jobs import Said, Shop, opened
from tests.backends.places import provider_table, wait_until

LIMIT_SECONDS = 120.0


@contextlib.contextmanager
def ssh_shop(folder: Path, server: Sshd, more: str = "", hosts: str = '"here"') -> Iterator[Shop]:
    """Open a shop that has a compute `hosts`, whose files go to `there` beside it."""
    with opened(folder / "shop") as shop:
        shop.write(
            "rankwise.toml",
            f'[compute.hosts]\nbackend = "ssh"\nhosts = [{hosts}]\nconfig = "{server.config}"\n'
            f'folder = "{folder / "there"}"\npython = "{sys.executable}"\n{more}\n',
        )
        yield shop


@contextlib.contextmanager
def cloud_shop(folder: Path, more: str = "") -> Iterator[Shop]:
    """Open a shop that has a compute `cloud`, whose instances are folders of `cloud` beside it."""
    (folder / "cloud").mkdir()
    with opened(folder / "shop") as shop:
        table = provider_table(folder / "cloud", more)
        shop.write("rankwise.toml", f"[compute.cloud]\n{table}")
        yield shop


def gets_packages() -> str:
    """Write `init` of a table: how this machine gets packages, which others know by themselves."""
    index = {n: v for n, v in os.environ.items() if n.startswith(("UV_", "PIP_", "SSL_"))}
    index |= {n: v for n, v in os.environ.items() if n.lower().endswith("_proxy")}
    index |= settings_for_uv(os.environ)
    return f"init = {json.dumps([f'export {n}={shlex.quote(v)}' for n, v in index.items()])}"


def job(command: str, compute: str = "hosts", more: str = "") -> str:
    return f"type: command\nname: job\ncompute: {compute}\ncommand: >-\n  {command}\n{more}\n"


def run(shop: Shop, text: str, *options: str) -> Said:
    (shop.folder / "job.yaml").write_text(text)
    return shop.rankwise("run", "job.yaml", *options, seconds=LIMIT_SECONDS)


def left_on_hosts(folder: Path) -> list[str]:
    """Name the folders of attempts that are on the hosts, but for those that only say never."""
    places = (folder / "there" / "attempts").glob("*")
    return [one.name for one in places if one.is_dir() and [*one.iterdir()] != [one / "claim"]]


def instances(folder: Path) -> list[str]:
    return [one.name for one in (folder / "cloud").glob("i-*")]


def recorded(shop: Shop) -> list[str]:
    """Name what is written down as being elsewhere."""
    return [one.stem for one in (shop.folder / ".rankwise" / "elsewhere").glob("*.json")]


def kill_after(pid: int, shop: Shop, seconds: float) -> None:
    """Kill a client at a moment after it has a run."""
    wait_until("it has a run", (shop.folder / ".rankwise/runs/job-1").exists)
    time.sleep(seconds)
    os.killpg(pid, signal.SIGKILL)
