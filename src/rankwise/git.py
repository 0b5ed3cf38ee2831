"""Repositories of git, as far as pipelines need them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from rankwise.errors import ComputeFailure
from rankwise.node.equipment import run

_WITH_LOGIN = re.compile(r"((?:https?|ftps?)://)([^/?#]*)@([^/?#@]+)")
_USER, _PASSWORD = "RANKWISE_GIT_USER", "RANKWISE_GIT_PASSWORD"
# The shell's own printf: no process has the values among its arguments.
_ANSWER = (
    '!f() { test "$1" = get && '
    f'printf \'username=%s\\npassword=%s\\n\' "${_USER}" "${_PASSWORD}"; }}; f'
)


def without_login(repository: str) -> tuple[str, dict[str, str]]:
    """Take user and password out of an address, and give variables that tell git alone of them.

    Git keeps addresses in `.git/config`, and everybody sees the arguments of its processes.
    """
    found = _WITH_LOGIN.match(repository)
    if found is None:
        return repository, {}
    scheme, login, host = found.groups()
    user, _, password = login.partition(":")
    # At first no helper at all: others would write down what works.
    scope = f"credential.{scheme}{host}.helper"
    return f"{scheme}{host}{repository[found.end() :]}", {
        _USER: unquote(user),
        _PASSWORD: unquote(password),
        **_settings((scope, ""), (scope, _ANSWER)),
    }


def _settings(*settings: tuple[str, str]) -> dict[str, str]:
    """Return variables that git takes settings from, after those that are there already."""
    # The user may have set some in the same way: ours come behind them.
    count = os.environ.get("GIT_CONFIG_COUNT", "")
    first = int(count) if count.isdecimal() else 0
    variables = {"GIT_CONFIG_COUNT": str(first + len(settings))}
    for number, (key, value) in enumerate(settings, start=first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def git(
    *arguments: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> str:
    """Run git and give what it says; raises ComputeFailure with its own words."""
    line = ["git", *(["-C", str(folder)] if folder is not None else []), *arguments]
    # Rather than wait for an answer on a terminal, it is to fail.
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", **(environment or {})}
    try:
        done = run(line, seconds, env=environment)
    except subprocess.TimeoutExpired as error:
        raise ComputeFailure(f"git {arguments[0]}: no answer in {seconds} s") from error
    except OSError as error:
        raise ComputeFailure(f"git does not start: {error.strerror}; is it installed?") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise ComputeFailure(f"git {arguments[0]}: {said}")
    return done.stdout


def changes_in(folder: Path) -> list[str]:
    """Name the files that git knows and that differ from what was committed."""
    said = git("status", "--porcelain", "--untracked-files=no", folder=folder)
    return [line[3:] for line in said.splitlines()]


def folder_for(repository: str) -> str:
    """Return the name of the folder that `git clone` would make."""
    return repository.rstrip("/").removesuffix("/.git").rpartition("/")[2].removesuffix(".git")
