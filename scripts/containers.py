"""A real Podman of this machine, with settings and a store of its own and one small image.

    python3 scripts/containers.py --install                 no containers, only what they need
    python3 scripts/containers.py podman images             one command while it is there
    python3 scripts/containers.py podman run --rm --network host IMAGE python -c 'print(1)'

The image (its name is in RANKWISE_TEST_IMAGE) has a shell and the Python that runs this, from the
files of this machine: nothing is fetched from anywhere. It is kept in .venvs/containers until they
change. Containers that are left are removed with the store. Needs Debian's podman, and root.

Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import pwd
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from debian import add_option, install, refuse

PACKAGES = ("podman", "runc", "catatonit", "uidmap")
_PROGRAMS_NEEDED = ("podman", "runc", "catatonit", "newuidmap")
USER = "rankwise-test"
"""Has containers of its own, without any right. It is made with the packages."""
IMAGE = "localhost/rankwise-test:1"
LIMIT_SECONDS = 120.0
_KEPT_IN = Path(__file__).resolve().parent.parent / ".venvs" / "containers"
_LAYOUT = 3
"""To be raised when the image is made in another way from the same files."""
_SHELL = Path("/bin/sh")
# Parts of the C library that are empty today, and that programs made before still ask for.
_OLD_LIBRARIES = ("libpthread.so.0", "librt.so.1", "libdl.so.2", "libutil.so.1")
_PROGRAMS = ("python", "python3")
_MOST_LIMIT = 4096
_FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp", "usr/local/bin")
# No test needs these in a container, and they are most of what a Python takes.
_LEFT_OUT = re.compile(
    r"(^|/)(tests?|site-packages|dist-packages|idlelib|tkinter|turtledemo|lib2to3|ensurepip"
    r"|pydoc_data|distutils|encodings/(mac|cp|iso|big|gb|euc|koi|jis|shift|johab|hz)\w*\.py"
    r"|unittest|config-[^/]*)(/|$)|\.opt-\d\.pyc$|/_(ctypes_test|test|tkinter)[^/]*\.so$|\.a$"
)
# Limits higher than this machine's own cannot be set, and there is no systemd everywhere.
_SETTINGS = """\
[containers]
volumes = [{volumes}]
default_ulimits = ["nofile={limit}:{limit}", "nproc={limit}:{limit}"]

[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_STORE = """\
[storage]
driver = "{driver}"
graphroot = "{folder}/store"
runroot = "{folder}/run"

[storage.options]
additionalimagestores = [{others}]
"""


@dataclass(frozen=True, slots=True)
class Podman:
    """An engine with a store of its own."""

    folder: Path
    driver: str

    @property
    def variables(self) -> dict[str, str]:
        """Return the options that make every podman use this store."""
        return {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "RANKWISE_TEST_IMAGE": IMAGE,
        }

    def prepare(self, *stores: Path, volumes: Sequence[Path] = ()) -> None:
        """Write the settings; images in `stores` are seen too, and `volumes` in all containers."""
        hard = [resource.getrlimit(kind)[1] for kind in _LIMITED]
        limit = min([_MOST_LIMIT, *(one for one in hard if one != resource.RLIM_INFINITY)])
        mounts = ", ".join(f'"{one}:{one}:ro"' for one in volumes)
        text = _SETTINGS.format(limit=limit, volumes=mounts)
        (self.folder / "containers.conf").write_text(text)
        others = ", ".join(f'"{store}"' for store in stores)
        text = _STORE.format(driver=self.driver, folder=self.folder, others=others)
        (self.folder / "storage.conf").write_text(text)

    def ask(self, *arguments: str | Path) -> str:
        """Run a command of podman to its end, and give what it prints."""
        done = subprocess.run(
            ["podman", *map(str, arguments)],
            env={**os.environ, **self.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"podman {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def containers(self) -> list[str]:
        """Name the containers that there are, running or not."""
        return self.ask("ps", "--all", "--format", "{{.Names}} {{.Status}}").splitlines()


@dataclass(frozen=True, slots=True)
class RootlessPodman:
    """The engine of a user without rights: a folder of theirs, and how they call programs."""

    folder: Path
    engine: Podman

    @property
    def variables(self) -> dict[str, str]:
        """Return what a login would set, and the options of the engine."""
        own = {"HOME": self.folder / "home", "XDG_RUNTIME_DIR": self.folder / "runtime"}
        return {**{name: str(path) for name, path in own.items()}, **self.engine.variables}

    def command(self, *words: str | Path) -> list[str]:
        """Return a command that is run as the user."""
        who = ("--reuid", USER, "--regid", USER, "--clear-groups")
        return ["setpriv", *who, *map(str, words)]

    def ask(self, *words: str | Path) -> str:
        """Run a command as the user, in their folder."""
        done = subprocess.run(
            self.command(*words),
            env={**os.environ, **self.variables},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout


@contextlib.contextmanager
def rootless(engine: Podman, volumes: Sequence[Path] = ()) -> Iterator[RootlessPodman]:
    """Have an engine of the user with the image of another; all of it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="rankwise-rootless-", dir="/tmp") as name:
        own = Podman(Path(name), "overlay")
        own.prepare(volumes=volumes)
        made = RootlessPodman(Path(name), own)
        for folder in ("home", "runtime"):
            (made.folder / folder).mkdir(mode=0o700)
        image = made.folder / "image.tar"
        engine.ask("save", "--quiet", "--output", image, IMAGE)
        for path in (made.folder, *made.folder.iterdir()):
            shutil.chown(path, USER, USER)
        try:
            # This leaves a process that keeps the user's namespace, until all is reset.
            made.ask("podman", "load", "--quiet", "--input", image)
            yield made
        finally:
            made.ask("podman", "system", "reset", "--force")


_LIMITED = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)


@contextlib.contextmanager
def podman(volumes: Sequence[Path] = ()) -> Iterator[Podman]:
    """Have an engine with an image; its containers see `volumes`, and end with the block."""
    with _folder() as folder:
        driver = _driver(folder)
        store = _image_store(driver)
        made = Podman(folder, driver)
        made.prepare(store, volumes=volumes)
        try:
            yield made
        finally:
            _remove_all(made)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rankwise-podman-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _driver(folder: Path) -> str:
    """Choose how layers are put upon each other: overlay does not work upon an overlay."""
    place = folder / "attempt"
    place.mkdir()
    tried = Podman(place, "overlay")
    tried.prepare()
    try:
        tried.ask("info")
    except RuntimeError:
        return "vfs"
    finally:
        _remove_all(tried)
    return "overlay"


def _remove_all(engine: Podman) -> None:
    """Remove containers, and the store itself, which is mounted on itself."""
    with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
        engine.ask("rm", "--all", "--force", "--time=0")
    place = engine.folder / "store" / engine.driver
    subprocess.run(["umount", "--quiet", str(place)], capture_output=True, check=False)


def _image_store(driver: str) -> Path:
    """Return a store with the image, made if it is not there yet."""
    python = _python()
    place = _KEPT_IN / f"{driver}-{_digest(python)}"
    _KEPT_IN.mkdir(parents=True, exist_ok=True)
    with (_KEPT_IN / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "ready").exists():
            for old in _KEPT_IN.glob("*-*"):
                shutil.rmtree(old)
            programs = [path for path in python.values() if path.suffix == ".so"]
            libraries = _libraries([_interpreter(), _SHELL, *programs])
            shell = {str(_SHELL).lstrip("/"): _SHELL}
            _make_image(place, driver, {**python, **libraries, **shell})
            (place / "ready").touch()
    return place / "store"


def _make_image(place: Path, driver: str, entries: Mapping[str, Path]) -> None:
    place.mkdir()
    maker = Podman(place, driver)
    maker.prepare()
    with tempfile.NamedTemporaryFile(prefix="rankwise-image-", suffix=".tar") as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            _pack(tar, entries)
        file.flush()
        setting = "ENV PATH=/usr/local/bin:/usr/bin:/bin"
        maker.ask("import", "--quiet", "--change", setting, file.name, IMAGE)
    _remove_all(maker)


def _python() -> dict[str, Path]:
    """List the files of this Python: names in the image, and where they are here."""
    files = [_interpreter()]
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = [name for name in folders if not _LEFT_OUT.search(f"{folder}/{name}")]
        files += [Path(folder, name) for name in names if not _LEFT_OUT.search(f"{folder}/{name}")]
    return {str(path).lstrip("/"): path for path in sorted(files)}


def _libraries(programs: Sequence[Path]) -> dict[str, Path]:
    """List the libraries that programs and other libraries need."""
    told = subprocess.run(
        ["ldd", *map(str, programs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    ).stdout
    found = {Path(name) for name in re.findall(r"(/\S+) \(0x", told)}
    old = [library.parent / name for library in found for name in _OLD_LIBRARIES]
    return {str(path).lstrip("/"): path for path in (*found, *old) if path.exists()}


def _interpreter() -> Path:
    return Path(os.path.realpath(sys.executable))


def _digest(entries: Mapping[str, Path]) -> str:
    """Know the files by their names, sizes and times: reading them all takes too long."""
    digest = hashlib.sha256(f"{_LAYOUT} {_interpreter()} {_FOLDERS}".encode())
    for name, path in entries.items():
        about = path.stat()
        digest.update(f"{name} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _pack(tar: tarfile.TarFile, entries: Mapping[str, Path]) -> None:
    """Write the image's files; its processes run as root, or as a user that it does not know."""
    for name in _FOLDERS:
        folder = tarfile.TarInfo(name)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        tar.addfile(folder)
    for name, path in entries.items():
        with path.resolve().open("rb") as content:
            entry = tar.gettarinfo(arcname=name, fileobj=content)
            # A file with two names would become a link to a file that is perhaps left out.
            entry.type, entry.linkname = tarfile.REGTYPE, ""
            entry.size = path.stat().st_size
            entry.uid = entry.gid = 0
            tar.addfile(entry, content)
    # Also beside the interpreter, where environments that are mounted look for it.
    for place in ("usr/local/bin", str(_interpreter().parent).lstrip("/")):
        for program in _PROGRAMS:
            if f"{place}/{program}" not in entries:
                link = tarfile.TarInfo(f"{place}/{program}")
                link.type, link.linkname = tarfile.SYMTYPE, str(_interpreter())
                tar.addfile(link)


def obstacle() -> str | None:
    """Say why there can be no containers here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "the containers of the tests need Linux and root"
    if missing := [name for name in _PROGRAMS_NEEDED if shutil.which(name) is None]:
        return f"{', '.join(missing)} cannot be found: apt-get install {' '.join(PACKAGES)}"
    return None


def rootless_obstacle() -> str | None:
    """Say why no other user can have containers here, or None."""
    if why := obstacle():
        return why
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return f"there is no user {USER}: python3 scripts/containers.py --install"
    return None


def _make_user() -> None:
    if rootless_obstacle() and not obstacle():
        # Such a user has subordinate ids, unlike one of the system.
        command = ["useradd", "--no-create-home", "--home-dir", "/nonexistent", USER]
        subprocess.run(command, check=True, capture_output=True)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_option(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    if why := install(PACKAGES, obstacle):
        return refuse(f"no containers here: {why}", chosen, environment)
    _make_user()
    if chosen.install:
        return 0
    with podman() as made:
        command = [IMAGE if word == "IMAGE" else word for word in chosen.command] or ["bash"]
        return subprocess.run(
            command, env={**environment, **made.variables}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
