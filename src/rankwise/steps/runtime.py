"""Makes a virtual environment that later stages work in."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rankwise.errors import ComputeFailure, InputError
from rankwise.steps.identity import identity_at, note_identity
from rankwise.steps.program import expanded, guarded, leave

_STAMP = ".rankwise-runtime"


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="rankwise.steps.runtime", description=__doc__)
    parser.add_argument("into", help="its folder")
    parser.add_argument("--python", default="", help="the Python to make it from")
    parser.add_argument("--requirements", action="append", default=[], help="file of packages")
    parser.add_argument("--package", action="append", default=[], help="a package")
    parser.add_argument("--site-packages", action="store_true", help="see those of that Python")
    given = parser.parse_args()

    def act() -> None:
        folder = Path(expanded(given.into)).absolute()
        identity = make(
            folder,
            _interpreter(expanded(given.python)),
            packages=given.package,
            requirements=[Path(expanded(name)) for name in given.requirements],
            with_site=given.site_packages,
        )
        note_identity(identity)
        leave(
            {
                "VIRTUAL_ENV": str(folder),
                "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', os.defpath)}",
                "PYTHONHOME": None,
            }
        )

    return guarded(act)


def make(
    folder: Path,
    python: str,
    *,
    packages: Sequence[str],
    requirements: Sequence[Path],
    with_site: bool,
) -> str:
    """Make it, unless it is there as wanted; gives its identity."""
    for file in requirements:
        if not file.is_file():
            raise InputError(f"there is no file {file}")
    version = _run([python, "-I", "-c", "import sys; print(sys.version, sys.base_prefix)"])
    wanted = [version, str(with_site), *packages, *(file.read_text() for file in requirements)]
    stamp = hashlib.sha256("\0".join(wanted).encode()).hexdigest()
    if _stamp_of(folder) == stamp:
        print(f"{folder}: as it was")
        return identity_at(folder / _STAMP, stamp, is_new=False)
    if folder.exists() and not (folder / "pyvenv.cfg").exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is there, and no virtual environment: move it away")
    shutil.rmtree(folder, ignore_errors=True)
    line = [python, "-m", "venv", str(folder)]
    _run([*line, "--system-site-packages"] if with_site else line)
    asked = [*packages, *(word for file in requirements for word in ("-r", str(file)))]
    if asked:
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        # Seen, not caught: it may take long.
        done = subprocess.run([*pip, "install", "--no-input", *asked], check=False)
        if done.returncode:
            raise ComputeFailure(f"pip left with exit code {done.returncode}; see above")
    # Last of all: without it, the next one begins anew.
    print(f"{folder}: made with {version.split()[0]}")
    return identity_at(folder / _STAMP, stamp, is_new=True)


def _stamp_of(folder: Path) -> str:
    try:
        return (folder / _STAMP).read_text().partition(" ")[0]
    except OSError:
        return ""


def _interpreter(given: str) -> str:
    if not given:
        return sys.executable
    found = shutil.which(given) or (given if Path(given).is_file() else None)
    if found is None:
        raise InputError(f"there is no Python {given!r}")
    return found


def _run(line: Sequence[str]) -> str:
    done = subprocess.run(
        line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ComputeFailure(f"{' '.join(line)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
