"""Machines that a provider's own command line makes and takes back."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import shlex
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import IO, Any

from rankwise.backends.base import UNLIMITED, BackendFacts, Update, Updates
from rankwise.backends.remote.backend import RemoteBackend, fits
from rankwise.backends.remote.connection import LineAway, Machine, Said, exchange, last_words
from rankwise.backends.remote.host import Board, Host, Ways
from rankwise.backends.remote.tracked import Tracked, TrackedInstance
from rankwise.checks.json_path import find
from rankwise.documents.site_models import CommandConfig, ComputeConfig, is_path
from rankwise.errors import ComputeFailure, RankwiseError, StoreFailure
from rankwise.plan import Resources, Task, claim_of

_NAME = re.compile(r"\$\{\{\s*(\w+)\s*\}\}")


def names_in(words: Sequence[str]) -> set[str]:
    """Name what a command line has to be told."""
    return {name for word in words for name in _NAME.findall(word)}


def fill(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Put values in their places; each stays within its word, whatever it has in it.

    LookupError: there is no value of that name.
    """
    return [_NAME.sub(lambda found: values[found[1]], word) for word in words]


def capture(rules: Mapping[str, str], output: str, name: str) -> dict[str, str] | None:
    """Find the values in what a command has written; None: one of them is not there.

    A rule that begins with `$` is a path into JSON; of a list, the entry counts that has the name
    in it. Others are patterns with a group, in which `${{name}}` stands for the name.
    """
    found = {}
    for key, rule in rules.items():
        read = _in_json if is_path(rule) else _in_text
        value = read(rule, output, name)
        if value is None:
            return None
        found[key] = value
    return found


def _in_text(rule: str, output: str, name: str) -> str | None:
    pattern = _NAME.sub(lambda found: re.escape(name) if found[1] == "name" else found[0], rule)
    match = re.search(pattern, output, re.MULTILINE)
    return match[1] if match else None


def _in_json(rule: str, output: str, name: str) -> str | None:
    data = _json_in(output)
    if isinstance(data, list):
        own = [one for one in data if name in json.dumps(one)]
        data = own[0] if own else None
    values = find(data, rule) if data is not None else []
    value = values[0] if values else None
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        return None
    return str(value)


def _json_in(output: str) -> Any:
    """Read JSON that may have words before it, as progress and warnings are."""
    decoder = json.JSONDecoder()
    for found in re.finditer(r"^\s*([{\[])", output, re.MULTILINE):
        try:
            return decoder.raw_decode(output, found.start(1))[0]
        except ValueError:
            continue
    return None


_CALL_SECONDS = 600.0
_TRIES, _AGAIN_SECONDS = 3, 1.0
_READY_SECONDS, _LATEST_READY_SECONDS = 0.2, 10.0


def new_name() -> str:
    """Return a name that nothing has: providers take letters, digits and dashes."""
    return f"rankwise-{secrets.token_hex(6)}"


class Instances:
    """Makes instances for one run, and deletes them."""

    def __init__(self, choice: ComputeConfig, ledger: Tracked, run: str) -> None:
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
            TrackedInstance(
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


def is_listed(entry: TrackedInstance) -> bool:
    """Ask the provider whether there is an instance of that name.

    ComputeFailure: nobody can tell, for there is no `list`, or it fails.
    """
    return entry.name in _listing(entry)


def _find(entry: TrackedInstance) -> dict[str, str] | None:
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


def _listing(entry: TrackedInstance) -> str:
    words = entry.about["list"]
    if not words:
        raise ComputeFailure(
            f"{entry.name} may have been made, and nothing says how to find out: write `list` in "
            f"the table of {entry.compute}, or look for it yourself"
        )
    said = exchange(fill(words, {"name": entry.name}), seconds=_CALL_SECONDS)
    if said is None or said.exit_code:
        why = last_words(said) if said is not None else "no answer"
        raise ComputeFailure(f"{entry.compute}: `list` failed: {why}")
    return said.output.decode(errors="replace")


def give_back(entry: TrackedInstance, ledger: Tracked) -> str:
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
    except (ComputeFailure, OSError) as failure:
        why = str(failure)
    if not why:
        ledger.drop(entry.name)
    return why


def _delete(entry: TrackedInstance, words: Sequence[str]) -> str:
    """Call `delete` until it succeeds, or `list` has the instance no longer."""
    why = ""
    for number in range(_TRIES):
        if number:
            time.sleep(_AGAIN_SECONDS * number)
        said = exchange(words, seconds=_CALL_SECONDS)
        if said is not None and said.exit_code == 0:
            return ""
        why = last_words(said) if said is not None else "no answer"
        with contextlib.suppress(ComputeFailure):
            if not is_listed(entry):
                return ""
    return f"`delete` failed {_TRIES} times: {why}"


def give_all_back(entries: Sequence[TrackedInstance], ledger: Tracked) -> dict[str, str]:
    """Delete many at once; gives what was in the way, by their names."""
    troubles: dict[str, str] = {}

    def work(entry: TrackedInstance) -> None:
        if why := give_back(entry, ledger):
            troubles[entry.name] = why

    threads = [threading.Thread(target=work, args=(entry,), daemon=True) for entry in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return troubles


_SHELF_BEGIN, _SHELF_END = "rankwise-folder:", ":rankwise-end"
_SHELF = re.compile(f"{_SHELF_BEGIN}(.*){_SHELF_END}")


class ProviderLine:
    """One instance; `run` gets there, and `send` and `fetch` where it cannot pass files."""

    def __init__(
        self, name: str, values: Mapping[str, str], command: CommandConfig, ledger: Tracked
    ) -> None:
        self.name = name
        self._values, self._command, self._ledger = values, command, ledger
        self._shelf = ""
        """The folder there, by its full name, into which files are copied; empty: not asked yet."""
        self._left: list[str] = []
        """Files there that may not have been removed."""

    def call(
        self,
        command: str,
        *,
        data: bytes = b"",
        body: IO[bytes] | None = None,
        seconds: float = 60.0,
        into: IO[bytes] | None = None,
    ) -> Said:
        """Run a line there."""
        before = after = ""
        if self._command.send and (data or body is not None):
            place = self._place("in", seconds)
            self._left.append(place)
            with _file_of(data, body) as source:
                self._copy(self._command.send, source, place, seconds)
            # It has the values of secrets in it: it is gone as soon as it is open.
            before = f"exec < {shlex.quote(place)}; rm -f {shlex.join(self._left)}; "
            data, body = b"", None
        out = self._place("out", seconds) if self._command.fetch and into is not None else ""
        if out:
            after = f" > {shlex.quote(out)}"
        if before or after:
            command = f"/bin/sh -c {shlex.quote(f'{before}( {command} ){after}')}"
        said = self._run(command, data, body, seconds, None if out else into)
        if before and said.exit_code == 0:
            # Otherwise the line may not have come that far.
            self._left.clear()
        if out and into is not None:
            with tempfile.TemporaryDirectory(prefix="rankwise-") as folder:
                self._copy(self._command.fetch, out, f"{folder}/fetched", seconds)
                with open(f"{folder}/fetched", "rb") as fetched:  # noqa: PTH123  a plain name
                    shutil.copyfileobj(fetched, into, 1 << 20)
            self._run(f"rm -f {shlex.quote(out)}", b"", None, seconds, None)
        return said

    def _place(self, kind: str, seconds: float) -> str:
        """Return a name for a file there, in a folder that others can neither read nor write."""
        if not self._shelf:
            said = self._run(_make_shelf(self._command.folder), b"", None, seconds, None)
            found = _SHELF.search(said.output.decode(errors="replace"))
            if found is None:
                raise LineAway(f"{self.name} does not answer: {last_words(said)}")
            if not found[1]:
                raise ComputeFailure(
                    f"{self.name}: {self._command.folder} cannot be made there, or is not yours "
                    f'alone; name another one with folder = "…" in its table: {last_words(said)}'
                )
            self._shelf = found[1]
        return f"{self._shelf}/{kind}-{secrets.token_hex(6)}"

    def _run(
        self,
        command: str,
        data: bytes,
        body: IO[bytes] | None,
        seconds: float,
        into: IO[bytes] | None,
    ) -> Said:
        words = fill(self._command.run, {**self._values, "command": command})
        said = exchange(words, data=data, body=body, seconds=seconds, into=into)
        if said is None:
            raise LineAway(f"{self.name} gave no answer in {seconds:g} s")
        return said

    def _copy(self, template: Sequence[str], source: str, target: str, seconds: float) -> None:
        words = fill(template, {**self._values, "source": source, "target": target})
        said = exchange(words, seconds=seconds)
        if said is None or said.exit_code:
            why = last_words(said) if said is not None else "it took too long"
            raise LineAway(f"{self.name}: a file could not be copied: {why}")

    def is_there(self) -> bool | None:
        """Ask the provider, if there is a way to."""
        with contextlib.suppress(RankwiseError, OSError):
            entry = self._ledger.get(self.name)
            if entry is None:
                return False
            if entry.about["list"]:
                return is_listed(entry)
        return None

    def close(self) -> None:
        """Do nothing: no connection is kept."""


def _make_shelf(folder: str) -> str:
    """Write a line that makes a folder, and says its full name if it is the user's alone."""
    is_home = folder.startswith("~/")
    place = f'"$HOME"{shlex.quote(folder[1:])}' if is_home else shlex.quote(folder)
    say = f'printf "\\n{_SHELF_BEGIN}%s{_SHELF_END}\\n"'
    # Neither the group nor others may write, as the sixth and the ninth letter say.
    line = (
        f"umask 077; p={place}; "
        f'if mkdir -p "$p" && cd "$p" && test -O . && case $(ls -ld .) in '
        # Whatever the mode is that files are sent with, only we come to them.
        f"?????-??-*) true;; *) false;; esac && mkdir -p .sent && chmod 700 .sent && cd .sent; "
        f'then {say} "$(pwd -P)"; else {say} ""; fi'
    )
    return f"exec /bin/sh -c {shlex.quote(line)}"


@contextlib.contextmanager
def _file_of(data: bytes, body: IO[bytes] | None) -> Iterator[str]:
    """Write what is to be sent into a file that only we can read, and that does not stay."""
    handle, path = tempfile.mkstemp(prefix="rankwise-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if body is not None:
                shutil.copyfileobj(body, file, 1 << 20)
        yield path
    finally:
        os.unlink(path)  # noqa: PTH108  a plain name


@dataclass(slots=True, kw_only=True)
class _Instance:
    keeper: Host
    used: Resources = Resources()
    tasks: int = 0
    """How many it has now."""
    is_spent: bool = False
    """Whether it takes no more."""
    unwanted: Event = field(default_factory=Event)
    machine: Machine | None = None
    """None: it is being made."""


class ProviderFleet:
    """Instances of one run: those of an earlier client of the same run are its own."""

    def __init__(self, choice: ComputeConfig, board: Board, ledger: Tracked, run: str) -> None:
        self._choice, self._board, self._ledger, self._run = choice, board, ledger, run
        self._making = Instances(choice, ledger, run)
        self._ways = Ways(
            compute=choice.name,
            ledger=ledger,
            python=choice.command.python,
            patience=choice.command.patience,
            look_seconds=choice.command.look_seconds,
            is_noted=False,
        )
        self._instances: dict[str, _Instance] = {}

    def facts(self) -> BackendFacts:
        """Return what an instance is said to have; whatever comes is taken, and waits here."""
        capacity = self._choice.capacity(UNLIMITED)
        return BackendFacts(capacity=capacity, room=UNLIMITED, makes_runtimes=True)

    def pick(self, task: Task) -> tuple[Host, Resources] | None:
        """Return an instance that has room, or have one made."""
        most = self.facts().capacity
        claim = claim_of(task, Resources(cores=1e9) if math.isinf(most.cores) else most)
        if not fits(claim, most):
            raise ComputeFailure("needs more than an instance is said to have")
        usable = [one for one in self._instances.values() if not one.keeper.failure]
        free = [one for one in usable if self._has_room(one, claim, most)]
        if not free:
            if len(usable) >= self._choice.command.instances:
                return None
            failed = [one.keeper.failure for one in self._instances.values() if one.machine is None]
            if any(failed):
                # What could not be made will not be made by asking again.
                raise ComputeFailure(next(filter(None, failed)))
            free = [self._new()]
        one = max(free, key=lambda one: one.tasks)
        one.used += claim
        one.tasks += 1
        one.is_spent = not self._choice.command.reuse
        return one.keeper, claim

    def _has_room(self, one: _Instance, claim: Resources, most: Resources) -> bool:
        if one.is_spent:
            return False
        # Of which nothing is said, has one task at a time.
        is_told = self._choice.cores is not None
        return fits(claim, most - one.used) if is_told else one.tasks == 0

    def _new(self) -> _Instance:
        name = new_name()
        unwanted = Event()

        def make() -> Machine:
            self._board.tell(Update(text=f"{self._choice.name}: making the instance {name}"))
            values = self._making.make(name, lambda: not unwanted.is_set())
            self._instances[name].machine = machine = self._machine(name, values)
            return machine

        keeper = Host(name, make, self._board, self._ways)
        self._instances[name] = _Instance(keeper=keeper, unwanted=unwanted)
        return self._instances[name]

    def _machine(self, name: str, values: Mapping[str, str]) -> Machine:
        command = self._choice.command
        line = ProviderLine(name, values, command, self._ledger)
        return Machine(line, folder=command.folder, python=command.python, init=command.init)

    def recover(self, machine: str, claim: Resources) -> Host | None:
        """Return an instance that an earlier client has made; None: it is gone."""
        if machine not in self._instances:
            entry = self._ledger.get(machine)
            if entry is None or entry.about["state"] != "made":
                return None
            there = self._machine(machine, {"name": machine, **entry.about["values"]})
            keeper = Host(machine, lambda: there, self._board, self._ways)
            self._instances[machine] = _Instance(keeper=keeper, machine=there)
        one = self._instances[machine]
        one.used += claim
        one.tasks += 1
        one.is_spent = not self._choice.command.reuse
        return one.keeper

    def machine_of(self, keeper: Host) -> Machine:
        machine = self._instances[keeper.name].machine
        assert machine is not None  # it is asked for what runs there already
        return machine

    def note_over(self, keeper: Host, claim: Resources) -> None:
        """Count something no longer; an instance that takes no more is given back at once."""
        one = self._instances[keeper.name]
        one.used -= claim
        one.tasks -= 1
        if one.tasks == 0 and (one.is_spent or keeper.failure) and one.machine is not None:
            keeper.close(0.0)
            self._delete(keeper.name)
            if not keeper.failure:
                del self._instances[keeper.name]

    def _delete(self, name: str) -> None:
        try:
            entry = self._ledger.get(name)
        except StoreFailure as failure:
            self._tell_of({name: str(failure)})
            return
        if entry is not None:
            self._tell_of(give_all_back([entry], self._ledger))

    def close(self) -> Sequence[str]:
        """Delete every instance of this run, also those that an earlier client has left."""
        for one in self._instances.values():
            one.unwanted.set()
        for one in self._instances.values():
            # One that is just being made can be deleted once it is known what it is.
            one.keeper.close(self._choice.command.create_seconds)
        entries: list[TrackedInstance] = []
        unknown = []
        try:
            for entry in self._ledger.entries(compute=self._choice.name, run=self._run):
                entries += [entry] if entry.kind == "instance" else []
        except StoreFailure as failure:
            unknown = [f"WARNING: an instance of {self._choice.name} may still be there: {failure}"]
        self._tell_of(give_all_back(entries, self._ledger))
        return unknown

    def _tell_of(self, troubles: dict[str, str]) -> None:
        for name, why in troubles.items():
            self._board.tell(
                Update(
                    text=f"WARNING: the instance {name} of {self._choice.name} is still there, and "
                    f"may cost money: {why}. Type  rankwise clean  to try again"
                )
            )


def open_provider(
    choice: ComputeConfig, updates: Updates, ledger: Tracked, run: str
) -> RemoteBackend:
    """Make a provider ready to be a compute; nothing is made yet."""
    return RemoteBackend(
        choice.name, updates, lambda board: ProviderFleet(choice, board, ledger, run)
    )
