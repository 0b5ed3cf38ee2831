"""Checks that are functions of the user's: called in a process of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rankwise.checks import calling
from rankwise.checks.material import Material, Missing
from rankwise.checks.words import quote
from rankwise.plan import Check

_MOST_LINES = 10


def fault_by_function(check: Check, material: Material, exit_code: int) -> str:
    """Call a function with what the attempt has left, and say what is wrong; empty: nothing is."""
    path, _, name = check.what.rpartition(":")
    work = material.work_folders()[0]
    told = {
        "path": path,
        "function": name,
        "folder": str(work),
        "attempt": str(material.folder),
        "logs": {who: str(log) for who, log in material.logs().items()},
        "exit_code": exit_code,
    }
    with tempfile.TemporaryDirectory(prefix="rankwise-check-") as folder:
        answer, output = Path(folder) / "answer.json", Path(folder) / "output"
        line = [sys.executable, "-P", calling.__file__, str(answer)]
        code = _run(line, json.dumps(told).encode(), work, output, check.seconds)
        if code is None:
            return f"it took longer than {check.seconds:g} s"
        said = output.read_text(errors="replace").splitlines()[-_MOST_LINES:]
        try:
            fault = _fault(json.loads(answer.read_bytes()))
        except (OSError, ValueError):
            fault = f"its process ended with {code} and gave no answer"
    return f"{fault}{quote(said)}" if fault else ""


def _run(line: list[str], told: bytes, work: Path, output: Path, seconds: float) -> int | None:
    """Run a process with all that it starts, and give its exit code; None: it took too long."""
    # Into a file: whoever holds a pipe open would be waited for.
    with output.open("wb") as file, output.with_name("input").open("w+b") as given:
        given.write(told)
        given.seek(0)
        process = subprocess.Popen(
            line,
            stdin=given,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=work if work.is_dir() else None,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
        )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _fault(answer: dict[str, Any]) -> str:
    if "missing" in answer:
        raise Missing(answer["missing"])
    return str(answer["fault"])
