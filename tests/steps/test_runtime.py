"""Environments that stages of pipelines make."""

from __future__ import annotations

from pathlib import Path

from rankwise.steps.workspace import make

PYTHON = """#!/bin/sh
if [ "$2" = venv ]; then
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    touch "$3/pyvenv.cfg"
fi
"""


def test_an_environment_is_made_anew_when_an_included_file_has_changed(tmp_path: Path) -> None:
    python, first, included = (tmp_path / name for name in ("python", "first.txt", "included.txt"))
    python.write_text(f"{PYTHON}echo 3.11\n")
    python.chmod(0o755)
    first.write_text("-r included.txt\n")
    included.write_text("numpy==1\n")

    def made() -> str:
        folder = tmp_path / "venv"
        return make(folder, str(python), packages=(), requirements=[first], with_site=False)

    identity = made()
    assert made() == identity
    included.write_text("numpy==2\n")
    assert made() != identity
