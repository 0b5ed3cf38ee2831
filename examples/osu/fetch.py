"""Take the OSU benchmarks from the source package of mpi4py, if they are not here yet."""

import subprocess
import sys
import tarfile
from pathlib import Path

VERSION = "4.1.2"
HERE = Path(__file__).resolve().parent
PLACE = HERE / ".benchmarks"

if not list(PLACE.glob("osu_*.py")):
    PLACE.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    options = ["--no-binary=mpi4py", f"--dest={PLACE}", f"mpi4py=={VERSION}"]
    subprocess.run([*pip, *options], check=True)
    with tarfile.open(PLACE / f"mpi4py-{VERSION}.tar.gz") as package:
        for member in package.getmembers():
            name = Path(member.name).name
            if "/demo/osu_" in member.name and name.endswith(".py"):
                content = package.extractfile(member)
                assert content is not None
                (PLACE / name).write_bytes(content.read())
print(f"{len(list(PLACE.glob('osu_*.py')))} benchmarks in {PLACE}")
