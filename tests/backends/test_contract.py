"""What every compute does, on real ones: see `places.py` for how another one joins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.backends.base import Attempt
from tests.backends.places import NAME, PLACES, Place, Watching, files_with, output_of, wait_until

_SECRET = "correct-horse-battery-staple"
_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp(request.param)
    with PLACES[request.param](folder) as made, pytest.MonkeyPatch.context() as patch:
        made.prepare()
        for name, value in made.variables.items():
            patch.setenv(name, value)
        yield made


def test_attempts_end_as_their_processes_do(place: Place) -> None:
    compute = place.open()
    watching = Watching(compute, place.updates)
    lines = {
        "passed": "cat greeting.txt; echo made > result.txt",
        "failed": "echo oops >&2; exit 7",
        "crashed": "kill -SEGV $$",
        "timed out": "echo slow; exec sleep 300",
    }
    attempts = {}
    for name, line in lines.items():
        attempt = attempts[name] = place.attempt(compute)
        limit = 2.0 if name == "timed out" else 60.0
        compute.submit(place.job(attempt, line, timeout=limit))

    ends = watching.until_over(*attempts.values())
    compute.close()

    assert [end.outcome for end in ends] == list(lines), ends
    assert [end.exit_code for end in ends] == [0, 7, 128 + 11, 124]
    assert [end.signal for end in ends] == [None, None, 11, None]
    assert all(end.started and end.ended and end.started <= end.ended for end in ends)
    assert output_of(attempts["passed"]) == "good morning\n"
    assert output_of(attempts["failed"]) == "oops\n"
    # What was made is where those look who judge it.
    order = json.loads((attempts["passed"].folder / "order.json").read_text())
    assert (Path(order["nodes"][0]["folder"]) / "result.txt").read_text() == "made\n"
    told = {news.attempt.marker for news in watching.news if news.attempt and news.job_id}
    assert {attempt.marker for attempt in attempts.values()} == told


def test_an_attempt_that_is_cancelled_ends_with_all_that_it_has_started(place: Place) -> None:
    compute = place.open()
    watching = Watching(compute, place.updates)
    attempt = place.attempt(compute)
    compute.submit(place.job(attempt, "echo begun; sleep 300 & wait"))
    watching.until_written(attempt, "begun")

    # It may be said again and again.
    for _ in range(5):
        compute.cancel(attempt)
        time.sleep(0.02)
    [end] = watching.until_over(attempt)
    compute.cancel(attempt)
    assert watching.look() == []
    compute.close()
    assert not {NAME, "local"} & {one.name for one in threading.enumerate()}

    assert (end.outcome, end.exit_code) == ("cancelled", 130)
    if place.sees_processes:
        wait_until("nothing of it is left", lambda: not place.marked(attempt.marker))


def test_values_of_secrets_are_in_no_file(place: Place) -> None:
    compute = place.open()
    attempt = place.attempt(compute)
    line = 'echo "it is $TOKEN."; test "$TOKEN" = ' + f"{_SECRET[:8]}'{_SECRET[8:]}'"
    compute.submit(place.job(attempt, line, values={"TOKEN": _SECRET}))

    [end] = Watching(compute, place.updates).until_over(attempt)
    compute.close()

    assert end.outcome == "passed"
    assert output_of(attempt) == "it is ***.\n"
    assert files_with(_SECRET, [place.folder, attempt.folder, *place.elsewhere]) == []


def test_a_client_adopts_attempts_of_a_killed_client(place: Place) -> None:
    compute = place.open()
    attempt = place.attempt(compute)
    attempt.folder.rmdir()
    wait = f"while ! test -e {place.folder}/end; do sleep 0.05; done"
    line = f"echo begun; {wait if place.sees_files else 'sleep 20'}; echo ended"
    client = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.backends.client", str(place.folder)),
            *(attempt.marker, str(attempt.folder), line),
        ],
        cwd=_ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{_ROOT}:{_ROOT / 'scripts'}:{os.environ.get('PYTHONPATH', '')}",
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    number = client.stdout.readline().strip()
    client.kill()
    client.wait()
    client.stdout.close()

    watching = Watching(compute, place.updates)
    assert watching.is_there(attempt, number)
    watching.until_written(attempt, "begun")
    (place.folder / "end").touch()
    [end] = watching.until_over(attempt)
    compute.close()

    assert end.outcome == "passed"
    assert output_of(attempt) == "begun\nended\n"


def test_an_attempt_that_was_never_submitted_is_reported_absent(place: Place) -> None:
    compute = place.open()
    attempt: Attempt = place.attempt(compute)
    assert not Watching(compute, place.updates).is_there(attempt, "")
    compute.close()


def test_what_a_killed_runner_has_left_is_cleaned_up(place: Place) -> None:
    if not place.sees_processes:
        pytest.skip("its processes are not those of this machine: a test cannot kill one")
    compute = place.open()
    watching = Watching(compute, place.updates)
    attempt = place.attempt(compute)
    line = "echo begun; exec sleep 300"
    if place.finds_strangers:
        line = f"setsid sh -c 'trap : TERM; while :; do sleep 1; done' & {line}"
    compute.submit(place.job(attempt, line))
    watching.until_written(attempt, "begun")

    marked = place.marked(attempt.marker)
    numbers = {process.pid for process in marked}
    runner = next(one.parent() for one in marked if one.ppid() not in numbers)
    assert runner is not None
    runner.kill()
    [end] = watching.until_over(attempt)
    compute.close()

    assert end.outcome == "lost"
    wait_until("nothing of it is left", lambda: not place.marked(attempt.marker))
