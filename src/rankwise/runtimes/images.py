"""Images that are built here: their names say what they are built from, so each is built once."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import hashlib
import json
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankwise.errors import ComputeFailure, InputError
from rankwise.files import copy_code, digest_of_file, files_of_code
from rankwise.node.equipment import ask, quoted
from rankwise.node.files import discard, end_of_log, own_command, try_to, write_file
from rankwise.node.order import NodeOrder, Order, ProcessOrder
from rankwise.node.processes import descendants
from rankwise.plan import RuntimeChoice
from rankwise.runtimes.base import Say, cache_folder
from rankwise.runtimes.uv import made_once
from rankwise.safe_text import clean, cut

_NAME = "localhost/rankwise"
_PROCESS = "build"
LOG = f"processes/{_PROCESS}/output.log"
"""Where the log of a build is, in the folder of its image."""
_LIMIT_SECONDS, _LOOK_SECONDS, _END_SECONDS = 7200.0, 0.2, 8.0
_SHOWN_LINES = 10
# Without these, a Dockerfile uses no files of its context.
_USES_CONTEXT = re.compile(rb"(?im)^\s*(?:ONBUILD\s+)?(?:COPY|ADD)\s|--mount")
# How Podman and docker number the steps of a build: `STEP 2/5: RUN make`, `#7 [2/5] RUN make`.
_STEP = re.compile(r"(?i)(?:(?:\[\d+/\d+\] )?STEP \d+/\d+ ?:|#\d+ \[[^\]]*\d+/\d+\]).*")


def named(choice: RuntimeChoice) -> RuntimeChoice:
    """Return a runtime with the name of its image; InputError: what is in it cannot be read."""
    try:
        image = _name(choice.build, choice.context, choice.build_args)
    except OSError as error:
        raise InputError(
            f'runtime "{choice.name}": {error.filename}: {error.strerror}; `build` of its image '
            "names a Dockerfile, and `context` the folder with the files that it copies"
        ) from error
    return dataclasses.replace(choice, image=image)


@functools.cache
def _name(build: str, context: str, arguments: Sequence[str]) -> str:
    """Name an image by what it is built from. A plan asks for each many times."""
    text = Path(build).read_bytes()
    digest = hashlib.sha256(json.dumps([1, text.decode(errors="replace"), arguments]).encode())
    if _USES_CONTEXT.search(text):
        next(Path(context).iterdir(), None)  # A folder that is not there is not an empty one.
        for path in files_of_code(Path(context)):
            mode = os.access(path, os.X_OK)
            about = f"{path.relative_to(context)}\0{mode}\0{digest_of_file(path)}\n"
            digest.update(os.fsencode(about))
    return f"{_NAME}:{digest.hexdigest()[:16]}"


def build(choice: RuntimeChoice, executable: str, say: Say) -> None:
    """Build the image of a runtime by an engine, unless it is there; ComputeFailure: it cannot be.

    The build ends with this process, however that ends.
    """

    def is_there(_: object = None) -> bool:
        return ask([executable, "image", "inspect", choice.image]) is not None

    folder = cache_folder() / "images" / choice.image.rpartition(":")[2]
    what = f'the image of runtime "{choice.name}"'
    if is_there():
        say(f"{what} is there already: {choice.image}")
        return

    def make(place: Path, lock: int) -> Mapping[str, object]:
        file, log = folder / "Dockerfile", folder / LOG
        discard(str(folder / "processes"))
        place.mkdir()
        text = Path(choice.build).read_bytes()
        write_file(file, text)
        if _USES_CONTEXT.search(text):
            copy_code(Path(choice.context), place)
        # What is built must be what the name says, also if files change meanwhile.
        if _name.__wrapped__(str(file), str(place), choice.build_args) != choice.image:
            raise ComputeFailure(
                f"{what} is not built, since {choice.build} or its context has changed: run it "
                "again"
            )
        say(f"building {what} from {choice.build}; log: {log}")
        arguments = (word for one in choice.build_args for word in ("--build-arg", one))
        command = [executable, "build", "--tag", choice.image, "--file", str(file)]
        command += ["--network", "host", *arguments, str(place)]
        code = _run(command, folder, place, lock, lambda step: say(f"{choice.name}: {step}"))
        if code:
            said = quoted(end_of_log(str(log)).decode(errors="replace"), _SHOWN_LINES)
            raise ComputeFailure(
                f"{what} could not be built from {choice.build}: {Path(executable).name} ended "
                f"with exit code {code}:{said}\nthe whole log is {log}"
            )
        return {"image": choice.image, "build": choice.build}

    made_once(folder, make, is_sound=is_there, say=say, what=what)


def _run(command: Sequence[str], folder: Path, place: Path, lock: int, say: Say) -> int:
    """Run a build to its end, by a process that ends it when this one is gone."""
    host = NodeOrder(name=os.uname().nodename, address="127.0.0.1", folder=str(folder))
    Order(
        marker=f"rw-{secrets.token_hex(8)}",
        folder=str(folder),
        nodes=[host],
        processes=[ProcessOrder(name=_PROCESS, command=command)],
    ).write(folder)
    process = subprocess.Popen(
        [*own_command(), "remote", str(folder), _PROCESS, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock,),
        start_new_session=True,
    )

    def end() -> None:
        assert process.stdin is not None
        # Podman cleans up after a step that fails, not after a signal. So the step is killed: all
        # but Podman and what it has for its steps.
        deadline = time.monotonic() + _END_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            for one in [*descendants(process.pid)][2:]:
                try_to(os.kill, one, signal.SIGKILL)
            time.sleep(_LOOK_SECONDS)
        process.stdin.close()
        process.wait(_END_SECONDS)
        discard(str(place))

    # A client that ends takes its threads with it.
    atexit.register(end)
    deadline = time.monotonic() + _LIMIT_SECONDS
    position, is_over = 0, False
    try:
        while not is_over and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            is_over = process.poll() is not None
            position = _tell_steps(folder / LOG, position, say)
    finally:
        atexit.unregister(end)
        end()
    return process.returncode


def _tell_steps(log: Path, position: int, say: Say) -> int:
    """Say which steps of a build have begun since a position in its log; return the new one."""
    try:
        with log.open("rb") as file:
            file.seek(position)
            text = file.read()
    except FileNotFoundError:
        return position
    lines, _, _ = text.rpartition(b"\n")
    for line in lines.decode(errors="replace").splitlines():
        if _STEP.fullmatch(line):
            say(cut(clean(line)))
    return position + len(lines) + bool(lines)
