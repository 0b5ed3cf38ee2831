"""An attempt as it is sent to another machine: its order in that machine's own words, and code."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rankwise import records
from rankwise.compute.code import copy_code
from rankwise.compute.contract import Job
from rankwise.compute.order import make_order, write_beside
from rankwise.compute.remote.agent import WHOLE
from rankwise.compute.remote.machine import Found
from rankwise.errors import ComputeFailure
from rankwise.plan import Process, RuntimeChoice, Task
from rankwise.runtime.container import Container
from rankwise.runtime.contract import Prepared
from rankwise.runtime.lock import texts_of
from rankwise.runtime.modules import Modules

# What the other side can make ready; more than these would be left out there without a word.
_KNOWN = (
    *("name", "kind", "python", "requirements", "lock", "lock_digest", "modules", "image"),
    "engine",
)
_INCLUDES = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)\b")
_KINDS = ("current", "python", "uv", "modules", "container")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ContainerThere(Container):
    """A container of another machine, which has users of its own."""

    uid: int
    gid: int

    def _user(self) -> tuple[str, ...]:
        if self.engine == "podman" and self.uid != 0:
            return ("--userns", "keep-id")
        return ("--user", f"{self.uid}:{self.gid}")


class Parcel:
    """What is sent: the values of secrets first, then a tar. To be closed."""

    def __init__(
        self,
        job: Job,
        found: Found,
        *,
        python: str = "",
        is_shared: bool = False,
        gpus: Sequence[str] = (),
    ) -> None:
        secrets = json.dumps(dict(job.secrets)).encode()
        self.head = b"%d\n%s" % (len(secrets), secrets)
        self.body: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  it is read when it is sent
        try:
            self._pack(job, found, python or found.python, gpus, is_shared=is_shared)
        except BaseException:
            self.close()
            raise

    def _pack(
        self, job: Job, found: Found, python: str, gpus: Sequence[str], *, is_shared: bool
    ) -> None:
        here, source = job.attempt.folder, job.task.code or job.task.folder
        there = f"{found.root}/attempts/{job.attempt.marker}"
        is_copied = bool(job.task.code) or not is_shared
        work = f"{there}/nodes/node0" if is_copied else source
        runtime, prepared = _runtime(job.task.runtime, job.runtime, found, python)
        moved = dataclasses.replace(
            job,
            attempt=dataclasses.replace(job.attempt, folder=Path(there)),
            task=_moved(job.task, source, work) if is_copied else job.task,
            runtime=prepared,
        )
        node = {"name": found.host, "address": "127.0.0.1", "folder": work}
        order = make_order(moved, [node], gpus=gpus, defaults={})
        # Those who look at what was left find it here, under the names that it has here.
        place = str(here / "nodes" / "node0") if is_copied else source
        kept = {**order, "folder": str(here), "nodes": [{**node, "folder": place}]}
        write_beside(here / records.ORDER, json.dumps(kept))
        with tarfile.open(fileobj=self.body, mode="w") as parcel:
            _add(parcel, records.ORDER, json.dumps(order))
            _add(parcel, "runtime.json", json.dumps(runtime))
            if is_copied:
                with tempfile.TemporaryDirectory(prefix=".sending-", dir=here) as copy:
                    copy_code(Path(source), Path(copy))
                    parcel.add(copy, "nodes/node0", filter=_writable)
            _add(parcel, WHOLE, "")
        self.body.seek(0)

    def close(self) -> None:
        self.body.close()


def _writable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Make sure that the folders can be removed again."""
    if member.isdir():
        member.mode |= 0o700
    return member


def _add(parcel: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    parcel.addfile(member, io.BytesIO(content))


def _runtime(
    choice: RuntimeChoice, given: Prepared, found: Found, python: str
) -> tuple[dict[str, Any], Prepared]:
    """Say what is to be made ready there, and how commands are started in it."""
    data = dataclasses.asdict(choice)
    empty = dataclasses.asdict(RuntimeChoice())
    more = [name for name in data if name not in _KNOWN and data[name] != empty[name]]
    if choice.kind not in _KINDS or more:
        raise ComputeFailure(
            f'runtime "{choice.name}" cannot be made on {found.host}: '
            f"{more[0] if more else choice.kind} is for this machine and for clusters only"
        )
    has_path = choice.kind == "current" and bool(given.path)
    locked = _lock_of(choice) if choice.lock else None
    runtime = {**data, "host_python": python, "has_path": has_path, "locked": locked}
    if choice.kind == "modules":
        return runtime, dataclasses.replace(given, wrap=Modules(names=choice.modules))
    if choice.kind != "container":
        return runtime, given
    names = [choice.engine] if choice.engine else list(found.engines)
    engine = next((name for name in names if name in found.engines), None)
    if engine is None:
        raise ComputeFailure(
            f'runtime "{choice.name}" is the container image {choice.image}, and {found.host} has '
            f"no {choice.engine or 'docker, podman or apptainer'}"
        )
    executable = found.engines[engine]
    wrap = _ContainerThere(
        engine=engine, executable=executable, image=choice.image, uid=found.uid, gid=found.gid
    )
    return {**runtime, "engine": executable}, dataclasses.replace(given, wrap=wrap)


def _lock_of(choice: RuntimeChoice) -> tuple[str, str]:
    """Give the name and the content of a lock file, with all that it includes in one."""
    path = Path(choice.lock)
    try:
        texts = texts_of(path)
    except OSError as error:
        raise ComputeFailure(f'runtime "{choice.name}": {path}: {error.strerror}') from error
    lines = [line for text in texts for line in text.splitlines()]
    return path.name, "".join(f"{line}\n" for line in lines if not _INCLUDES.match(line))


def _moved(task: Task, source: str, work: str) -> Task:
    """Put the folder there for the one here, wherever a task names it."""

    def there(text: str) -> str:
        for place in dict.fromkeys((source, os.path.realpath(source))):
            text = text.replace(f"{place}/", f"{work}/")
            text = work if text == place else text
        return text.replace(sys.executable, "python")

    return dataclasses.replace(
        task,
        processes=tuple(_moved_process(process, there) for process in task.processes),
        environment=_all(task.environment, there),
        files=_all(task.files, there),
    )


def _moved_process(process: Process, there: Callable[[str], str]) -> Process:
    command = process.command
    return dataclasses.replace(
        process,
        command=there(command) if isinstance(command, str) else tuple(map(there, command)),
        environment=_all(process.environment, there),
    )


def _all(values: Mapping[str, str], there: Callable[[str], str]) -> dict[str, str]:
    return {name: there(value) for name, value in values.items()}
