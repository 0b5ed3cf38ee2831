"""A small provider of machines with a command line, which really makes something: a folder and a
process, in which commands run. Whatever is left of it can be seen in its folder.

    python provider_cli.py FOLDER create NAME | ready ID | run ID LINE | delete ID | list

A file `FOLDER/fail-VERB` makes a verb fail; the number in it says how many times, none: always.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main(folder: str, verb: str, *rest: str) -> int:
    root = Path(folder)
    with (root / "calls.log").open("a") as log:
        log.write(f"{verb} {rest[0] if rest else ''}\n")
    if is_to_fail(root / f"fail-{verb}"):
        print(f"the provider is out of order: {verb}", file=sys.stderr)
        return 1
    match verb, *rest:
        case "create", name:
            return create(root, name)
        case ("list",):
            found = [json.loads(path.read_text()) for path in root.glob("i-*/about.json")]
            print(json.dumps(found))
            return 0
        case (("ready" | "run" | "delete"), number, *line):
            place = root / number
            if not place.is_dir():
                print(f"there is no instance {number}", file=sys.stderr)
                return 1
            if verb == "delete":
                return delete(place)
            return 0 if verb == "ready" else run(place, line[0])
    return 2


def is_to_fail(path: Path) -> bool:
    if not path.exists():
        return False
    left = path.read_text().strip()
    if left == "0":
        return False
    if left:
        path.write_text(str(int(left) - 1))
    return True


def create(root: Path, name: str) -> int:
    number = f"i-{os.urandom(4).hex()}"
    place = root / number
    (place / "home").mkdir(parents=True)
    machine = subprocess.Popen(
        ["sleep", "600"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    about = {"id": number, "name": name, "pid": machine.pid}
    (place / "about.json").write_text(json.dumps(about))
    if (root / "slow-create").exists():
        time.sleep(3)
    print("making it …")
    print(json.dumps(about, indent=2))
    return 0


def run(place: Path, line: str) -> int:
    """Run a line in the instance; what it starts is known by a variable."""
    own = {"HOME": str(place / "home"), "PATH": os.environ["PATH"], "INSTANCE": place.name}
    own["TMPDIR"] = str(place)
    return subprocess.run(
        ["/bin/sh", "-c", line], cwd=place / "home", env=own, check=False
    ).returncode


def delete(place: Path) -> int:
    """End the machine and everything on it, and remove its disk."""
    about = json.loads((place / "about.json").read_text())
    wanted = f"INSTANCE={place.name}".encode()
    own = [about["pid"]]
    for entry in Path("/proc").iterdir():
        try:
            is_own = entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(
                b"\0"
            )
        except OSError:
            continue
        own += [int(entry.name)] if is_own else []
    for pid in own:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["rm", "-rf", str(place)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
