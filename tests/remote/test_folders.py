"""Folders from which programs are run, here and on other machines: they must be ours alone."""

from __future__ import annotations

import os
import py_compile
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sshd import Sshd

from rankwise.backends.cloud import ProviderConnection
from rankwise.backends.remote.connection import Machine
from rankwise.backends.remote.tracked import Tracked
from rankwise.backends.ssh import SshConnection
from rankwise.documents.site import find_site
from rankwise.documents.site_models import CommandConfig
from rankwise.errors import ComputeFailure


def _foreign(folder: Path, kind: str) -> Path:
    """Give a folder into which others can write, or which belongs to another user."""
    place = folder / "foreign"
    if kind == "writable":
        place.mkdir()
        place.chmod(0o777)
    elif os.getuid() == 0:
        place.mkdir(mode=0o700)
        os.chown(place, 12345, 12345)
    else:
        place = Path("/usr")
    return place


def _instance(folder: Path, place: str, **more: tuple[str, ...]) -> Machine:
    """Give a machine that is this one, by a provider's command line."""
    command = CommandConfig(run=("sh", "-c", "${{command}}"), folder=place, **more)  # type: ignore[arg-type]  # command lines
    line = ProviderConnection("it", {}, command, Tracked(folder / "elsewhere"))
    return Machine(line, folder=place)


@pytest.mark.parametrize("kind", ["writable", "of another user"])
def test_a_folder_of_an_instance_that_is_not_ours_alone_is_refused(
    tmp_path: Path, kind: str
) -> None:
    place = _foreign(tmp_path, kind)
    before = sorted(place.iterdir())
    with pytest.raises(ComputeFailure, match="is not yours alone there") as refused:
        _instance(tmp_path, str(place)).reach()
    assert str(place) in str(refused.value)
    assert sorted(place.iterdir()) == before, "nothing is put there"


@pytest.mark.parametrize("kind", ["writable", "of another user"])
def test_a_folder_of_a_host_that_is_not_ours_alone_is_refused(
    tmp_path: Path, server: Sshd, kind: str
) -> None:
    place = _foreign(tmp_path, kind)
    line = SshConnection("here", config=str(server.config))
    with pytest.raises(ComputeFailure, match="is not yours alone there"):
        Machine(line, folder=str(place)).reach()


@pytest.mark.parametrize("kind", ["writable", "of another user"])
def test_files_are_copied_into_no_folder_that_is_not_ours_alone(tmp_path: Path, kind: str) -> None:
    """They may have the values of secrets in them."""
    place = _foreign(tmp_path, kind)
    copy = ("cp", "${{source}}", "${{target}}")
    with pytest.raises(ComputeFailure, match="not yours alone"):
        _instance(tmp_path, str(place), send=copy).reach()


def test_a_link_of_another_is_followed_once_and_never_again(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    assert _instance(tmp_path, str(tmp_path / "link")).reach().root == str(tmp_path / "real")


def test_our_folder_is_in_the_home_and_for_no_other_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rankwise.toml").write_text(
        '[compute.it]\nbackend = "command"\ncreate = "c"\ndelete = "d"\nrun = "r ${{command}}"\n'
    )
    place = find_site(tmp_path, {}).compute("it").command.folder
    monkeypatch.setenv("HOME", str(tmp_path))
    copy = ("cp", "${{source}}", "${{target}}")
    for machine in (_instance(tmp_path, place), _instance(tmp_path, place, send=copy)):
        root = Path(machine.reach().root)
        assert root.is_relative_to(tmp_path)
        assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["changed", "added", "link", "compiled"])
def test_what_a_stranger_has_put_in_the_place_of_our_files_is_not_run(
    tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "root"
    _instance(tmp_path, str(root)).reach()
    [parts] = root.glob("parts-*")
    stranger = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    if kind == "changed":
        (parts / "agent.py").write_text(stranger)
        (parts / "start.py").write_text(stranger)
    elif kind == "added":
        (parts / "json.py").write_text(stranger)
    elif kind == "compiled":
        (tmp_path / "start.py").write_text(stranger)
        py_compile.compile(
            str(tmp_path / "start.py"),
            cfile=str(parts / "__pycache__" / f"start.{sys.implementation.cache_tag}.pyc"),
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    else:
        (tmp_path / "theirs").mkdir()
        (tmp_path / "theirs" / "agent.py").write_text(stranger)
        (parts / "agent.py").unlink()
        (parts / "agent.py").symlink_to(tmp_path / "theirs" / "agent.py")
    machine = _instance(tmp_path, str(root))
    machine.reach()
    assert machine.ask("look", {"attempts": {}}) == {"attempts": {}}
    assert not (tmp_path / "ran").exists()
    assert [one.name for one in root.glob("parts-*")] == [parts.name]
    assert not (parts / "json.py").exists()


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="rw-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("kind", ["writable", "of another user", "link"])
def test_a_connection_is_kept_in_no_folder_that_is_not_ours_alone(
    short: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Who can write there could answer in the place of a host."""
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    place = short / f"rankwise-ssh-{os.getuid()}"
    if kind == "link":
        (short / "real").mkdir(mode=0o700)
        place.symlink_to("real")
    elif kind == "of another user" and os.getuid() != 0:
        place.symlink_to("/usr")
    else:
        _foreign(short, kind).rename(place)
    with pytest.raises(ComputeFailure, match="is not yours alone"):
        SshConnection("here")
