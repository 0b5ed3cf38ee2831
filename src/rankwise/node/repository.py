"""Repositories of git: fetched once on a machine, and cloned from there for each attempt.

A store has a folder for each address: `git`, a bare clone, and `lock`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
from collections.abc import Mapping
from functools import partial
from string import Template
from urllib.parse import unquote

from .equipment import run
from .files import Locked, discard

_WITH_LOGIN = re.compile(r"((?:https?|ftps?)://)([^/?#]*)@([^/?#@]+)")
_USER, _PASSWORD = "RANKWISE_GIT_USER", "RANKWISE_GIT_PASSWORD"
# The shell's own printf: no process has the values among its arguments.
_ANSWER = (
    '!f() { test "$1" = get && '
    f'printf \'username=%s\\npassword=%s\\n\' "${_USER}" "${_PASSWORD}"; }}; f'
)
# In a hook of git, these name the user's own repository, whatever folder is meant.
_OF_HOOKS = ("DIR", "WORK_TREE", "INDEX_FILE", "PREFIX", "COMMON_DIR", "OBJECT_DIRECTORY")
# A repository may be large, and the line slow.
_FETCH_SECONDS = 3600.0
# The default branch of a repository, as it was when it was fetched.
DEFAULT = "refs/rankwise/default"


class GitFailure(Exception):
    """Git could not do something; the message has its own words."""


class UnknownRef(GitFailure):
    """A repository has no such branch, tag or commit."""


def without_login(repository: str) -> tuple[str, dict[str, str]]:
    """Take user and password out of an address, and return variables that tell git alone of them.

    Git keeps addresses in `.git/config`, and all users see the arguments of its processes.
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


def call_git(
    *arguments: str,
    folder: str = "",
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> str:
    """Run git and return what it says; raises GitFailure with its own words."""
    line = ["git", *(["-C", folder] if folder else []), *arguments]
    # Rather than wait for an answer on a terminal, it is to fail.
    inherited = os.environ.keys() - {f"GIT_{name}" for name in _OF_HOOKS}
    own = {"GIT_TERMINAL_PROMPT": "0", **(environment or {})}
    environment = {**{name: os.environ[name] for name in inherited}, **own}
    try:
        done = run(line, seconds, env=environment)
    except subprocess.TimeoutExpired as error:
        raise GitFailure(f"git {arguments[0]}: no answer in {seconds} s") from error
    except OSError as error:
        raise GitFailure(f"git does not start: {error.strerror}; is it installed?") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise GitFailure(f"git {arguments[0]}: {said}")
    return done.stdout


def with_values(address: str, values: Mapping[str, str]) -> str:
    """Put variables into an address; raises GitFailure for one that has no value."""
    try:
        return Template(address).substitute(values)
    except (KeyError, ValueError) as error:
        raise GitFailure(f"{address}: no value for the variable {error}") from None


def fetched(store: str, address: str, values: Mapping[str, str], ref: str) -> str:
    """Fetch a repository, and return the commit of a branch, a tag or a commit.

    `values` are for the variables in the address. Raises GitFailure.
    """
    folder = _folder_for(store, address)
    address, login = without_login(with_values(address, values))
    with Locked(f"{folder}/lock"):
        # As often as one likes, also after one that was cut off.
        call_git("init", "--quiet", "--bare", own := f"{folder}/git")
        fetch = partial(call_git, "fetch", "--quiet", folder=own, environment=login)
        # Where none is the default branch, the others are there all the same.
        heads = [f"+HEAD:{DEFAULT}"] * (ref == DEFAULT) + ["+refs/heads/*:refs/heads/*"]
        fetch("--force", "--prune", "--tags", address, *heads, seconds=_FETCH_SECONDS)
        if found := commit_of(own, ref):
            return found
        try:
            # What no branch and no tag has: a commit, or the head of a request to merge.
            fetch(address, ref, seconds=_FETCH_SECONDS)
        except GitFailure:
            raise UnknownRef(f"the repository has no branch, tag or commit {ref!r}") from None
        return commit_of(own, "FETCH_HEAD")


def clone(store: str, address: str, values: Mapping[str, str], commit: str, target: str) -> None:
    """Make a clone with a commit checked out; fetches only what is missing. Raises GitFailure."""
    folder = _folder_for(store, address)
    if not commit_of(own := f"{folder}/git", commit):
        fetched(store, address, values, commit)
    source, login = without_login(with_values(address, values))
    discard(target)
    with Locked(f"{folder}/lock"):
        # Its objects are linked, not copied, where both are on one disk.
        call_git("clone", "--quiet", "--no-checkout", "--local", own, target)
    call_git("remote", "set-url", "origin", source, folder=target)
    call_git("checkout", "--quiet", "--detach", commit, folder=target)
    if os.path.exists(f"{target}/.gitmodules"):
        modules = ("submodule", "update", "--quiet", "--init", "--recursive")
        call_git(*modules, folder=target, environment=login, seconds=_FETCH_SECONDS)


def _folder_for(store: str, address: str) -> str:
    # The address as it was written: the value of a secret in it may change.
    folder = f"{store}/{hashlib.sha256(address.encode()).hexdigest()[:16]}"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def commit_of(folder: str, ref: str, branches: str = "refs/heads") -> str:
    """Return the commit that is meant, a branch before a tag; empty: there is none."""
    for name in (f"{branches}/{ref}", f"refs/tags/{ref}", ref):
        with contextlib.suppress(GitFailure):
            line = ("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
            return call_git(*line, folder=folder).strip()
    return ""
