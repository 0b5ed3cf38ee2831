"""Archives are unpacked with the trust that their origin deserves, whatever Python's default is.

Of those that come from ourselves, links of the user's own that lead out of their folder are kept:
also by a Python whose tarfile would refuse them unless it is told otherwise, as from 3.14 on.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from rankwise.backends.remote.packing import AttemptMirror
from rankwise.node import agent
from rankwise.steps.keeping import restore, save

pytestmark = pytest.mark.skipif(
    not hasattr(tarfile, "data_filter"), reason="this Python has no filters"
)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the default of Python 3.14."""
    monkeypatch.setattr(tarfile.TarFile, "extraction_filter", staticmethod(tarfile.data_filter))


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the default of Python 3.11."""
    default = staticmethod(tarfile.fully_trusted_filter)
    monkeypatch.setattr(tarfile.TarFile, "extraction_filter", default)


def packed(*members: tarfile.TarInfo) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"0" * member.size))
    file.seek(0)
    return file


def link(name: str, to: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, to
    return member


def plain(name: str, mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = 1, mode
    return member


@pytest.mark.usefixtures("trusting")
def test_what_comes_from_another_machine_neither_leads_out_nor_gains_rights(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    strange = [link("link", ".."), plain("link/out.txt"), plain("program", 0o6777)]
    parcel = packed(*strange, plain(agent.FETCHED))
    AttemptMirror(here).unpack(parcel)
    assert not (tmp_path / "out.txt").exists()
    assert not (here / "link").is_symlink()
    assert (here / "program").stat().st_mode & 0o7022 == 0


@pytest.mark.usefixtures("strict")
def test_an_attempt_arrives_on_another_machine_with_the_links_of_its_code(tmp_path: Path) -> None:
    parcel = packed(link("data", "/usr/share"), plain(agent.WHOLE))
    agent.unpack(parcel, str(tmp_path / "attempt"))
    assert (tmp_path / "attempt" / "data").readlink() == Path("/usr/share")


@pytest.mark.parametrize("name", ["../out.txt", "TMP/out.txt", "a/../../out.txt"])
def test_an_attempt_with_names_outside_of_its_folder_does_not_arrive(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "attempts" / "one"
    folder.parent.mkdir()
    with pytest.raises(OSError, match="no name for a file of an attempt"):
        agent.unpack(
            packed(plain(name.replace("TMP", str(tmp_path))), plain(agent.WHOLE)), str(folder)
        )
    assert [*tmp_path.rglob("*")] == [folder.parent]


@pytest.mark.usefixtures("strict")
def test_a_cache_is_put_back_with_its_links_and_modes(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "python").symlink_to("/usr/bin/python3")
    (made / "shared").write_text("x")
    (made / "shared").chmod(0o666)
    assert save(tmp_path / "cache.tar", ["made"], tmp_path)
    made.rename(tmp_path / "gone")
    assert restore(tmp_path / "cache.tar", ["made"], tmp_path)
    assert (made / "python").readlink() == Path("/usr/bin/python3")
    assert (made / "shared").stat().st_mode & 0o777 == 0o666
