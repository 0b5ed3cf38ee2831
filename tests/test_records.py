"""Records, files and logs that attempts leave."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise import records
from rankwise.checks.judge import read_tests
from rankwise.checks.sources import Missing, read_text
from rankwise.files import matching, open_left, read_left, without_match
from rankwise.logs import Lines, LogFollower, last_lines
from rankwise.node.files import give_up
from rankwise.node.output import open_log
from rankwise.node.processes import sweep_marked
from rankwise.records import ClaimState, claim_of, read_end, read_exports, read_processes


def write(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def test_an_attempt_is_free_until_a_process_takes_it(tmp_path: Path) -> None:
    assert claim_of(tmp_path) is ClaimState.FREE
    assert give_up(tmp_path)
    assert claim_of(tmp_path) is ClaimState.LEFT


def test_only_one_can_take_it(tmp_path: Path) -> None:
    assert give_up(tmp_path)
    assert not give_up(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]


def test_it_is_held_as_long_as_its_runner_lives(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    path.write_text('{"pid": 4711}')
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert claim_of(tmp_path) is ClaimState.HELD
        assert records.runner_of(tmp_path) == 4711
    assert claim_of(tmp_path) is ClaimState.LEFT
    assert records.runner_of(tmp_path) is None


def test_an_end_is_read_once_it_is_whole(tmp_path: Path) -> None:
    assert read_end(tmp_path) is None
    (tmp_path / "end.json").write_text('{"outcome": "pas')
    assert read_end(tmp_path) is None
    write(tmp_path / "end.json", {"outcome": "failed", "exit_code": 7, "culprit": "rank-3"})
    end = read_end(tmp_path)
    assert end is not None
    assert (end.outcome, end.exit_code, end.culprit) == ("failed", 7, "rank-3")


def test_processes_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = ("worker-10", "worker-2", "launcher-0", "rank-1.10", "rank-1.2", "rank-1")
    for name in names:
        write(tmp_path / "processes" / name / "start.json", {"name": name, "pid": 5, "role": "r"})
    write(tmp_path / "processes" / "worker-2" / "end.json", {"exit_code": 3, "unknown": 1})
    found = read_processes(tmp_path)
    assert [one.name for one in found] == [
        "launcher-0",
        "rank-1",
        "rank-1.2",
        "rank-1.10",
        "worker-2",
        "worker-10",
    ]
    assert (found[4].exit_code, found[4].pid, found[5].exit_code) == (3, 5, None)


def test_what_a_lost_runner_has_left_is_found_by_its_mark() -> None:
    marker = f"rw-{os.urandom(8).hex()}"
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(100)"],
        env={**os.environ, "RANKWISE_ATTEMPT": marker},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        assert sweep_marked(marker + "0") == 0
        assert sweep_marked(marker) == 1
        assert process.wait(10) == -9


# Files that attempts leave, and files by patterns


def test_only_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    assert read_left(tmp_path / "file") == b"text"
    with open_left(tmp_path / "link", follows_links=True) as file:
        assert file.read() == b"text"
    for name in ("pipe", "link", "folder", "none"):
        with pytest.raises(OSError, match=name):
            open_left(tmp_path / name)


def test_a_named_pipe_keeps_no_reader_waiting(tmp_path: Path) -> None:
    """Whatever a job leaves under the names that are looked at."""
    for name in ("end.json", "exports", "output.log", "results.xml", "text"):
        os.mkfifo(tmp_path / name)
    assert read_end(tmp_path) is None
    assert read_exports(tmp_path) == {}
    assert last_lines(tmp_path, 3) == []
    with pytest.raises(OSError, match="not a regular file"):
        list(read_tests(tmp_path / "results.xml"))
    with pytest.raises(Missing, match="text cannot be read: not a regular file"):
        read_text(tmp_path / "text")


def test_a_log_is_written_whatever_was_put_in_its_place(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    os.mkfifo(log)
    os.close(open_log(str(log)))
    assert log.is_file()
    os.mkfifo(tmp_path / "other")
    log.unlink()
    log.symlink_to("other")
    os.close(open_log(str(log)))
    assert log.is_file()


def test_patterns_that_no_file_fits_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("")
    (tmp_path / "empty").mkdir()
    assert matching(["*.c"], tmp_path) == ["a.c"]
    assert without_match(["*.c", "*.h", "empty", "a.c"], tmp_path) == ["*.h", "empty"]


# Logs are followed as runners write them: in pieces, moved away in between, and not always text


def process(folder: Path, name: str = "worker-0", text: bytes = b"") -> Path:
    place = folder / "processes" / name
    place.mkdir(parents=True)
    write_logs(place, text)
    return place


def write_logs(place: Path, text: bytes) -> None:
    with (place / "output.log").open("ab") as log:
        log.write(text)


def rotate(place: Path, head: int = 1000) -> None:
    """Do as a runner does when a log is full: the beginning stays, and what was written last."""
    log, older, first = (place / f"output.log{end}" for end in ("", ".1", ".first"))
    if older.exists() and not first.exists():
        os.truncate(older, min(head, older.stat().st_size))
        older.replace(first)
    log.replace(older)
    log.touch()


def texts(follower: LogFollower) -> list[tuple[str, str]]:
    return [(line.process, line.text) for line in follower.poll()]


def everything(follower: LogFollower) -> list[tuple[str, str]]:
    found = []
    while some := texts(follower):
        found += some
    return found


def rest(follower: LogFollower, folder: Path) -> list[tuple[str, str]]:
    return [(line.process, line.text) for line in follower.finish(folder)]


def following(*folders: Path) -> LogFollower:
    follower = LogFollower()
    for folder in folders:
        follower.add(folder)
    return follower


def test_lines_come_once_and_with_their_process(tmp_path: Path) -> None:
    first, second = process(tmp_path, "worker-0"), process(tmp_path, "worker-1")
    follower = following(tmp_path)
    assert texts(follower) == []
    write_logs(first, b"one\ntwo\n")
    write_logs(second, b"three\n")
    assert texts(follower) == [("worker-0", "one"), ("worker-0", "two"), ("worker-1", "three")]
    assert texts(follower) == []


def test_a_line_is_held_back_until_it_ends(tmp_path: Path) -> None:
    place = process(tmp_path, text=b"half a ")
    follower = following(tmp_path)
    assert texts(follower) == []
    write_logs(place, b"line\nand more")
    assert texts(follower) == [("worker-0", "half a line")]
    assert rest(follower, tmp_path) == [("worker-0", "and more")]


def test_processes_and_folders_may_appear_later(tmp_path: Path) -> None:
    follower = following(tmp_path / "a")
    assert texts(follower) == []
    process(tmp_path / "a", "rank-10", b"ten\n")
    process(tmp_path / "a", "rank-9", b"nine\n")
    follower.add(tmp_path / "b")
    process(tmp_path / "b", "launcher", b"go\n")
    assert [(line.folder.name, line.process, line.text) for line in follower.poll()] == [
        ("a", "rank-9", "nine"),
        ("a", "rank-10", "ten"),
        ("b", "launcher", "go"),
    ]


def test_a_folder_is_followed_once(tmp_path: Path) -> None:
    process(tmp_path, text=b"one\n")
    follower = following(tmp_path)
    assert len(follower.poll()) == 1
    follower.add(tmp_path)
    assert follower.poll() == []


def test_a_log_that_was_moved_away_is_read_to_its_end(tmp_path: Path) -> None:
    place = process(tmp_path, text=b"one\n")
    follower = following(tmp_path)
    assert texts(follower) == [("worker-0", "one")]
    write_logs(place, b"two\nthr")
    rotate(place)
    write_logs(place, b"ee\nfour\n")
    found = texts(follower) + texts(follower)
    assert found == [("worker-0", "two"), ("worker-0", "three"), ("worker-0", "four")]
    assert texts(follower) == []


def test_a_late_follower_reads_the_older_log_first(tmp_path: Path) -> None:
    place = process(tmp_path, text=b"one\n")
    rotate(place)
    write_logs(place, b"two\n")
    assert rest(following(tmp_path), tmp_path) == [("worker-0", "one"), ("worker-0", "two")]


def test_a_log_that_was_moved_away_twice_is_still_found(tmp_path: Path) -> None:
    place = process(tmp_path, text=b"one\n")
    follower = following(tmp_path)
    follower.poll()
    write_logs(place, b"two\n")
    rotate(place)
    write_logs(place, b"three\n")
    rotate(place)
    write_logs(place, b"four\n")
    assert [text for _, text in everything(follower)] == ["two", "three", "four"]


def test_a_slow_follower_misses_what_was_not_kept(tmp_path: Path) -> None:
    place = process(tmp_path, text=b"one\n")
    follower = following(tmp_path)
    follower.poll()
    write_logs(place, b"two\nlost\n")
    rotate(place)
    write_logs(place, b"three\n")
    rotate(place, head=8)
    write_logs(place, b"four\n")
    assert [text for _, text in everything(follower)] == ["two", "three", "four"]


def test_a_log_that_is_gone_goes_on_with_what_is_left(tmp_path: Path) -> None:
    place = process(tmp_path, text=b"the beginning\n")
    rotate(place)
    write_logs(place, b"one\n")
    rotate(place)
    write_logs(place, b"two\n")
    follower = following(tmp_path)
    assert [text for _, text in everything(follower)] == ["the beginning", "one", "two"]
    with (place / "output.log").open("rb"):  # its inode is not given away again
        for number in range(3):
            rotate(place)
            write_logs(place, b"later %d\n" % number)
        assert [text for _, text in everything(follower)] == ["later 1", "later 2"]


def test_a_log_that_was_emptied_is_read_from_its_beginning(tmp_path: Path) -> None:
    place = process(tmp_path, text=b"a long line\n")
    follower = following(tmp_path)
    follower.poll()
    os.truncate(place / "output.log", 0)
    write_logs(place, b"new\n")
    assert texts(follower) == [("worker-0", "new")]


def test_what_was_there_can_be_left_out(tmp_path: Path) -> None:
    place = process(tmp_path, text=b"old\n")
    follower = LogFollower()
    follower.add(tmp_path, from_now=True)
    write_logs(place, b"new\n")
    process(tmp_path, "worker-1", b"also new\n")
    assert texts(follower) == [("worker-0", "new"), ("worker-1", "also new")]


def test_only_wanted_processes_are_followed(tmp_path: Path) -> None:
    process(tmp_path, "worker-0", b"zero\n")
    process(tmp_path, "worker-1", b"one\n")
    follower = LogFollower()
    follower.add(tmp_path, wanted=lambda name: name.endswith("-1"))
    assert texts(follower) == [("worker-1", "one")]


def test_a_loud_process_does_not_keep_the_others_back(tmp_path: Path) -> None:
    process(tmp_path, "worker-0", b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 20_000)
    process(tmp_path, "worker-1", b"hello\n")
    follower = following(tmp_path)
    first = texts(follower)
    assert ("worker-1", "hello") in first
    assert len(first) < 20_000
    count = len(first)
    while found := texts(follower):
        count += len(found)
    assert count == 20_002


def test_a_folder_that_is_removed_is_no_error(tmp_path: Path) -> None:
    place = process(tmp_path, text=b"one\n")
    follower = following(tmp_path)
    (place / "output.log").unlink()
    assert texts(follower) == []
    place.rmdir()
    place.parent.rmdir()
    assert texts(follower) == []
    assert rest(follower, tmp_path) == []
    assert rest(follower, tmp_path) == []


def test_everything_that_is_left_can_be_had_at_once(tmp_path: Path) -> None:
    process(tmp_path / "a", text=b"one")
    process(tmp_path / "b", text=b"two")
    follower = following(tmp_path / "a", tmp_path / "b")
    assert [line.text for line in follower.finish_all()] == ["one", "two"]
    assert follower.poll() == []


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"10%\r20%\r30%\n"], ["30%"]),
        ([b"10%\r", b"20%\r", b"30%\n"], ["30%"]),
        ([b"\r10%", b"\r20%", b"\r30%"], ["30%"]),
        ([b"from Windows\r\nsecond\r\n"], ["from Windows", "second"]),
        ([b"from Windows\r", b"\nsecond"], ["from Windows", "second"]),
        ([b"done\r"], ["done"]),
        ([b"\n\n"], ["", ""]),
        ([b""], []),
        (["grün".encode()[:3], "grün".encode()[3:] + b"\n"], ["grün"]),
        ([b"caf\xe9\n"], ["caf\N{REPLACEMENT CHARACTER}"]),
    ],
)
def test_bytes_become_lines(pieces: list[bytes], expected: list[str]) -> None:
    lines = Lines()
    found = [line for piece in pieces for line in lines.feed(piece)]
    assert found + lines.flush() == expected


def test_a_progress_bar_takes_no_memory() -> None:
    lines = Lines()
    for number in range(50_000):
        assert lines.feed(b"\r%d of 50000, and so on and so on" % number) == []
    assert lines.flush() == ["49999 of 50000, and so on and so on"]


def test_a_line_without_end_comes_in_pieces() -> None:
    lines = Lines()
    found = []
    for _ in range(50):
        found += lines.feed(b"x" * 100_000)
    assert found
    assert sum(map(len, found + lines.flush())) == 5_000_000


def test_the_last_lines_are_those_at_the_end(tmp_path: Path) -> None:
    place = process(tmp_path, text=b"".join(b"line %d\n" % number for number in range(50_000)))
    assert last_lines(place, 2) == ["line 49998", "line 49999"]


def test_the_last_lines_may_begin_in_the_older_log(tmp_path: Path) -> None:
    place = process(tmp_path, text=b"one\ntwo\nthr")
    rotate(place)
    write_logs(place, b"ee\nfour")
    assert last_lines(place, 3) == ["two", "three", "four"]
    assert last_lines(place, 20) == ["one", "two", "three", "four"]


def test_there_are_no_last_lines_without_a_log(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "processes" / "worker-0", 5) == []


def test_a_last_line_that_is_too_long_is_cut_at_its_beginning(tmp_path: Path) -> None:
    place = process(tmp_path, text=b"x" * 200_000 + b"end")
    (line,) = last_lines(place, 5)
    assert line.endswith("xend")
    assert len(line) < 100_000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"gpu": [[0, 12], [1.5, "97"]], "none": []}', {"gpu": [(0.0, 12.0), (1.5, 97.0)]}),
        ('{"gpu": [[0]]}', {}),
        ('{"gpu": {"a": 1}}', {}),
        ('{"gpu": [["x", 1]]}', {}),
        ("[1, 2]", {}),
        ("\x00", {}),
    ],
)
def test_what_a_provider_has_measured_is_read_or_nothing_is(
    tmp_path: Path, text: str, found: dict[str, object]
) -> None:
    assert records.read_provided(tmp_path) == {}
    (tmp_path / records.PROVIDED).write_text(text)
    assert records.read_provided(tmp_path) == found


def test_an_instance_counts_once_however_often_it_is_noted(tmp_path: Path) -> None:
    assert not records.count_instances(tmp_path)
    (tmp_path / records.INSTANCES).write_text("made a\nmade b\nmade a\ndeleted a\n")
    assert records.count_instances(tmp_path) == {"made": 2, "deleted": 1}
