"""Pods that are deleted, evicted or killed while their task runs: none of it is a success."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.backends.base import Attempt
from rankwise.backends.kubernetes import backend as module
from rankwise.backends.kubernetes.delivery import OTHERS
from tests.backends.places import need
from tests.kubernetes.desk import Desk, pod_of
from tests.kubernetes.kubelet import wait_until
from tests.kubernetes.standing_in import StandIn, obstacle, standing_in


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandIn]:
    need(obstacle())
    with standing_in() as made:
        yield made


@pytest.fixture
def desk(tmp_path: Path, cluster: StandIn) -> Iterator[Desk]:
    made = Desk(tmp_path, cluster)
    yield made
    made.compute.close()
    wait_until(lambda: cluster.left() == [])


def begun(desk: Desk, command: str) -> tuple[Attempt, Path]:
    """Start two workers that run until a file is there."""
    end = desk.folder / "end"
    loop = f"echo begun; while [ ! -e {end} ]; do sleep 0.05; done"
    attempt = desk.submit(f"{command}; {loop}", nodes=2)
    for rank in range(2):
        desk.watching.until_written(attempt, "begun", f"worker-{rank}")
    return attempt, end


def is_gone(cluster: StandIn, pod: str) -> bool:
    return pod not in cluster.cluster.things["pods"]


@pytest.mark.parametrize("command", [":", "trap 'exit 0' TERM", "trap 'exit 3' TERM"])
def test_a_worker_pod_that_is_deleted_while_the_job_runs_is_lost(
    desk: Desk, cluster: StandIn, command: str
) -> None:
    """Whatever its program makes of the signal: it is not what it was started for."""
    attempt, end = begun(desk, command)
    victim = pod_of(cluster, attempt, "worker", 1)
    cluster.cluster.delete("pods", victim)
    wait_until(lambda: is_gone(cluster, victim))
    end.touch()
    [found] = desk.watching.until_over(attempt)
    assert (found.outcome, found.exit_code, found.culprit) == ("lost", 1, "worker-1")
    assert f"worker-1: pod {victim} was deleted, not by rankwise" in found.reason


def test_a_worker_pod_that_is_preempted_is_lost_for_the_reason_that_kubernetes_gives(
    desk: Desk, cluster: StandIn
) -> None:
    attempt, end = begun(desk, "trap 'exit 0' TERM")
    victim = pod_of(cluster, attempt, "worker", 1)
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "for another",
    }
    cluster.cluster.update("pods", victim, lambda pod: pod["status"].update(conditions=[condition]))
    cluster.cluster.delete("pods", victim)
    wait_until(lambda: is_gone(cluster, victim))
    end.touch()
    [found] = desk.watching.until_over(attempt)
    assert (found.outcome, found.culprit) == ("lost", "worker-1")
    assert (
        f"worker-1: pod {victim} was taken away: PreemptionByScheduler: for another" in found.reason
    )


_FIRST_ENDS = """\
if [ "$RANKWISE_NODE_RANK" = 0 ]; then echo made > made.txt; exit 0; fi"""


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_pod_may_go_when_its_program_has_ended_if_all_that_it_has_is_brought(
    desk: Desk, cluster: StandIn, is_asked: bool
) -> None:
    """One that is asked to go brings its files; with one that is killed, they are gone."""
    end = desk.folder / "end"
    loop = f"echo begun; while [ ! -e {end} ]; do sleep 0.05; done"
    attempt = desk.submit(f"{_FIRST_ENDS}\n{loop}", nodes=2)
    desk.watching.until_written(attempt, "begun", "worker-1")
    ended = attempt.folder / "processes" / "worker-0" / "end.json"
    wait_until(ended.exists)
    victim = pod_of(cluster, attempt, "worker", 0)
    if is_asked:
        cluster.cluster.delete("pods", victim)
    else:
        cluster.kubelet.kill(victim)
    wait_until(lambda: victim not in cluster.kubelet.running())
    if is_asked:
        end.touch()
    [found] = desk.watching.until_over(attempt)
    if is_asked:
        assert (found.outcome, found.exit_code, found.reason) == ("passed", 0, "")
        made = attempt.folder / "nodes" / "node0" / "made.txt"
        assert made.read_text() == "made\n"
    else:
        assert (found.outcome, found.culprit) == ("lost", "worker-0")
        assert f"worker-0: pod {victim} is gone: the line to it has broken" in found.reason
        assert "Kubernetes says: Failed, exit code 137" in found.reason


def test_a_worker_pod_that_is_deleted_before_all_are_there_does_not_make_the_others_wait(
    desk: Desk, cluster: StandIn
) -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "no room"}
    cluster.kubelet.refusals["worker"] = {"phase": "Pending", "conditions": [condition]}
    attempt = desk.submit("true", nodes=2)
    try:

        def are_seen() -> bool:
            assert desk.watching.hear(0.05) == []
            return "worker-0 (and 1 more) is unschedulable" in desk.told()

        wait_until(are_seen)
        [victim] = [name for name in cluster.cluster.things["pods"] if "-worker-1-" in name]
        cluster.cluster.delete("pods", victim)
        [found] = desk.watching.until_over(attempt)
    finally:
        cluster.kubelet.refusals.clear()
    assert (found.outcome, found.culprit) == ("lost", "worker-1")
    assert f"worker-1: pod {victim} was deleted, not by rankwise" in found.reason


def test_what_is_too_large_to_be_brought_is_named_in_the_outcome(
    desk: Desk, cluster: StandIn
) -> None:
    command = "truncate -s 3M ok.bin; truncate -s 40M huge.bin; cp ok.bin ../../processes/*/"
    attempt = desk.submit(command)
    [found] = desk.watching.until_over(attempt)
    assert (found.outcome, found.exit_code) == ("passed", 0)
    assert found.reason == "not brought here, and gone with its pod: huge.bin (41.9 MB)"
    assert found.reason in desk.told()
    for place in ("nodes/node0", "processes/worker-0"):
        assert (attempt.folder / place / "ok.bin").stat().st_size == 3 << 20
    assert not (attempt.folder / "nodes" / "node0" / "huge.bin").exists()
    assert "huge.bin is not brought" in (attempt.folder / "kubernetes.log").read_text()


def test_a_head_whose_node_is_gone_is_lost_and_not_waited_for_without_end(
    desk: Desk, cluster: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API knows that it is to end, and the node will never say that it has."""
    monkeypatch.setattr(module, "_STUCK_SECONDS", 0.2)
    monkeypatch.setattr(module, "_AWAY_SECONDS", 0.2)
    attempt = desk.submit("echo begun; sleep 300")
    desk.watching.until_written(attempt, "begun")
    victim = pod_of(cluster, attempt, "worker")
    cluster.cluster.unreachable.add(victim)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    cluster.cluster.update("pods", victim, lambda pod: pod["status"].update(conditions=[condition]))
    cluster.cluster.delete("pods", victim)
    try:
        [found] = desk.watching.until_over(attempt)
    finally:
        cluster.cluster.unreachable.clear()
    assert found.outcome == "lost"
    assert f"pod {victim} was taken away: DeletionByTaintManager" in found.reason


def test_a_job_that_is_complete_and_has_no_pods_any_more_is_lost(
    desk: Desk, cluster: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has read its log while it was there."""
    monkeypatch.setattr(module, "_NO_POD_SECONDS", 0.1)
    cluster.kubelet.refusals["worker"] = {"phase": "Pending"}
    attempt = desk.submit("true")
    assert desk.watching.look() == []
    try:
        [job] = [name for name in cluster.cluster.things["jobs"] if attempt.marker in name]
        done = {"type": "Complete", "status": "True"}
        cluster.cluster.update(
            "jobs", job, lambda one: one.update(status={"started": True, "conditions": [done]})
        )
        for pod in [*cluster.cluster.things["pods"]]:
            cluster.cluster.delete("pods", pod)
        other = Desk(desk.folder, cluster)
        other.compute.adopt(attempt, job)
        [found] = other.watching.until_over(attempt)
        other.compute.close()
    finally:
        cluster.kubelet.refusals.clear()
    assert found.outcome == "lost"
    assert "it left no record of how it ended" in found.reason


def test_a_task_whose_other_pods_are_not_known_any_more_does_not_wait_for_them(
    desk: Desk, cluster: StandIn
) -> None:
    cluster.kubelet.refusals["head"] = {"phase": "Pending"}
    attempt = desk.submit("true", nodes=2)
    try:
        assert desk.watching.look() == []
        (attempt.folder / OTHERS).unlink()
    finally:
        cluster.kubelet.refusals.clear()
    [found] = desk.watching.until_over(attempt)
    assert desk.watching.look() == [], "it has ended once"
    assert not any(attempt.marker in one.name for one in threading.enumerate())
    assert found.outcome == "not run"
    assert f"{OTHERS} does not say which pods there are to be" in found.reason


def test_a_full_disk_here_is_not_the_end_of_a_job(
    desk: Desk, cluster: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    attempt = desk.submit(f"while ! [ -e {go} ]; do sleep 0.05; done")
    obstacle = attempt.folder / ".end.json.part"
    obstacle.symlink_to("/dev/full")
    go.touch()

    def is_told() -> bool:
        assert desk.watching.hear(0.05) == []
        return "cannot be written here" in desk.told()

    def is_over() -> bool:
        assert desk.watching.hear(0.05) == []
        pods = cluster.cluster.things["pods"].values()
        return all(pod["status"]["phase"] == "Succeeded" for pod in pods)

    wait_until(is_told)
    # Only now: on a busy machine, the pod may have ended before its log is read.
    for name in ("_STATE_SECONDS", "_LOG_SECONDS", "_AWAY_SECONDS"):
        monkeypatch.setattr(module, name, 0.0)
    wait_until(is_over)
    assert "No space left on device" in desk.told()
    time.sleep(1.0)
    assert desk.watching.look() == []
    obstacle.unlink()
    [found] = desk.watching.until_over(attempt)
    assert (found.outcome, found.exit_code, found.reason) == ("passed", 0, "")
