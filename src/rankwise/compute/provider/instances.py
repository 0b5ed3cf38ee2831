"""Instances of a provider: written down before they are made, and until they are gone."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rankwise.compute.provider.templates import capture, fill, names_in
from rankwise.compute.remote.exchange import exchange
from rankwise.compute.remote.ledger import Entry, Ledger
from rankwise.compute.remote.line import Said, last_words
from rankwise.errors import ComputeFailure
from rankwise.site import ComputeChoice

_CALL_SECONDS = 600.0
_TRIES, _AGAIN_SECONDS = 3, 1.0
_READY_SECONDS, _LATEST_READY_SECONDS = 0.2, 10.0


def new_name() -> str:
    """Give a name that nothing has: providers take letters, digits and dashes."""
    return f"rankwise-{secrets.token_hex(6)}"


class Instances:
    """Makes instances for one run, and deletes them."""

    def __init__(self, choice: ComputeChoice, ledger: Ledger, run: str) -> None:
        self._choice, self._ledger, self._run = choice, ledger, run
        self._command = choice.command

    def make(self, name: str, is_wanted: Callable[[], bool]) -> Mapping[str, str]:
        """Make an instance, wait until it can be used, and give what is known of it.

        ComputeFailure: it cannot be had. Whatever was made of it stays written down.
        """
        about = {
            "state": "wanted",
            "values": {},
            "delete": list(self._command.delete),
            "list": list(self._command.list),
            "capture": dict(self._command.capture),
        }
        # The intent first: whatever happens next, it can be found out whether it was carried out.
        self._note(name, about)
        words = fill(self._command.create, {"name": name})
        said = exchange(words, seconds=self._command.create_seconds)
        if said is None or said.exit_code:
            raise ComputeFailure(
                f"{self._choice.name}: `create` failed: "
                f"{last_words(said) if said is not None else 'it took too long'}"
            )
        found = capture(dict(self._command.capture), said.output.decode(errors="replace"), name)
        if found is None:
            raise ComputeFailure(
                f"{self._choice.name}: what `create` has written has not all that `capture` looks "
                f"for: {last_words(said)}"
            )
        self._note(name, {**about, "state": "made", "values": found})
        values = {"name": name, **found}
        self._wait_until_ready(values, is_wanted)
        return values

    def _note(self, name: str, about: Mapping[str, Any]) -> None:
        self._ledger.put(
            Entry(
                name=name,
                kind="instance",
                compute=self._choice.name,
                run=self._run,
                about=about,
            )
        )

    def _wait_until_ready(self, values: Mapping[str, str], is_wanted: Callable[[], bool]) -> None:
        if not self._command.ready:
            return
        words = fill(self._command.ready, values)
        deadline = time.monotonic() + self._command.ready_seconds
        pause = _READY_SECONDS
        while True:
            said = exchange(words, seconds=_CALL_SECONDS)
            if said is not None and said.exit_code == 0:
                return
            if time.monotonic() > deadline or not is_wanted():
                why = last_words(said) if said is not None else "no answer"
                raise ComputeFailure(f"{values['name']} was made, but is not ready: {why}")
            time.sleep(pause)
            pause = min(pause * 1.5, _LATEST_READY_SECONDS)


def is_listed(entry: Entry) -> bool:
    """Ask the provider whether there is an instance of that name.

    ComputeFailure: nobody can tell, for there is no `list`, or it fails.
    """
    return entry.name in _listing(entry)


def _find(entry: Entry) -> dict[str, str] | None:
    """Ask the provider for what was never heard of an instance; None: there is none."""
    output = _listing(entry)
    if entry.name not in output:
        return None
    found = capture(entry.about["capture"], output, entry.name)
    if found is None:
        raise ComputeFailure(
            f"{entry.name} is there, and what `list` writes has not all that `capture` looks for"
        )
    return found


def _listing(entry: Entry) -> str:
    words = entry.about["list"]
    if not words:
        raise ComputeFailure(
            f"{entry.name} may have been made, and nothing says how to find out: write `list` in "
            f"the table of {entry.compute}, or look for it yourself"
        )
    said = _call(fill(words, {"name": entry.name}))
    if said is None or said.exit_code:
        why = last_words(said) if said is not None else "no answer"
        raise ComputeFailure(f"{entry.compute}: `list` failed: {why}")
    return said.output.decode(errors="replace")


def give_back(entry: Entry, ledger: Ledger) -> str:
    """Delete an instance that may be there, and take it out of the ledger once it is gone.

    Gives what is in the way; empty: it is gone. Idempotent, and any client may do it.
    """
    try:
        values = {"name": entry.name, **entry.about["values"]}
        if names_in(entry.about["delete"]) - values.keys():
            found = _find(entry)
            if found is None:
                ledger.drop(entry.name)
                return ""
            values |= found
        why = _delete(entry, fill(entry.about["delete"], values))
    except ComputeFailure as failure:
        why = str(failure)
    if not why:
        ledger.drop(entry.name)
    return why


def _delete(entry: Entry, words: Sequence[str]) -> str:
    """Call `delete` until it succeeds, or `list` has the instance no longer."""
    why = ""
    for number in range(_TRIES):
        if number:
            time.sleep(_AGAIN_SECONDS * number)
        said = _call(words)
        if said is not None and said.exit_code == 0:
            return ""
        why = last_words(said) if said is not None else "no answer"
        with contextlib.suppress(ComputeFailure):
            if not is_listed(entry):
                return ""
    return f"`delete` failed {_TRIES} times: {why}"


def _call(words: Sequence[str]) -> Said | None:
    return exchange(words, seconds=_CALL_SECONDS)


def give_all_back(entries: Sequence[Entry], ledger: Ledger) -> dict[str, str]:
    """Delete many at once; gives what was in the way, by their names."""
    troubles: dict[str, str] = {}

    def work(entry: Entry) -> None:
        if why := give_back(entry, ledger):
            troubles[entry.name] = why

    threads = [threading.Thread(target=work, args=(entry,), daemon=True) for entry in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return troubles
