"""Checks that are functions of the user's: called in a process of their own."""

from __future__ import annotations

import json
import os
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
        answer = Path(folder) / "answer.json"
        line = [sys.executable, "-P", calling.__file__, str(answer)]
        try:
            done = subprocess.run(
                line,
                input=json.dumps(told).encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=check.seconds,
                cwd=work if work.is_dir() else None,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it took longer than {check.seconds:g} s"
        said = done.stdout.decode(errors="replace").splitlines()[-_MOST_LINES:]
        try:
            fault = _fault(json.loads(answer.read_bytes()))
        except (OSError, ValueError):
            fault = f"its process ended with {done.returncode} and gave no answer"
    return f"{fault}{quote(said)}" if fault else ""


def _fault(answer: dict[str, Any]) -> str:
    if "missing" in answer:
        raise Missing(answer["missing"])
    return str(answer["fault"])
