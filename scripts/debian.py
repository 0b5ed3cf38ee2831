"""Packages of Debian that the tests need, installed where that is possible.

Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path


def install(packages: Sequence[str], obstacle: Callable[[], str | None]) -> str | None:
    """Fetch what is missing, if we may; gives what still stands in the way."""
    why = obstacle()
    if why is None or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return why
    variables = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    # Nothing is to start by itself: the tests have daemons of their own.
    with _no_services():
        for command in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *packages],
        ):
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, check=False
            )
            if done.returncode:
                lines = done.stderr.strip().splitlines()
                return f"{' '.join(command)} failed: {lines[-1] if lines else done.returncode}"
    return obstacle()


def add_option(parser: argparse.ArgumentParser) -> None:
    """Let a script be asked for nothing but what it needs."""
    parser.add_argument(
        "--install", action="store_true", help="only fetch what is missing, where that is possible"
    )


def refuse(why: str, chosen: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Say what cannot be had here, and give the exit code: to be told may be all that is asked."""
    print(why, file=sys.stderr)
    return 0 if chosen.install and not environment.get("RANKWISE_REQUIRE_ALL") else 1


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Keep packages from starting their daemons, in the way that Debian has for it."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()
