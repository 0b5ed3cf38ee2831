"""Which machine a task gets, and how files get there, by the computes themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from sshd import Sshd

from rankwise.backends.base import Attempt
from rankwise.backends.doctor import check_compute
from rankwise.documents.site import find_site
from rankwise.errors import ComputeFailure
from rankwise.plan import Resources
from rankwise.records import AttemptEnd
from tests.backends.places import NAME, Place, Watching, output_of, provider_table


def _place(folder: Path, table: str) -> Place:
    made = Place(folder=folder, table=table)
    made.prepare()
    return made


def _cloud(folder: Path, more: str) -> Place:
    (folder / "cloud").mkdir()
    return _place(folder, provider_table(folder / "cloud", more))


def _run(place: Place, *lines: str, **more: object) -> list[tuple[Attempt, AttemptEnd]]:
    """Run lines at once, and give everything back."""
    compute = place.open()
    attempts = [place.attempt(compute) for _ in lines]
    for attempt, line in zip(attempts, lines, strict=True):
        compute.submit(place.job(attempt, line, **more))
    ends = Watching(compute, place.updates).until_over(*attempts)
    compute.close()
    return list(zip(attempts, ends, strict=True))


def _calls(folder: Path) -> list[str]:
    lines = (folder / "cloud" / "calls.log").read_text().splitlines()
    return [line.split()[0] for line in lines]


def test_without_reuse_each_task_has_an_instance_of_its_own(tmp_path: Path) -> None:
    place = _cloud(tmp_path, "reuse = false\ninstances = 2")
    found = _run(place, "echo $INSTANCE", "echo $INSTANCE")
    assert [end.outcome for _, end in found] == ["passed", "passed"]
    assert len({output_of(attempt) for attempt, _ in found}) == 2
    calls = _calls(tmp_path)
    assert calls.count("create") == calls.count("delete") == 2
    assert list((tmp_path / "cloud").glob("i-*")) == []


def test_tasks_share_an_instance_that_is_said_to_have_room(tmp_path: Path) -> None:
    """Each waits for the other: they must run at once."""
    place = _cloud(tmp_path, "cores = 2\ninstances = 2")
    lines = [
        f"touch {tmp_path}/{own}; while ! test -e {tmp_path}/{other}; do sleep 0.05; done"
        for own, other in (("a", "b"), ("b", "a"))
    ]
    found = _run(place, *lines, timeout=60.0)
    assert [end.outcome for _, end in found] == ["passed", "passed"]
    assert _calls(tmp_path).count("create") == 1


def test_files_go_by_send_and_fetch_where_run_cannot_pass_them(tmp_path: Path) -> None:
    """The instance's `run` has no input, and wraps what is written into something else."""
    copy = '["cp", "${{source}}", "${{target}}"]'
    place = _cloud(tmp_path, f"send = {copy}\nfetch = {copy}")
    wrapped = 'run = ["sh", "-c", "\\"$@\\" < /dev/null | sed s/^/said:/", "sh", '
    text = place.table.replace("run = [", wrapped)
    text = text.replace('folder = "~/rankwise"', f'folder = "{tmp_path}/far"')
    (tmp_path / "rankwise.toml").write_text(f"[compute.{NAME}]\n{text}")
    [(attempt, end)] = _run(place, "cat greeting.txt; echo 42 > made.txt")
    assert end.outcome == "passed", end
    assert output_of(attempt) == "good morning\n"
    assert (attempt.folder / "nodes/node0/made.txt").read_text() == "42\n"
    assert [one for one in (tmp_path / "far").iterdir() if one.is_file()] == [], "it was copied"


def test_what_cannot_be_made_is_not_run_and_says_why(tmp_path: Path) -> None:
    place = _cloud(tmp_path, "")
    (tmp_path / "cloud" / "fail-create").write_text("")
    [(_, end)] = _run(place, "true")
    assert end.outcome == "not run"
    assert "`create` failed: the provider is out of order: create" in end.reason
    assert _calls(tmp_path).count("create") == 1
    assert list((tmp_path / "store" / "elsewhere").iterdir()) == [], "`list` says it is not there"


def test_a_host_that_is_down_does_not_keep_the_others(tmp_path: Path, server: Sshd) -> None:
    settings = server.config.read_text()
    config = tmp_path / "config"
    config.write_text(f"Host down\n  HostName 127.0.0.1\n  Port 9\n{settings}")
    table = f'backend = "ssh"\nhosts = ["down", "here"]\nconfig = "{config}"\n'
    place = _place(tmp_path, f'{table}folder = "{tmp_path}/there"\ncores = 3\ngpus = 1')
    [(attempt, end)] = _run(place, "cat greeting.txt")
    assert end.outcome == "passed", end
    assert output_of(attempt) == "good morning\n"

    found = check_compute(NAME, find_site(tmp_path), tmp_path)
    assert [one.is_well for one in found] == [False, True, True, True]

    compute = place.open()
    facts = compute.facts()
    assert facts.capacity.cores == facts.room.cores == 3
    assert _refusal(place, resources=Resources(gpus=2)) == "needs 2 GPUs, found 1"
    with pytest.raises(ComputeFailure, match="needs 2 nodes, and a task runs on one machine"):
        compute.submit(place.job(place.attempt(compute), "true", nodes=2))


def _refusal(place: Place, **more: object) -> str:
    """Say why a task is not taken."""
    [(_, end)] = _run(place, "true", **more)
    assert end.outcome == "not run"
    return end.reason
