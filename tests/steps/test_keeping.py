"""Artifacts and caches: what stages keep."""

from __future__ import annotations

import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rankwise.documents.steps import Cache
from rankwise.errors import ComputeFailure, InputError
from rankwise.files import digest_of_files, matching
from rankwise.plan import Plan, fill_in
from rankwise.planning.stage_commands import cache_lines, detach_line, keep_line
from rankwise.steps import detach
from rankwise.steps.__main__ import main
from rankwise.steps.keeping import keep, key_of, restore_cache, save_cache
from rankwise.steps.wait import BatchCommands, submit_and_wait
from rankwise.store import Store


def test_files_are_found_by_patterns_in_a_stable_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/deep/c.txt", ".hidden", "other.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert matching(["*.txt"], tmp_path) == ["a.txt", "b.txt"]
    assert matching(["**/*.txt", "a.txt"], tmp_path) == ["a.txt", "b.txt", "sub/deep/c.txt"]
    assert matching(["sub", ".hidden"], tmp_path) == [".hidden", "sub/deep/c.txt"]
    assert matching(["nothing", "*.none"], tmp_path) == []


def test_a_digest_knows_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = digest_of_files(["*"], tmp_path)
    assert digest_of_files(["a"], tmp_path) == first
    (tmp_path / "a").write_text("2")
    changed = digest_of_files(["*"], tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    renamed = digest_of_files(["*"], tmp_path)
    (tmp_path / "broken").symlink_to("nowhere")
    assert len({first, changed, renamed, digest_of_files(["*"], tmp_path)}) == 4


def test_equal_artifacts_are_kept_once(tmp_path: Path) -> None:
    work, objects = tmp_path / "work", tmp_path / "objects"
    work.mkdir()
    (work / "a").write_text("same")
    (work / "b").write_text("same")
    (work / "program").write_text("same")
    (work / "program").chmod(0o755)
    assert keep(["a", "b", "program"], work, tmp_path / "run" / "1", objects) == [
        *("a", "b", "program")
    ]
    assert keep(["*"], work, tmp_path / "run" / "2", objects) == ["a", "b", "program"]
    kept = [tmp_path / "run" / number / name for number in "12" for name in "ab"]
    assert len({path.stat().st_ino for path in kept}) == 1
    assert (tmp_path / "run" / "1" / "program").stat().st_mode & 0o100
    (work / "a").write_text("changed")
    assert kept[0].read_text() == "same"
    keep(["a"], work, tmp_path / "run" / "1", objects)
    assert [path.name for path in (tmp_path / "run" / "1").iterdir()] == ["a"]
    with pytest.raises(InputError, match=r"no artifact fits '\*.whl'"):
        keep(["a", "*.whl"], work, tmp_path / "run" / "3", objects)
    assert not (tmp_path / "run" / "3").exists()


def test_a_cache_is_put_back_by_a_python_without_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 12 has such a one: 3.11.2."""
    (tmp_path / "made").write_text("made")
    assert save_cache(tmp_path / "cache.tar", ["made"], tmp_path)
    (tmp_path / "made").unlink()
    into: list[Path] = []
    monkeypatch.delattr(tarfile, "fully_trusted_filter", raising=False)
    monkeypatch.setattr(tarfile.TarFile, "extractall", lambda _, path: into.append(path))
    assert restore_cache(tmp_path / "cache.tar", ["made"], tmp_path)
    assert into == [tmp_path]


def test_a_cache_is_put_back_while_its_key_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text("1")
    (tmp_path / "made" / "deep").mkdir(parents=True)
    (tmp_path / "made" / "deep" / "file").write_text("made")
    (tmp_path / "made" / "link").symlink_to("deep/file")

    def cache() -> Path:
        return tmp_path / "store" / f"{key_of(['key.txt'], 'make', ['made'], tmp_path)}.tar"

    first = cache()
    assert save_cache(first, ["made"], tmp_path)
    assert not save_cache(first, ["made"], tmp_path)
    assert not restore_cache(first, ["made"], tmp_path)
    (tmp_path / "made").rename(tmp_path / "gone")
    assert restore_cache(first, ["made"], tmp_path)
    assert (tmp_path / "made" / "link").read_text() == "made"
    (tmp_path / "key.txt").write_text("2")
    assert cache() != first
    assert not restore_cache(cache(), ["other"], tmp_path)
    with pytest.raises(InputError, match="has not made 'other'"):
        save_cache(cache(), ["other"], tmp_path)
    with pytest.raises(InputError, match="the key of the cache is wrong"):
        key_of(["nothing"], "", [], tmp_path)


def test_an_artifact_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    work, into = tmp_path / "work", tmp_path / "run" / "artifacts" / "build"
    work.mkdir()
    (tmp_path / "outside").write_text("1")
    for pattern in ("../outside", str(tmp_path / "outside")):
        with pytest.raises(InputError, match="is outside of"):
            keep([pattern], work, into, tmp_path / "objects")
    assert not into.exists()
    (work / "inside").write_text("1")
    assert keep([str(work / "inside")], work, into, tmp_path / "objects") == ["inside"]


def test_a_cache_of_an_absolute_path_is_put_back_there(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.mkdir()
    (outside / "file").write_text("kept")
    cache = tmp_path / "caches" / "1.tar"
    assert save_cache(cache, [str(outside)], work)
    shutil.rmtree(outside)
    assert restore_cache(cache, [str(outside)], work)
    assert (outside / "file").read_text() == "kept"


def test_a_damaged_cache_leaves_nothing_behind(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "made").mkdir(parents=True)
    for number in range(3):
        (work / "made" / str(number)).write_bytes(bytes(100_000))
    cache = tmp_path / "caches" / "1.tar"
    save_cache(cache, ["made"], work)
    shutil.rmtree(work / "made")
    cache.write_bytes(cache.read_bytes()[:200_000])
    with pytest.raises(ComputeFailure, match="is damaged"):
        restore_cache(cache, ["made"], work)
    assert not (work / "made").exists()


def test_a_cache_that_another_process_removes_meanwhile_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "made").write_text("1")
    caches = tmp_path / "caches"
    caches.mkdir()
    (caches / "gone.tar").symlink_to("nowhere")
    assert save_cache(caches / "1.tar", ["made"], tmp_path)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="there, `**x` is a pattern, too")
def test_what_is_no_pattern_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'dist/\*\*x' is no pattern of files"):
        keep(["dist/**x"], tmp_path, tmp_path / "kept", tmp_path / "objects")


def test_values_that_begin_with_a_dash_are_no_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-lock").write_text("1")
    (tmp_path / "-made").write_text("2")
    restoring, saving = cache_lines(Cache(key=("-lock",), paths=("-made",)), "-x make")

    def run(line: Sequence[str]) -> None:
        words = [fill_in(word, lambda _: str(tmp_path / "store")) for word in line]
        monkeypatch.setattr(sys, "argv", words[words.index("rankwise.steps") :])
        assert main() == 0

    run(saving)
    (tmp_path / "-made").unlink()
    run(restoring)
    assert (tmp_path / "-made").read_text() == "2"
    run(keep_line("build", "", ["-made"]))
    assert (tmp_path / "store" / "-made").read_text() == "2"


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_detached_stage_is_forced_if_its_pipeline_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_forced: bool
) -> None:
    choices: list[Mapping[str, object]] = []

    def plan_from(
        paths: object, *, on: str | None, choice: Mapping[str, object]
    ) -> tuple[Plan, str]:
        choices.append(choice)
        return Plan(name="p", kind="Pipeline", tasks=()), ""

    monkeypatch.setattr(detach, "plan_from", plan_from)
    with Store.open(tmp_path) as store:
        run = store.create_run(Plan(name="p", kind="Pipeline", tasks=()), "", now=0.0)
    line = detach_line("p.yaml", "b", on=None, is_forced=is_forced)
    known = {"store": str(tmp_path), "run": run}
    words = [fill_in(word, known.__getitem__) for word in line]
    monkeypatch.setattr(sys, "argv", words[words.index("rankwise.steps") :])
    assert main() == 0
    assert [choice["force"] for choice in choices] == [is_forced]


# Waiting for a job of a batch system, by its own commands


def wish(state: str, *, gone: bool = True) -> BatchCommands:
    return BatchCommands(
        submit="echo 7",
        state=state,
        job="[0-9]+",
        done="COMPLETED",
        failed="FAILED",
        interval=0.001,
        gone=gone,
    )


def test_one_query_that_fails_is_not_the_end_of_a_job(tmp_path: Path) -> None:
    """It answers, fails once, and says what became of the job."""
    count = tmp_path / "count"
    state = f"echo x >> {count}; case $(wc -l < {count}) in 2) exit 1;; 3) echo FAILED;; *) echo R;; esac"
    with pytest.raises(ComputeFailure, match="7 has failed"):
        submit_and_wait(wish(state))


def test_a_job_that_is_not_known_any_more_is_done_where_that_is_said() -> None:
    submit_and_wait(wish("exit 1"))
    with pytest.raises(ComputeFailure, match="the state of 7"):
        submit_and_wait(wish("exit 1", gone=False))


@pytest.mark.parametrize("state", ["there-is-no-such-program $JOB", "/dev/null $JOB"])
def test_a_query_that_cannot_be_run_says_nothing_of_the_job(state: str) -> None:
    with pytest.raises(ComputeFailure, match="the state of 7"):
        submit_and_wait(wish(state))


@pytest.mark.parametrize("option", ["job", "done", "failed"])
def test_a_wrong_pattern_is_said_before_anything_is_submitted(tmp_path: Path, option: str) -> None:
    given = {"submit": f"touch {tmp_path}/submitted", "state": "true", "job": "1", "done": "x"}
    with pytest.raises(InputError, match=f"`{option}`: '\\(x' is no regular expression"):
        submit_and_wait(BatchCommands(**{**given, option: "(x"}))  # type: ignore[arg-type]
    assert not (tmp_path / "submitted").exists()
