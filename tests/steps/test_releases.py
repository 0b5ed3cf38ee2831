"""Releases: each is whole at any moment, however the process ends that makes it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rankwise.errors import InputError
from rankwise.node.files import Locked
from rankwise.steps.releases import current_in, deploy, deploy_step, releases_in, roll_back

FILES = 60
KILLS = 25


def build(folder: Path, version: str) -> Path:
    """Write a build: a folder deep inside, a program, a link, and many files that must agree."""
    source = folder / f"build-{version}"
    (source / "lib" / "deep").mkdir(parents=True)
    for number in range(FILES):
        (source / "lib" / "deep" / f"{number}.txt").write_text(version)
    (source / "run").write_text(f"#!/bin/sh\necho {version}\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("lib/deep/0.txt")
    return source


def names(folder: Path) -> list[str]:
    return [release.name for release in releases_in(folder)]


def check_whole(folder: Path) -> str:
    """See that what `current` leads to is one version, complete; gives its name."""
    place = (folder / "current").resolve(strict=True)
    texts = {path.read_text() for path in (place / "lib" / "deep").iterdir()}
    assert len(list((place / "lib" / "deep").iterdir())) == FILES
    assert len(texts) == 1
    assert subprocess.check_output([place / "run"], text=True).strip() == texts.pop()
    return place.name


def test_a_build_becomes_a_release_and_the_oldest_go(tmp_path: Path) -> None:
    releases = tmp_path / "soft" / "releases"
    for version in "12345":
        deploy(build(tmp_path, version), releases, f"v{version}", keep=3)
        assert check_whole(releases) == f"v{version}"
    assert names(releases) == ["v3", "v4", "v5"]
    assert (releases / "v5" / "link").readlink() == Path("lib/deep/0.txt")
    assert sorted(path.name for path in releases.iterdir()) == [
        ".lock",
        "current",
        "v3",
        "v4",
        "v5",
    ]


def test_a_repetition_changes_nothing(tmp_path: Path) -> None:
    source, releases = build(tmp_path, "1"), tmp_path / "releases"
    first = deploy(source, releases, "v1", keep=3)
    assert deploy(source, releases, "v1", keep=3) == first
    assert check_whole(releases) == "v1"


def test_an_earlier_release_is_put_in_use_again(tmp_path: Path) -> None:
    releases = tmp_path / "releases"
    for version in "123":
        deploy(build(tmp_path, version), releases, f"v{version}", keep=3)
    assert roll_back(releases).name == "v2"
    assert check_whole(releases) == "v2"
    assert roll_back(releases, "v3").is_current
    assert names(releases) == ["v1", "v2", "v3"]
    with pytest.raises(InputError, match="no release 'v9', only v1, v2, v3"):
        roll_back(releases, "v9")
    roll_back(releases, "v1")
    with pytest.raises(InputError, match="no release before v1"):
        roll_back(releases)


def test_the_release_in_use_is_not_removed_however_old_it_is(tmp_path: Path) -> None:
    releases = tmp_path / "releases"
    for version in "12":
        deploy(build(tmp_path, version), releases, f"v{version}", keep=5)
    roll_back(releases, "v1")
    deploy(build(tmp_path, "3"), releases, "v3", keep=1)
    assert names(releases) == ["v3"]
    assert check_whole(releases) == "v3"


@pytest.mark.parametrize("name", ["../x", "current", ".hidden", "", "a/b"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no name for a release"):
        deploy(build(tmp_path, "1"), tmp_path / "releases", name, keep=3)


def test_what_is_not_ours_is_not_touched(tmp_path: Path) -> None:
    source, releases = build(tmp_path, "1"), tmp_path / "releases"
    with pytest.raises(InputError, match="is not there"):
        deploy(tmp_path / "nothing", releases, "v1", keep=3)
    (releases / "v1").mkdir(parents=True)
    with pytest.raises(InputError, match="no release of rankwise's"):
        deploy(source, releases, "v1", keep=3)
    (releases / "current").mkdir()
    with pytest.raises(InputError, match="not a link of rankwise's"):
        deploy(source, releases, "v2", keep=3)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="is a file, not a folder"):
        deploy(source, file / "releases", "v1", keep=3)
    with pytest.raises(InputError, match="inside of the build"):
        deploy(source, source / "releases", "v1", keep=3)


def test_a_disk_that_is_full_leaves_the_old_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases = tmp_path / "releases"
    deploy(build(tmp_path, "1"), releases, "v1", keep=3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        with pytest.raises(OSError, match="No space"):
            deploy(build(tmp_path, "2"), releases, "v2", keep=3)
    assert check_whole(releases) == "v1"
    assert names(releases) == ["v1"]
    deploy(tmp_path / "build-2", releases, "v2", keep=3)
    assert check_whole(releases) == "v2"
    assert not list(releases.glob(".staging-*"))


def _full(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_deploy_that_is_killed_leaves_a_whole_release(tmp_path: Path) -> None:
    """Kill deployments one after the other, each at another moment; the next one goes on."""
    releases = tmp_path / "releases"
    deploy(build(tmp_path, "0"), releases, "v0", keep=2)
    chance = random.Random(7)
    for number in range(1, KILLS + 1):
        source = build(tmp_path, str(number))
        before = current_in(releases)
        # As a process, of which only the part after the imports is killed.
        line = (
            "import sys; from pathlib import Path; from rankwise.steps.releases import deploy; "
            "print('go', flush=True); "
            "deploy(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], keep=2)"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", line, source, releases, f"v{number}"], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        now = check_whole(releases)
        assert now in (before, f"v{number}")
    deploy(build(tmp_path, "last"), releases, "last", keep=2)
    assert check_whole(releases) == "last"
    assert len(names(releases)) <= 2
    assert not [path for path in releases.iterdir() if path.name.startswith((".s", ".r", ".c"))]


def test_a_name_that_another_build_has_is_refused(tmp_path: Path) -> None:
    releases = tmp_path / "releases"
    deploy(build(tmp_path, "1"), releases, "v", keep=3)
    deploy(tmp_path / "build-1", releases, "v", keep=3)
    with pytest.raises(InputError, match="v is a release of another build"):
        deploy(build(tmp_path, "2"), releases, "v", keep=3)
    assert (releases / "current" / "lib" / "deep" / "0.txt").read_text() == "1"


def test_a_build_whose_files_can_be_run_is_another_than_one_whose_cannot(tmp_path: Path) -> None:
    releases = tmp_path / "releases"
    made = build(tmp_path, "1")
    program = made / "program"
    program.write_text("#!/bin/sh\n")
    deploy(made, releases, "v", keep=3)
    program.chmod(0o755)
    with pytest.raises(InputError, match="v is a release of another build"):
        deploy(made, releases, "v", keep=3)


def test_a_build_that_differs_in_a_file_with_brackets_is_another(tmp_path: Path) -> None:
    releases = tmp_path / "releases"
    first, second = build(tmp_path, "1"), build(tmp_path, "1b")
    for source in (first, second):
        (source / "run").write_text("same")
        for path in (source / "lib" / "deep").iterdir():
            path.write_text("same")
        (source / "data[1].txt").write_text(source.name)
    deploy(first, releases, "1", keep=3)
    with pytest.raises(InputError, match="a release of another build"):
        deploy(second, releases, "1", keep=3)


def test_a_release_that_is_removed_meanwhile_is_not_put_in_use(tmp_path: Path) -> None:
    releases = tmp_path / "releases"
    for version in "12":
        deploy(build(tmp_path, version), releases, version, keep=3)
    problems: list[Exception] = []

    def go_back() -> None:
        try:
            roll_back(releases)
        except InputError as error:
            problems.append(error)

    with Locked(releases / ".lock"):
        thread = threading.Thread(target=go_back)
        thread.start()
        time.sleep(0.2)
        shutil.rmtree(releases / "1")
    thread.join(10)
    assert "no release before 2" in str(problems)
    assert current_in(releases) == "2"


@pytest.mark.parametrize("written", ["$NOT_SET/x", "${NOT_SET}/x"])
def test_a_variable_that_is_not_set_does_not_become_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    with pytest.raises(InputError, match="the variable NOT_SET is not set"):
        deploy_step(source="build", to=written, name="1", keep=3)
    assert [path.name for path in tmp_path.iterdir()] == ["build"]
    # A `$` that begins no variable is part of a name.
    deploy_step(source="build", to="a$/5$", name="1", keep=3)
    assert current_in(tmp_path / "a$" / "5$") == "1"
