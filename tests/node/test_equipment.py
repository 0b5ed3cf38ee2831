"""How the runtime of an attempt is made ready on a machine that is elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankwise.node import equipment


@pytest.mark.parametrize("name", ["pylock.txt", "requirements.txt", "complete", "lock"])
def test_a_lock_is_installed_and_then_the_requirements_whatever_the_lock_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    installed: list[str] = []

    def call(choice: dict[str, Any], command: Sequence[str]) -> None:
        if "install" in command:
            installed.append(Path(command[-1]).read_text())
            assert not list(tmp_path.glob("runtimes/*/complete"))

    monkeypatch.setattr(equipment, "call", call)
    monkeypatch.setattr(equipment, "find_uv", lambda root: "")
    choice = {"name": "r", "python": "", "host_python": "python3", "requirements": ["two"]}
    choice |= {"lock_digest": "", "locked": [name, "one==1\n"]}
    equipment.environment_for(choice, str(tmp_path))
    assert installed == ["one==1\n", "two\n"]
