"""Trouble of the client or of the line: what may run is waited for, and never called lost."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
from sshd import Sshd

from rankwise.backends.base import Attempt, Unreachable
from rankwise.backends.cloud import ProviderConnection, give_all_back
from rankwise.backends.remote import host
from rankwise.backends.remote.connection import Machine
from rankwise.backends.remote.host import SENT
from rankwise.backends.remote.tracked import Tracked, TrackedInstance
from rankwise.documents.site_models import CommandConfig
from rankwise.errors import ComputeFailure, StoreFailure
from tests.acceptance.jobs import wait_for
from tests.backends import places
from tests.backends.places import Place, Watching, provider_table, wait_until
from tests.remote.shops import job, left_on_hosts, recorded, ssh_shop


def _cloud(folder: Path, more: str = "") -> Place:
    (folder / "cloud").mkdir()
    made = Place(folder=folder, table=provider_table(folder / "cloud", more))
    made.prepare()
    return made


def _until_told(watching: Watching, text: str) -> None:
    """Wait until the news have a text; nothing may end meanwhile."""

    def is_told() -> bool:
        assert watching.hear(0.1) == [], watching.news
        return any(text in f"{one.text} {one.silence}" for one in watching.news)

    wait_until(f"it is told: {text}", is_told, seconds=60)


def _started(place: Place, watching: Watching) -> Attempt:
    attempt = place.attempt(watching.compute)
    line = f"echo begun; while ! test -e {place.folder}/go; do sleep 0.05; done; echo 42 > made.txt"
    watching.compute.submit(place.job(attempt, line, timeout=120.0))
    watching.until_written(attempt, "begun")
    return attempt


def test_a_client_without_free_file_descriptors_waits_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = _cloud(tmp_path)
    watching = Watching(place.open(), place.updates)
    attempt = _started(place, watching)

    def none_left() -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "TemporaryFile", none_left)
        _until_told(watching, "Too many open files; trying again")
        assert any(one.attempt == attempt and one.silence for one in watching.news)
    _until_told(watching, "answers again")
    (tmp_path / "go").touch()
    [end] = watching.until_over(attempt)
    watching.compute.close()
    assert end.outcome == "passed", end
    assert [one.silence for one in watching.news if one.silence is not None][-1] == ""


def test_files_stay_on_the_host_until_they_can_be_written_here(tmp_path: Path) -> None:
    """A folder is in the way of a file that was made: nothing of it may be dropped."""
    place = _cloud(tmp_path)
    watching = Watching(place.open(), place.updates)
    attempt = _started(place, watching)
    obstacle = attempt.folder / "nodes" / "node0" / "made.txt"
    obstacle.mkdir(parents=True)
    (tmp_path / "go").touch()
    _until_told(watching, "made.txt: Is a directory; trying again")
    there = tmp_path.glob(f"cloud/i-*/home/rankwise/attempts/{attempt.marker}/end.json")
    assert len(list(there)) == 1, "it was removed before it was here"
    obstacle.rmdir()
    [end] = watching.until_over(attempt)
    watching.compute.close()
    assert end.outcome == "passed", end
    assert obstacle.read_text() == "42\n"


def test_tasks_on_an_instance_that_is_gone_are_lost(tmp_path: Path) -> None:
    place = _cloud(tmp_path)
    watching = Watching(place.open(), place.updates)
    attempt = _started(place, watching)
    [instance] = (tmp_path / "cloud").glob("i-*")
    program = Path(places.__file__).with_name("provider.sh")
    subprocess.run(["sh", program, tmp_path / "cloud", "delete", instance.name], check=True)
    [end] = watching.until_over(attempt)
    watching.compute.close()
    assert end.outcome == "lost"
    assert "is gone" in end.reason


def test_an_unreadable_record_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    """It would have an attempt sent a second time, or an instance taken for gone."""
    place = _cloud(tmp_path)
    compute = place.open()
    attempt = place.attempt(compute)
    (attempt.folder / SENT).mkdir()
    watching = Watching(compute, place.updates)
    assert watching.is_there(attempt, ""), "not known"
    assert any("says on which machine an attempt runs" in one.text for one in watching.news)
    compute.close()

    ledger = Tracked(tmp_path / "elsewhere")
    about = {"list": [], "values": {}, "state": "made"}
    ledger.put(TrackedInstance(name="good", kind="instance", compute="c", run="r", about=about))
    (tmp_path / "elsewhere" / "bad.json").mkdir()
    line = ProviderConnection("bad", {}, CommandConfig(), ledger)
    assert line.is_there() is None
    entries = ledger.entries()
    assert next(entries).name == "good", "the others are known all the same"
    with pytest.raises(StoreFailure, match=r"bad\.json"):
        next(entries)


def test_an_attempt_that_was_never_sent_is_not_watched_by_any_later_client(tmp_path: Path) -> None:
    """The second client was killed as well, after it had given the attempt up."""
    place = _cloud(tmp_path)
    compute = place.open()
    attempt = place.attempt(compute)
    watching = Watching(compute, place.updates)
    assert not watching.is_there(attempt, "")
    watching.news.clear()
    assert not watching.is_there(attempt, "")
    compute.close()


def test_a_host_that_is_silent_for_long_is_waited_for(tmp_path: Path, own_server: Sshd) -> None:
    """Longer than its patience: the status says so, and the task goes on where it was."""
    with ssh_shop(tmp_path, own_server, "patience = 1") as shop:
        line = f"echo x >> {tmp_path}/count; while ! test -e {tmp_path}/go; do sleep 0.1; done"
        shop.write("job.yaml", job(line, more="restart: {max: 1}"))
        client = shop.start("run", "job.yaml")
        wait_for(tmp_path / "count")
        own_server.kill()
        said = "given no answer for more than 1 s"
        wait_until("it is told", lambda: said in shop.rankwise("status").output, seconds=60)
        own_server.start()
        (tmp_path / "go").touch()
        output, errors = client.communicate(timeout=120)
        assert client.returncode == 0, (output, errors)
        assert (tmp_path / "count").read_text() == "x\n", "it ran a second time beside the first"
        assert said not in shop.rankwise("status").output
        assert left_on_hosts(tmp_path) == recorded(shop) == []


def test_what_a_silent_host_has_left_is_ended_later(tmp_path: Path, own_server: Sshd) -> None:
    """It does not come back: the run can be cancelled, and what goes on is not forgotten."""
    with ssh_shop(tmp_path, own_server, "patience = 1") as shop:
        shop.write("job.yaml", job(f"echo $$ > {tmp_path}/begun; sleep 300"))
        client = shop.start("run", "job.yaml")
        number = int(wait_for(tmp_path / "begun"))
        own_server.kill()
        wait_until(
            "it is told", lambda: "waiting for it" in shop.rankwise("status").output, seconds=60
        )
        client.terminate()
        output, errors = client.communicate(timeout=120)
        assert client.returncode == 130, (output, errors)
        assert "rankwise clean ends it" in output, (output, errors)
        assert psutil.pid_exists(number), "no client could end it"
        assert len(recorded(shop)) == 1

        own_server.start()
        said = shop.rankwise("clean")
        assert said.exit_code == 0, said
        assert "gone: folder rw-" in said.output
        wait_until("it is ended", lambda: not psutil.pid_exists(number))
        assert left_on_hosts(tmp_path) == recorded(shop) == []


def test_an_instance_that_cannot_be_deleted_is_reported_and_stays_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Tracked(tmp_path / "elsewhere")
    about = {"list": [], "values": {}, "state": "made", "delete": ["true"]}
    entry = TrackedInstance(name="one", kind="instance", compute="c", run="r", about=about)
    ledger.put(entry)

    def none_left() -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(tempfile, "TemporaryFile", none_left)
    assert "Too many open files" in give_all_back([entry], ledger)["one"]
    assert ledger.get("one") is not None


def test_an_end_is_reported_although_its_folder_cannot_be_removed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = _cloud(tmp_path)
    watching = Watching(place.open(), place.updates)
    attempt = _started(place, watching)
    ask = Machine.ask
    refused: list[str] = []

    def refuse_once(self: Machine, verb: str, request: Any) -> Any:
        if verb == "remove" and not refused:
            refused.append(verb)
            raise ComputeFailure("the machine is out of order")
        return ask(self, verb, request)

    monkeypatch.setattr(Machine, "ask", refuse_once)
    (tmp_path / "go").touch()
    [end] = watching.until_over(attempt)
    watching.compute.close()
    assert (end.outcome, refused) == ("passed", ["remove"])


def test_an_end_is_reported_once_although_its_machine_falls_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = _cloud(tmp_path)
    watching = Watching(place.open(), place.updates)
    attempt = _started(place, watching)
    ask, silence = Machine.ask, ["is silent"]

    def fall_silent(self: Machine, verb: str, request: Any) -> Any:
        if verb == "remove" and silence:
            raise Unreachable("no answer")
        return ask(self, verb, request)

    monkeypatch.setattr(Machine, "ask", fall_silent)
    monkeypatch.setattr(host, "_END_SECONDS", 0.1)
    watching.compute.cancel(attempt)
    [end] = watching.until_over(attempt)
    for _ in range(20):
        assert watching.hear(0.1) == [], "it has ended already"
    silence.clear()
    watching.compute.close()
    assert end.outcome == "cancelled"
