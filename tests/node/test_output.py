"""Output is kept within limits and without secrets; files are there as a whole or not at all."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import resource
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from urllib import parse
from xml.sax import saxutils

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.node.files import Beside, Locked, lock, unlock, write_file
from rankwise.node.output import CaseLog, ProcessLog, Redactor
from rankwise.records import read_exports
from tests.node.test_runner import Attempt, process, python

LOGS = ("output.log.first", "output.log.1", "output.log")


def feed(redactor: Redactor, *chunks: bytes) -> bytes:
    return b"".join(map(redactor.feed, chunks)) + redactor.feed(b"", is_last=True)


def test_output_and_errors_keep_their_order(tmp_path: Path) -> None:
    line = "for i in 1 2 3; do echo out $i; echo err $i >&2; done"
    attempt = Attempt(tmp_path, process("worker-0", line))
    attempt.run()
    assert attempt.log("worker-0") == "".join(f"out {i}\nerr {i}\n" for i in (1, 2, 3))


def test_streams_are_kept_apart_as_well_if_asked(tmp_path: Path) -> None:
    line = "echo out; echo err >&2; sleep 0.1; echo out again"
    worker = process("worker-0", line, environment={"RANKWISE_STREAMS": "apart"})
    attempt = Attempt(tmp_path, worker, process("worker-1", "echo one"))
    attempt.run()
    folder = attempt.folder / "processes"
    assert (folder / "worker-0/stdout.log").read_text() == "out\nout again\n"
    assert (folder / "worker-0/stderr.log").read_text() == "err\n"
    assert sorted(attempt.log("worker-0").splitlines()) == ["err", "out", "out again"]
    assert not (folder / "worker-1/stdout.log").exists()


def test_lines_that_begin_a_case_are_kept_with_their_times(tmp_path: Path) -> None:
    lines = (
        "echo a Case: one; printf 'no end of a line: '; echo; echo Case: two >&2; printf 'Case: 3'"
    )
    for streams in ("together", "apart"):
        variables = {"RANKWISE_CASES": "Case:", "RANKWISE_STREAMS": streams}
        worker = process("worker-0", lines, environment=variables)
        (tmp_path / streams).mkdir()
        attempt = Attempt(tmp_path / streams, worker)
        before = time.time()
        attempt.run()
        found = (attempt.folder / "processes/worker-0/cases.log").read_text().splitlines()
        times, texts = zip(*(line.split(" ", 1) for line in found), strict=True)
        assert sorted(texts) == ["Case: 3", "Case: two", "a Case: one"]
        assert all(before <= float(one) <= time.time() for one in times)
        assert "no end of a line: \n" in attempt.log("worker-0")


def test_a_line_without_end_is_not_kept_for_the_cases(tmp_path: Path) -> None:
    log = CaseLog(str(tmp_path), 10_000, "Case:")
    log.write(b"Case: " + b"x" * 10_000_000)
    log.write(b"y" * 10_000_000)
    log.write(b"\nCase: next")
    log.close()
    long, after = (tmp_path / "cases.log").read_bytes().splitlines()
    assert len(long) < 1_000_000
    assert after.endswith(b" Case: next")


def test_secrets_are_kept_out_of_each_stream(tmp_path: Path) -> None:
    first = Redactor(["geheim"])
    second = first.twin()
    # What one of them holds back is none of the other's.
    assert first.feed(b"a ge") + second.feed(b"b ge") == b"a b "
    assert feed(first, b"heim.") + feed(second, b"nau.") == b"***.genau."


def test_output_is_there_while_the_process_runs(tmp_path: Path) -> None:
    line = "echo now; while ! grep now ../../processes/worker-0/output.log; do sleep 0.05; done"
    attempt = Attempt(tmp_path, process("worker-0", line))
    assert attempt.run()["outcome"] == "passed"


def test_a_process_without_output_has_an_empty_log(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "true"))
    attempt.run()
    assert attempt.log("worker-0") == ""


def test_bytes_that_are_no_text_are_kept(tmp_path: Path) -> None:
    attempt = Attempt(
        tmp_path, process("worker-0", python("import os; os.write(1, bytes(range(256)))"))
    )
    attempt.run()
    path = attempt.folder / "processes" / "worker-0" / "output.log"
    assert path.read_bytes() == bytes(range(256))


def test_much_output_of_many_is_complete(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.write('0123456789abcde\\n' * 100_000)"
    workers = [process(f"worker-{number}", python(code)) for number in range(4)]
    attempt = Attempt(tmp_path, *workers, log_bytes=50_000_000)
    attempt.run()
    for number in range(4):
        assert attempt.log(f"worker-{number}") == "0123456789abcde\n" * 100_000


def test_the_beginning_and_the_end_of_a_long_log_are_kept(tmp_path: Path) -> None:
    code = "for number in range(10_000): print(f'line {number:05}')"
    attempt = Attempt(tmp_path, process("worker-0", python(code)), log_bytes=20_000)
    attempt.run()
    folder = attempt.folder / "processes" / "worker-0"
    assert sum((folder / name).stat().st_size for name in LOGS) <= 20_000
    whole = "".join((folder / name).read_text() for name in LOGS)
    assert whole.startswith("line 00000\nline 00001\n")
    assert whole.endswith("line 09998\nline 09999\n")
    head, found, rest = whole.partition("\n[rankwise: ")
    count = int(rest.split()[0])
    tail = rest.partition(" bytes are left out here]\n")[2]
    assert found
    assert len(head) + count + len(tail) == 110_000 == len("line 00000\n") * 10_000
    assert attempt.end("worker-0")["log_lost"] == count


def test_a_log_that_is_not_full_is_in_one_file(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "seq 100"), log_bytes=20_000)
    attempt.run()
    names = {path.name for path in (attempt.folder / "processes" / "worker-0").iterdir()}
    assert names == {"start.json", "end.json", "output.log"}


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 3000), max_size=30), limit=st.integers(1000, 6000))
def test_no_log_is_ever_too_long_or_loses_its_end(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log, written = ProcessLog(str(folder), limit), b""
    for number, size in enumerate(sizes):
        data = bytes([97 + number % 26]) * size
        log.write(data)
        written += data
    log.close()
    files = [folder / name for name in LOGS if (folder / name).exists()]
    assert sum(path.stat().st_size for path in files) <= limit
    kept = [path.read_bytes() for path in files if path.name != "output.log.first"]
    assert written.endswith(b"".join(kept))
    if len(files) < 3:
        assert b"".join(kept) == written
        assert log.lost == 0
    else:
        head = files[0].read_bytes().partition(b"\n[rankwise")[0]
        assert written.startswith(head)
        assert len(head) + log.lost + sum(map(len, kept)) == len(written)


def test_a_process_goes_on_when_the_disk_is_full(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "seq 1000; touch done"))
    folder = attempt.folder / "processes" / "worker-0"
    folder.mkdir(parents=True)
    (folder / "output.log").symlink_to("/dev/full")
    assert attempt.run()["outcome"] == "passed"
    assert attempt.end("worker-0")["log_lost"] == len("".join(f"{i}\n" for i in range(1, 1001)))
    assert (attempt.folder / "nodes" / "node0" / "done").exists()


def test_what_could_not_be_written_is_named_in_the_log(tmp_path: Path) -> None:
    log = ProcessLog(str(tmp_path), 100_000)
    log.write(b"before\n")
    (tmp_path / "output.log").rename(tmp_path / "kept")
    (tmp_path / "output.log").symlink_to("/dev/full")
    log._reopen()
    log.write(b"x" * 50)
    (tmp_path / "output.log").unlink()
    log._reopen()
    log.write(b"after\n")
    log.close()
    text = (tmp_path / "output.log").read_text()
    assert text == "\n[rankwise: 50 bytes could not be written]\nafter\n"
    assert log.lost == 50


def test_a_limit_on_the_size_of_files_is_no_failure(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", python("print('x' * 99_999)")))
    end = attempt.run(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)))
    assert end["outcome"] == "passed"
    assert attempt.end("worker-0")["log_lost"] == 60_000


def test_a_log_that_is_removed_is_made_again(tmp_path: Path) -> None:
    log = "../../processes/worker-0/output.log"
    line = f"echo before; while ! grep -q before {log}; do sleep 0.05; done; rm {log}; echo after"
    attempt = Attempt(tmp_path, process("worker-0", line))
    assert attempt.run()["outcome"] == "passed"
    assert attempt.log("worker-0") == "after\n"
    assert attempt.end("worker-0")["log_lost"] == len("before\n")


def test_a_grandchild_that_keeps_the_output_open_does_not_hold_it_up(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "sleep 3600 & echo done"))
    assert attempt.run()["outcome"] == "passed"
    assert attempt.log("worker-0") == "done\n"


def test_a_grandchild_that_writes_without_end_does_not_hold_it_up(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "setsid yes & echo done"), log_bytes=10_000)
    assert attempt.run()["outcome"] == "passed"


def test_what_a_grandchild_writes_while_others_run_is_kept(tmp_path: Path) -> None:
    later = "(while ! [ -e ../../processes/worker-0/end.json ]; do sleep 0.05; done; echo later; touch said) &"
    attempt = Attempt(
        tmp_path,
        process("worker-0", later),
        process("worker-1", "while ! [ -e said ]; do sleep 0.05; done"),
    )
    attempt.run()
    assert attempt.log("worker-0") == "later\n"


def test_secrets_are_known_to_processes_and_not_to_logs(tmp_path: Path) -> None:
    line = 'test ${#TOKEN} = 7 && echo "the token is $TOKEN." && printf hun && sleep 0.3 && printf "ter2\nhunt\n"'
    attempt = Attempt(tmp_path, process("worker-0", line), secrets=["TOKEN", "OTHER"])
    attempt.secrets = {"TOKEN": "hunter2", "OTHER": "é€"}
    assert attempt.run()["outcome"] == "passed"
    assert attempt.log("worker-0") == "the token is ***.\n***\nhunt\n"
    files = [path for path in attempt.folder.rglob("*") if path.is_file()]
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []


def test_variables_that_hold_a_secret_however_spelled_are_not_left_to_others(
    tmp_path: Path,
) -> None:
    code = (
        "import base64, json, os, urllib.parse\n"
        "t = os.environ['TOKEN']\n"
        "left = {'A': 'one', 'RAW': t, 'JSON': json.dumps([t]), 'URL': urllib.parse.quote(t),"
        " 'LOGIN': base64.b64encode(f'u:{t}'.encode()).decode(), 'Z': 'last'}\n"
        "entries = [f'{name}={value}' for name, value in left.items()] + ['UNSET']\n"
        "path = os.environ['RANKWISE_FOLDER'] + '/exports'\n"
        "open(path, 'w').write(''.join(f'{one}\\0' for one in entries))\n"
    )
    attempt = Attempt(tmp_path, process("worker-0", python(code)), secrets=["TOKEN"])
    attempt.secrets = {"TOKEN": 'hunter "2" & more'}
    assert attempt.run()["outcome"] == "passed"
    assert read_exports(attempt.folder) == {"A": "one", "Z": "last", "UNSET": None}


def test_secrets_that_do_not_arrive_are_named(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "touch ran"), secrets=["TOKEN", "OTHER"])
    attempt.secrets = {"TOKEN": "x"}
    end = attempt.run()
    assert (end["outcome"], end["exit_code"]) == ("failed", 3)
    assert end["reason"].endswith("the values of these secrets did not arrive: OTHER")
    assert not (attempt.folder / "nodes" / "node0" / "ran").exists()


@pytest.mark.parametrize(
    ("secrets", "text", "expected"),
    [
        (["abc"], b"xabcx", b"x***x"),
        (["abc"], b"abcabc", b"******"),
        (["abc"], b"ab", b"ab"),
        (["abc", "abcd"], b"abcd abc", b"*** ***"),
        (["xab", "abz"], b"xabz", b"***z"),
        (["1abc2", "abc"], b"1abc3 1abc2", b"1***3 ***"),
        (["aab"], b"aaab", b"a***"),
        (["", "q"], b"quiz", b"***uiz"),
        (["first line\nsecond line\nx"], b"> first line\n> second line\n> x", b"> ***\n> ***\n> x"),
    ],
)
def test_secrets_are_found_wherever_the_output_is_cut(
    secrets: list[str], text: bytes, expected: bytes
) -> None:
    assert feed(Redactor(secrets), text) == expected
    assert feed(Redactor(secrets), *(bytes([one]) for one in text)) == expected
    for place in range(len(text)):
        assert feed(Redactor(secrets), text[:place], text[place:]) == expected


def test_only_what_may_become_a_secret_is_held_back() -> None:
    redactor = Redactor(["password"])
    assert redactor.feed(b"the pass") == b"the "
    assert redactor.feed(b"age") == b"passage"
    assert redactor.feed(b" password, pa") == b" ***, "


AWKWARD = "p'q\"r\\s $t é/+&<z>"


@pytest.mark.parametrize("value", ["hf_abcDEF123~456", AWKWARD, "two lines\nof a key, say\n"])
@pytest.mark.parametrize(
    "spell",
    [
        str,
        str.strip,
        json.dumps,
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: json.dumps({"url": f"https://u:{value}@host"}),
        repr,
        ascii,
        lambda value: repr({"it's": f"it's {value}"}),
        lambda value: repr(f'"{value}"'),
        lambda value: repr(value.encode()),
        parse.quote,
        parse.quote_plus,
        lambda value: parse.quote(value, safe=""),
        lambda value: parse.quote(value, safe="!~*'()"),
        lambda value: re.sub("%..", lambda found: found[0].lower(), parse.quote(value)),
        shlex.quote,
        lambda value: "'" + value.replace("'", "'\\''") + "'",
        html.escape,
        saxutils.escape,
    ],
)
def test_secrets_are_found_in_the_spellings_of_json_python_urls_shells_and_xml(
    value: str, spell: Callable[[str], str]
) -> None:
    spelled = spell(value).encode()
    kept = feed(Redactor([value]), b"before ", spelled[:5], spelled[5:], b" after")
    assert kept.startswith(b"before ")
    assert kept.endswith(b" after")
    assert b"***" in kept
    for part in (b"abcDEF123", b"r\\\\s", b"r\\s", b"%24t", b"$t", b"lines", b"key"):
        assert part not in kept


@pytest.mark.parametrize("value", ["hf_abcDEF123~456", AWKWARD, "\xff\xfe\xfd??>>~~" * 3])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", [b"", b"u", b"user:", b"Bearer "])
@pytest.mark.parametrize("after", [b"", b"\n", b"@x"])
def test_secrets_are_found_in_base64_wherever_in_the_text_they_begin(
    value: str, encode: Callable[[bytes], bytes], before: bytes, after: bytes
) -> None:
    spelled = encode(before + value.encode() + after)
    kept = feed(Redactor([value]), b"Authorization: Basic ", spelled, b"\n")
    # What is left of it are single characters at the ends, which others have a part in.
    head, _, rest = kept.partition(b"***")
    assert len(head) <= len(b"Authorization: Basic ") + len(encode(before))
    assert len(rest) <= len(encode(after)) + 4


def test_a_long_secret_is_found_in_base64_that_is_broken_into_lines() -> None:
    value = "".join(chr(33 + number % 90) for number in range(300))
    for text in (base64.encodebytes(value.encode()), base64.b64encode(value.encode())):
        kept = feed(Redactor([value]), text)
        assert len(kept.replace(b"***", b"").replace(b"\n", b"")) <= 3


def test_a_value_of_a_few_characters_is_replaced_as_it_is_only() -> None:
    # A space is a plus in URLs, and three letters are four of base64: logs have many of these.
    assert feed(Redactor([" "]), b"1+1 IA== %20") == b"1+1***IA==***%20"
    assert feed(Redactor(["abc"]), b"YWJj abc") == b"YWJj ***"


letters = st.text("ab", min_size=1, max_size=6)


@settings(deadline=None)
@given(
    secrets=st.lists(letters, max_size=4),
    text=letters | st.text("abc", max_size=60),
    cuts=st.lists(st.integers(0, 60)),
)
def test_cuts_change_nothing(secrets: list[str], text: str, cuts: list[int]) -> None:
    data = text.encode()
    places = [0, *sorted(cuts), len(data)]
    chunks = [data[a:b] for a, b in pairwise(places)]
    found = feed(Redactor(secrets), *chunks)
    assert found == feed(Redactor(secrets), data)
    assert not any(secret.encode() in found for secret in secrets)


def test_output_does_not_pile_up_in_memory(tmp_path: Path) -> None:
    code = (
        "import os, re, sys\n"
        "for _ in range(3000): sys.stdout.write('x' * 99_999 + chr(10))\n"
        "status = open(f'/proc/{os.getppid()}/status').read()\n"
        "print(re.search('VmHWM: *\\t *([0-9]+) kB', status)[1])\n"
    )
    attempt = Attempt(tmp_path, process("worker-0", python(code)))
    assert attempt.run()["outcome"] == "passed"
    assert int(attempt.log("worker-0").split()[-1]) < 40_000


# Files and folders that are there as a whole or not at all, and locks


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_file_is_written_with_its_folder_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    write_file(tmp_path / "new" / "file", "text")
    write_file(tmp_path / "new" / "file", b"other")
    assert (tmp_path / "new" / "file").read_text() == "other"
    assert names(tmp_path / "new") == ["file"]


def test_a_secret_is_its_owners_alone_whatever_was_there_before(tmp_path: Path) -> None:
    place = tmp_path / "secret"
    left = Path(Beside(place).__enter__())
    for one in (place, left):  # The latter as if a process of our number was killed here.
        one.write_text("old")
        one.chmod(0o666)
    write_file(place, "value", 0o600)
    assert names(tmp_path) == ["secret"]
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["a" * 255, "\N{GRINNING FACE}" * 63])
def test_the_longest_names_can_be_written(tmp_path: Path, name: str) -> None:
    write_file(tmp_path / name, "text")
    assert names(tmp_path) == [name]


def test_what_cannot_be_moved_into_place_is_removed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "folder", "text")
    assert names(tmp_path) == ["folder"]


def test_a_block_that_raises_leaves_what_was_there(tmp_path: Path) -> None:
    write_file(tmp_path / "file", "old")

    def make_half(name: str, *, is_folder: bool) -> None:
        with Beside(tmp_path / name) as beside:
            if is_folder:
                Path(beside).mkdir()
            Path(beside, "half" if is_folder else "").write_text("half")
            raise KeyboardInterrupt

    for name in ("file", "folder"):
        with pytest.raises(KeyboardInterrupt):
            make_half(name, is_folder=name == "folder")
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_of_two_folders_the_first_one_stays(tmp_path: Path) -> None:
    with Beside(tmp_path / "folder") as beside:
        Path(beside).mkdir()
        Path(beside, "second").touch()
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "first").touch()
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["first"]


def test_a_lock_is_held_by_one_process_or_shared_by_several(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Locked(path):
        assert not locked_by_another(path)
    first = os.open(path, os.O_RDWR)
    assert lock(first, is_shared=True)
    assert not locked_by_another(path)
    assert locked_by_another(path, is_shared=True)
    unlock(first)
    assert locked_by_another(path)
    os.close(first)


def locked_by_another(path: Path, *, is_shared: bool = False) -> bool:
    program = (
        "import os, sys; from rankwise.node.files import lock\n"
        f"file = os.open(sys.argv[1], os.O_RDWR)\n"
        f"sys.exit(not lock(file, waits=False, is_shared={is_shared}))"
    )
    return subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 0


@pytest.mark.parametrize(
    ("path", "folder"), [("/name", "/"), ("name", "."), ("there/name", "there"), ("/a/b", "/a")]
)
def test_what_is_moved_to_a_path_is_made_in_its_folder(path: str, folder: str) -> None:
    assert Path(Beside(path).__enter__()).parent == Path(folder)
