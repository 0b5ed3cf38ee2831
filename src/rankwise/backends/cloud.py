"""Instances that a provider's own command line makes and deletes."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
import secrets
import shlex
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rankwise.backends import base
from rankwise.backends.base import Attempt, Unreachable, Update, Updates
from rankwise.backends.remote.backend import RemoteBackend, fits
from rankwise.backends.remote.connection import CommandResult, Machine, Sink, chunks_of, exchange
from rankwise.backends.remote.host import Host
from rankwise.backends.remote.packing import HostPolicy
from rankwise.backends.remote.tracked import Tracked, TrackedInstance
from rankwise.checks.json_path import find
from rankwise.documents.site_models import CommandConfig, ComputeConfig, is_path
from rankwise.errors import ComputeFailure, RankwiseError, StoreFailure
from rankwise.node.files import write_file
from rankwise.plan import Resources, Task, claim_of
from rankwise.records import DELETED, MADE, PROVIDED, end_of
from rankwise.safe_text import clip

_NAME = re.compile(r"\$\{\{\s*(\w+)\s*\}\}")


def names_in(words: Sequence[str]) -> set[str]:
    """Return the names of the values that a command line needs."""
    return {name for word in words for name in _NAME.findall(word)}


def fill(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Fill values in; each stays within its word, whatever characters it has.

    LookupError: there is no value of that name.
    """
    return [_NAME.sub(lambda found: values[found[1]], word) for word in words]


def capture(rules: Mapping[str, str], output: str, name: str) -> dict[str, str] | None:
    """Return the values in the output of a command; None: one of them is missing.

    A rule that begins with `$` is a path into JSON; of a list, the entry with the name in it
    counts. Others are patterns with a group, in which `${{name}}` stands for the name.
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
    # A listing has all instances of the account, also those of other people.
    if isinstance(data, list):
        own = [one for one in data if name in json.dumps(one)]
        data = own[0] if own else None
    values = find(data, rule) if data is not None else []
    value = values[0] if values else None
    # A rule that leads to a list or an object finds no value.
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        return None
    return str(value)


def _json_in(output: str) -> Any:
    """Return the JSON that may follow progress messages and warnings; None: there is none."""
    decoder = json.JSONDecoder()
    # A progress message may begin with a bracket too: the first that is JSON counts.
    for found in re.finditer(r"^\s*([{\[])", output, re.MULTILINE):
        try:
            return decoder.raw_decode(output, found.start(1))[0]
        except ValueError:
            continue
    return None


_TIMES = {"time_stamp", "timestamp", "time"}


def series_in(output: str) -> dict[str, list[tuple[float, float]]]:
    """Return measurements by name, as pairs of a time and a value; ValueError: there are none.

    In JSON, the outermost name counts, and points are like `{"time_stamp": 1.0, "value": 2.0}` or
    `[1.0, 2.0]`. CSV has times in its first column, and names in its first line.
    """
    data = _json_in(output)
    found: dict[str, list[tuple[float, float]]] = {}
    for name, when, value in _points(data, "") if data is not None else _rows(output):
        try:
            point = (_instant(when), float(value))
        except (TypeError, ValueError, OverflowError):
            continue  # A provider may have no value for a moment.
        if all(map(math.isfinite, point)):
            found.setdefault(name, []).append(point)
    return {name: sorted(points) for name, points in found.items()}


def _points(data: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(data, dict) and "value" in data and (keys := _TIMES & data.keys()):
        yield name, data[min(keys)], data["value"]
    elif isinstance(data, dict):
        for key, one in data.items():
            yield from _points(one, name or key)
    elif isinstance(data, list) and len(data) == 2 and not isinstance(data[0], dict | list):
        yield name, *data
    elif isinstance(data, list):
        for one in data:
            yield from _points(one, name)


def _rows(output: str) -> Iterator[tuple[str, str, str]]:
    names, *rows = csv.reader(output.strip().splitlines() or [""])
    if len(names) < 2:
        raise ValueError(f"this is neither JSON nor CSV: {clip(output.strip(), _SHOWN)!r}")
    for row in rows:
        for name, value in zip(names[1:], row[1:], strict=False):
            yield name.strip(), row[0], value


def _instant(when: Any) -> float:
    """Return seconds of the epoch: a time without a zone is in UTC."""
    try:
        return float(when)
    except ValueError:
        moment = datetime.fromisoformat(when)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _in_utc(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


# Programs of providers wait for what they do, and to delete an instance may take minutes.
_CALL_SECONDS = 600.0
# A task is over only when its provider has said what it used.
_METRICS_SECONDS, _SHOWN = 120.0, 200
# Providers answer with errors while an instance is still changing.
_TRIES, _AGAIN_SECONDS = 3, 1.0
# Pauses between two calls of `ready`: providers limit how often they are asked.
_READY_SECONDS, _LATEST_READY_SECONDS = 0.2, 10.0


def new_name() -> str:
    """Return a unique name, of what all providers allow: letters, digits and dashes."""
    return f"rankwise-{secrets.token_hex(6)}"


def is_listed(entry: TrackedInstance) -> bool:
    """Ask the provider whether there is an instance of that name.

    ComputeFailure: this cannot be found out, as there is no `list`, or it fails.
    """
    return entry.name in _listing(entry)


def _find(entry: TrackedInstance) -> dict[str, str] | None:
    """Ask the provider for the values of an instance whose `create` was cut off; None: no such."""
    output = _listing(entry)
    if entry.name not in output:
        return None
    found = capture(entry.about["capture"], output, entry.name)
    if found is None:
        raise ComputeFailure(f"{entry.name} exists, but `list` does not print all of `capture`")
    return found


def _listing(entry: TrackedInstance) -> str:
    words = entry.about["list"]
    if not words:
        raise ComputeFailure(
            f"{entry.name} may have been made, and nothing says how to find out: write `list` in "
            f"the table of {entry.compute}, or look for it yourself"
        )
    result = exchange(fill(words, {"name": entry.name}), seconds=_CALL_SECONDS)
    if result.exit_code:
        raise ComputeFailure(f"{entry.compute}: `list` failed: {result.last_line}")
    return result.output.decode(errors="replace")


def give_back(entry: TrackedInstance, tracked: Tracked) -> str:
    """Delete an instance that may exist, and its record once it is gone.

    Return why it is still there; empty: it is gone. Idempotent, and any client may do it.
    """
    try:
        values = {"name": entry.name, **entry.about["values"]}
        is_known = entry.about["state"] == "made"
        # The client was killed between `create` and its answer: the id is not known here.
        if names_in(entry.about["delete"]) - values.keys():
            found = _find(entry)
            if found is None:
                tracked.drop(entry.name)
                return ""
            values, is_known = {**values, **found}, True
        why = _delete(entry, fill(entry.about["delete"], values))
        if is_known and not why:
            tracked.count(entry.run, entry.name, MADE, DELETED)
    except (ComputeFailure, OSError) as failure:
        why = str(failure)
    if not why:
        tracked.drop(entry.name)
    return why


def _delete(entry: TrackedInstance, words: Sequence[str]) -> str:
    """Call `delete` until it succeeds, or `list` has the instance no longer."""
    why = ""
    for number in range(_TRIES):
        if number:
            time.sleep(_AGAIN_SECONDS * number)
        result = exchange(words, seconds=_CALL_SECONDS)
        if result.exit_code == 0:
            return ""
        why = result.last_line
        # Perhaps an earlier try has succeeded, and only its answer was lost.
        with contextlib.suppress(ComputeFailure):
            if not is_listed(entry):
                return ""
    return f"`delete` failed {_TRIES} times: {why}"


def give_all_back(entries: Sequence[TrackedInstance], tracked: Tracked) -> dict[str, str]:
    """Delete many at once; return why some are still there, by their names."""
    troubles: dict[str, str] = {}

    def work(entry: TrackedInstance) -> None:
        try:
            why = give_back(entry, tracked)
        except Exception as error:  # Whatever it is, the instance may cost money.
            why = base.words_of(error)
        if why:
            troubles[entry.name] = why

    # Not an executor, whose threads outlive a second Ctrl-C: a provider may take minutes.
    threads = [threading.Thread(target=work, args=(entry,), daemon=True) for entry in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return troubles


_SHELF_BEGIN, _SHELF_END = "rankwise-folder:", ":rankwise-end"
_SHELF = re.compile(f"{_SHELF_BEGIN}(.*){_SHELF_END}")


class ProviderConnection:
    """One instance; `run` gets there, and `send` and `fetch` where `run` cannot pass files."""

    def __init__(
        self, name: str, values: Mapping[str, str], command: CommandConfig, tracked: Tracked
    ) -> None:
        self.name = name
        self._values, self._command, self._tracked = values, command, tracked
        self._shelf = ""
        """The folder there, by its real path, into which files are copied; empty: not asked yet."""
        self._left: list[str] = []
        """Files there that may not have been removed."""

    def call(
        self, command: str, *, given: Iterable[bytes] = (), seconds: float = 60.0, into: Sink = None
    ) -> CommandResult:
        """Run a line there."""
        before = after = out = ""
        if is_copied := bool(self._command.send and given):
            # A name that was not used before: an earlier call may still read its file.
            place = self._place("in", seconds)
            self._left.append(place)
            with _file_of(given) as source:
                self._copy(self._command.send, source, place, seconds)
            # It has the values of secrets in it: it is gone as soon as it is open.
            before = f"exec < {shlex.quote(place)}; rm -f {shlex.join(self._left)}; "
            given = ()
        if self._command.fetch and into is not None:
            out = self._place("out", seconds)
            after = f" > {shlex.quote(out)}"
        if before or after:
            command = f"/bin/sh -c {shlex.quote(f'{before}( {command} ){after}')}"
        result = self._run(command, seconds, given=given, into=None if out else into)
        if is_copied and result.exit_code == 0:
            # Otherwise the line may not have come that far.
            self._left.clear()
        if out and into is not None:
            with tempfile.TemporaryDirectory(prefix="rankwise-") as folder:
                self._copy(self._command.fetch, out, f"{folder}/fetched", seconds)
                with open(f"{folder}/fetched", "rb") as fetched:  # noqa: PTH123  a plain name
                    into.writelines(chunks_of(fetched))
            self._run(f"rm -f {shlex.quote(out)}", seconds)
        return result

    def _place(self, kind: str, seconds: float) -> str:
        """Return a name for a file there, in a folder that others can neither read nor write."""
        if not self._shelf:
            result = self._run(_make_shelf(self._command.folder), seconds)
            found = _SHELF.search(result.output.decode(errors="replace"))
            if found is None:
                raise Unreachable(f"{self.name} does not answer: {result.last_line}")
            if not found[1]:
                raise ComputeFailure(
                    f"{self.name}: {self._command.folder} cannot be made there, or is not yours "
                    f'alone; name another one with folder = "…" in its table: {result.last_line}'
                )
            self._shelf = found[1]
        return f"{self._shelf}/{kind}-{secrets.token_hex(6)}"

    def _run(
        self, command: str, seconds: float, *, given: Iterable[bytes] = (), into: Sink = None
    ) -> CommandResult:
        words = fill(self._command.run, {**self._values, "command": command})
        result = exchange(words, given=given, seconds=seconds, into=into)
        if result.is_late:
            raise Unreachable(f"{self.name} gave {result.errors}")
        return result

    def _copy(self, template: Sequence[str], source: str, target: str, seconds: float) -> None:
        words = fill(template, {**self._values, "source": source, "target": target})
        result = exchange(words, seconds=seconds)
        if result.exit_code:
            raise Unreachable(f"{self.name}: a file could not be copied: {result.last_line}")

    def is_there(self) -> bool | None:
        """Ask the provider; None: it does not say."""
        with contextlib.suppress(RankwiseError, OSError):
            entry = self._tracked.get(self.name)
            if entry is None:
                return False
            if entry.about["list"]:
                return is_listed(entry)
        return None

    def close(self) -> None:
        """Do nothing: no connection is kept."""


def _make_shelf(folder: str) -> str:
    """Return a line that makes a folder, and prints its real path if it is the user's alone."""
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
def _file_of(given: Iterable[bytes]) -> Iterator[str]:
    """Write what is to be sent into a file that only we can read, and that does not stay."""
    handle, path = tempfile.mkstemp(prefix="rankwise-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(given)
        yield path
    finally:
        os.unlink(path)  # noqa: PTH108  a plain name


class ProviderBackend(RemoteBackend):
    """Instances of one run: those of an earlier client of the same run are its own."""

    def __init__(self, choice: ComputeConfig, updates: Updates, tracked: Tracked, run: str) -> None:
        policy = HostPolicy(
            backend=choice.name,
            tracked=tracked,
            python=choice.command.python,
            patience=choice.command.patience,
            look_seconds=choice.command.look_seconds,
            # Folders need no records of their own: they are gone with the instance, which has one.
            is_tracked=False,
        )
        super().__init__(updates, policy)
        self._choice, self._tracked, self._run = choice, tracked, run
        self._command = choice.command

    def facts(self) -> base.BackendFacts:
        """Return what an instance should have; any task may be submitted, and waits here."""
        capacity = self._choice.capacity(base.UNLIMITED)
        return base.BackendFacts(capacity=capacity, room=base.UNLIMITED, makes_runtimes=True)

    def _pick(self, task: Task) -> tuple[Host, Resources] | None:
        """Return an instance that has room, or have one made."""
        most = self.facts().capacity
        claim = claim_of(task, Resources(cores=1e9) if math.isinf(most.cores) else most)
        if not fits(claim, most):
            raise ComputeFailure("needs more than the site file says that an instance has")
        usable = [host for host in self._hosts.values() if not host.failure]
        free = [host for host in usable if self._has_room(host, claim, most)]
        if not free:
            if len(usable) >= self._command.instances:
                return None
            failed = [host.failure for host in self._hosts.values() if host.machine is None]
            if any(failed):
                # What could not be made will not be made by asking again.
                raise ComputeFailure(next(filter(None, failed)))
            name = new_name()
            # Its thread makes the instance: that may take minutes.
            self._hosts[name] = Host(name, self)
            free = [self._hosts[name]]
        # The busiest first: those that become idle can be deleted.
        return max(free, key=lambda host: host.tasks), claim

    def _has_room(self, host: Host, claim: Resources, most: Resources) -> bool:
        if not self._command.reuse:
            return False  # It was made for a task.
        # Without `cores` in the site file, an instance has one task at a time.
        is_known = self._choice.cores is not None
        return fits(claim, most - host.used) if is_known else host.tasks == 0

    def open_machine(self, name: str) -> Machine:
        """Make an instance, and wait until it can be used.

        ComputeFailure: it cannot be had. Whatever was made of it stays recorded.
        """
        self.tell(Update(text=f"{self._choice.name}: making the instance {name}"))
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
        result = exchange(words, seconds=self._command.create_seconds)
        if result.exit_code:
            raise ComputeFailure(f"{self._choice.name}: `create` failed: {result.last_line}")
        output = result.output.decode(errors="replace")
        found = capture(dict(self._command.capture), output, name)
        if found is None:
            raise ComputeFailure(
                f"{self._choice.name}: `create` does not print all of `capture`: {result.last_line}"
            )
        self._note(name, {**about, "state": "made", "values": found})
        self._tracked.count(self._run, name, MADE)
        # Only now: `ready` may need the id that `create` has printed.
        values = {"name": name, **found}
        self._wait_until_ready(values)
        return self._machine(name, values)

    def _note(self, name: str, about: Mapping[str, Any]) -> None:
        made = {"kind": "instance", "compute": self._choice.name, "run": self._run}
        self._tracked.put(TrackedInstance(name=name, **made, about=about))

    def ask_usage(self, name: str, attempt: Attempt) -> None:
        """Keep what the provider says that an instance has used during an attempt."""
        if not self._command.metrics:
            return
        end = end_of(attempt.folder)
        started, ended = end.started or time.time(), end.ended or time.time()
        try:
            entry = self._tracked.get(name)
            values = entry.about["values"] if entry is not None else {}
            times = {"start": _in_utc(started), "end": _in_utc(ended)}
            words = fill(self._command.metrics, {"name": name, **values, **times})
            result = exchange(words, seconds=_METRICS_SECONDS)
            if result.exit_code:
                raise ComputeFailure(f"`metrics` failed: {result.last_line}")
            found = {
                name: [(max(0.0, when - started), value) for when, value in points]
                for name, points in series_in(result.output.decode(errors="replace")).items()
            }
            write_file(attempt.folder / PROVIDED, json.dumps(found))
        except (RankwiseError, OSError, ValueError, LookupError) as failure:
            text = f"{self._choice.name}: nothing is known of what {name} has used: {failure}"
            self.tell(Update(attempt=attempt, text=text))

    def _wait_until_ready(self, values: Mapping[str, str]) -> None:
        if not self._command.ready:
            return
        words = fill(self._command.ready, values)
        deadline = time.monotonic() + self._command.ready_seconds
        pause = _READY_SECONDS
        while (result := exchange(words, seconds=_CALL_SECONDS)).exit_code:
            if time.monotonic() > deadline or self._is_closed:
                name = values["name"]
                raise ComputeFailure(f"{name} was made, but is not ready: {result.last_line}")
            time.sleep(pause)
            pause = min(pause * 1.5, _LATEST_READY_SECONDS)

    def _machine(self, name: str, values: Mapping[str, str]) -> Machine:
        command = self._command
        line = ProviderConnection(name, values, command, self._tracked)
        return Machine(line, folder=command.folder, python=command.python, init=command.init)

    def _reopen(self, name: str) -> Host | None:
        """Return an instance that an earlier client has made; None: it is gone."""
        if name not in self._hosts:
            entry = self._tracked.get(name)
            # One that is only `wanted` was never reached, and so runs nothing.
            if entry is None or entry.about["state"] != "made":
                return None
            machine = self._machine(name, {"name": name, **entry.about["values"]})
            self._hosts[name] = Host(name, self, machine)
        return self._hosts[name]

    def _release(self, attempt: Attempt) -> None:
        """Delete an instance at once that gets no more tasks: it costs money."""
        placed = self._placed.get(attempt.marker)
        super()._release(attempt)
        if placed is None:
            return
        host, _ = placed
        is_useless = bool(host.failure) or not self._command.reuse
        if host.tasks == 0 and is_useless and host.machine is not None:
            host.close(0.0)
            try:
                entry = self._tracked.get(host.name)
                self._report(give_all_back([entry] if entry else [], self._tracked))
            except StoreFailure as failure:
                self._report({host.name: str(failure)})
            # One that failed stays: it tells why no other is made.
            if not host.failure:
                del self._hosts[host.name]

    def _close_hosts(self) -> Sequence[str]:
        """Delete every instance of this run, also those that an earlier client has left."""
        for host in self._hosts.values():
            # One that is just being made can be deleted once its id is known.
            host.close(self._command.create_seconds)
        entries: list[TrackedInstance] = []
        unknown = []
        try:
            for entry in self._tracked.entries(compute=self._choice.name, run=self._run):
                entries += [entry] if entry.kind == "instance" else []
        except StoreFailure as failure:
            unknown = [f"WARNING: an instance of {self._choice.name} may still be there: {failure}"]
        self._report(give_all_back(entries, self._tracked))
        return unknown

    def _report(self, troubles: Mapping[str, str]) -> None:
        for name, why in troubles.items():
            text = (
                f"WARNING: the instance {name} of {self._choice.name} is still there, and may cost "
                f"money: {why}. Type  rankwise clean  to try again"
            )
            self.tell(Update(text=text))
