"""What a compute makes of pods that do not start, are taken away or run out of memory."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.backends.base import Attempt
from rankwise.backends.doctor import check_compute
from rankwise.backends.kubernetes import backend as module
from rankwise.backends.kubernetes.delivery import OTHERS
from rankwise.backends.kubernetes.objects import NO_PYTHON, START
from rankwise.documents.site import find_site
from rankwise.errors import ComputeFailure
from rankwise.plan import Resources
from tests.backends.places import need, output_of
from tests.kubernetes.api_server import Fault, Thing
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
    cluster.kubelet.refusals.clear()
    cluster.cluster.faults.clear()
    wait_until(lambda: cluster.left() == [])


def waiting(reason: str, message: str) -> Thing:
    state = {"waiting": {"reason": reason, "message": message}}
    container = {"name": "main", "image": "", "imageID": "", "ready": False, "restartCount": 0}
    return {"phase": "Pending", "containerStatuses": [{**container, "state": state}]}


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImageNeverPull"])
def test_an_image_that_is_not_to_be_had(
    desk: Desk, cluster: StandIn, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(module, "_PULL_SECONDS", 0.5)
    monkeypatch.setattr(module, "_REFUSAL_SECONDS", 0.5)
    cluster.kubelet.refusals["worker"] = waiting(reason, 'image "here:1" is nowhere')
    [end] = desk.watching.until_over(desk.submit("true"))
    assert (end.outcome, end.exit_code) == ("not run", 1)
    assert f'{reason}: image "here:1" is nowhere' in end.reason


def test_what_no_node_has_room_for_waits_and_is_given_up(tmp_path: Path, cluster: StandIn) -> None:
    words = "0/1 nodes are available: 1 Insufficient cpu."
    condition = {"type": "PodScheduled", "status": "False", "message": words}
    cluster.kubelet.refusals["worker"] = {"phase": "Pending", "conditions": [condition]}
    desk = Desk(tmp_path, cluster, "pending_limit = 1")
    # The head has a node, and the others do not.
    [end] = desk.watching.until_over(desk.submit("true", nodes=2))
    desk.compute.close()
    cluster.kubelet.refusals.clear()
    wait_until(lambda: cluster.left() == [])
    assert end.outcome == "not run"
    assert end.reason == f"worker-0 (and 1 more) is unschedulable: {words}"
    assert end.reason in desk.told()


def test_a_pod_that_runs_out_of_memory_is_named(desk: Desk, cluster: StandIn) -> None:
    attempt = desk.submit("echo begun; sleep 300", nodes=2)
    desk.watching.until_written(attempt, "begun")
    victim = pod_of(cluster, attempt, "worker")
    cluster.kubelet.kill(victim, reason="OOMKilled")
    [end] = desk.watching.until_over(attempt)
    assert (end.outcome, end.exit_code, end.signal) == ("crashed", 137, 9)
    assert "used more than its limit (OOMKilled" in end.reason
    assert victim in end.reason


def test_a_head_that_is_taken_away_is_lost(desk: Desk, cluster: StandIn) -> None:
    attempt = desk.submit("echo begun; sleep 300")
    desk.watching.until_written(attempt, "begun")
    victim = pod_of(cluster, attempt, "worker")
    evicted = {"reason": "Evicted", "message": "The node was low on resource: memory."}
    cluster.cluster.update("pods", victim, lambda pod: pod["status"].update(evicted))
    cluster.kubelet.kill(victim)
    [end] = desk.watching.until_over(attempt)
    assert end.outcome == "lost"
    assert "was taken away: Evicted: The node was low on resource" in end.reason


def test_what_a_silent_cluster_was_asked_to_cancel_is_not_cancelled_before_it_hears(
    desk: Desk, cluster: StandIn
) -> None:
    attempt = desk.submit("echo begun; sleep 300")
    desk.watching.until_written(attempt, "begun")
    fault = Fault(lambda request: request.method == "PATCH", code=503, times=1000)
    cluster.cluster.faults.append(fault)
    desk.compute.cancel(attempt)
    wait_until(lambda: "does not answer" in desk.told() or desk.watching.look() != [])
    assert desk.watching.ends == {}
    assert fault.happened
    cluster.cluster.faults.clear()
    desk.compute.cancel(attempt)
    [end] = desk.watching.until_over(attempt)
    assert end.outcome == "cancelled"


def test_an_image_without_python_says_so(tmp_path: Path) -> None:
    """The lines that look for one, in a folder tree that has nothing but a shell."""
    said = tmp_path / "said"
    script = START.replace("/dev/termination-log", str(said))
    # The usual places are not to be found.
    script = re.sub(r"/(usr|opt)/\S+/python3?", "/nowhere/python", script)
    done = subprocess.run(
        ["/bin/sh", "-c", script, "rankwise", "/rankwise", "head"],
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == NO_PYTHON
    assert "the image has no Python 3.10 or newer" in said.read_text()


def test_a_quota_is_waited_for(
    desk: Desk, cluster: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.1)
    body = b'{"kind":"Status","code":403,"message":"jobs is forbidden: exceeded quota: small"}'
    fault = Fault(
        lambda one: one.method == "POST" and one.path.endswith("/jobs"),
        code=403,
        times=2,
        body=body,
        kind="application/json",
    )
    cluster.cluster.faults.append(fault)
    [end] = desk.watching.until_over(desk.submit("true"))
    assert (end.outcome, fault.happened) == ("passed", 2)
    assert "waiting for room in the namespace" in desk.told()
    assert "the cluster answers again" in desk.told()


def test_a_quota_is_told_of_once_while_others_run(
    desk: Desk, cluster: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.1)
    running = desk.submit(f"echo begun; while ! [ -e {tmp_path}/go ]; do sleep 0.05; done")
    desk.watching.until_written(running, "begun")
    body = b'{"kind":"Status","code":403,"message":"jobs is forbidden: exceeded quota: small"}'
    fault = Fault(
        lambda one: one.method == "POST" and one.path.endswith("/jobs"),
        code=403,
        times=4,
        body=body,
        kind="application/json",
    )
    cluster.cluster.faults.append(fault)
    [end] = desk.watching.until_over(desk.submit("true"))
    (tmp_path / "go").touch()
    desk.watching.until_over(running)
    assert (end.outcome, fault.happened) == ("passed", 4)
    assert desk.told().count("waiting for room in the namespace") == 1
    assert desk.told().count("the cluster answers again") == 1


def test_code_of_the_image_is_where_it_says_and_stays_there(
    tmp_path: Path, cluster: StandIn
) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "main.sh").write_text("pwd; echo made > made.txt\n")
    desk = Desk(tmp_path, cluster, f'code = "image"\ncode_path = "{app}"')
    attempt = desk.submit("sh main.sh")
    [end] = desk.watching.until_over(attempt)
    desk.compute.close()
    assert end.outcome == "passed"
    assert output_of(attempt) == f"{app}\n"
    assert (app / "made.txt").exists()
    assert not [*attempt.folder.rglob("made.txt")]
    assert "code.tgz" not in cluster.made("configmaps")[-1]["binaryData"]
    wait_until(lambda: cluster.left() == [])


def test_no_more_at_a_time_than_is_said(tmp_path: Path, cluster: StandIn) -> None:
    desk = Desk(tmp_path, cluster, "max_parallel = 1")
    before = len(cluster.made("jobs"))
    attempts = [desk.submit("true") for _ in range(2)]
    seen: list[int] = []
    ends: list[Attempt] = []

    def are_over() -> bool:
        ends.extend(desk.watching.hear(0.05))
        seen.append(len(cluster.cluster.things["jobs"]))
        return len(ends) == 2

    wait_until(are_over, 60)
    desk.compute.close()
    assert max(seen) == 1
    assert len(cluster.made("jobs")) == before + 2
    assert {one.marker for one in ends} == {one.marker for one in attempts}
    wait_until(lambda: cluster.left() == [])


def test_what_is_more_than_all_nodes_have_is_refused(tmp_path: Path, cluster: StandIn) -> None:
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "2", "memory": "4Gi"}}}
    cluster.cluster.create("nodes", node)
    desk = Desk(tmp_path, cluster)
    with pytest.raises(ComputeFailure, match="needs 4 GPUs, found 0; needs 3 cores, found 2"):
        desk.submit("true", resources=Resources(cores=3, gpus=4))
    desk.compute.close()
    elastic = Desk(tmp_path, cluster, "autoscale = true")
    assert elastic.compute.facts().capacity.gpus > 10**9
    elastic.compute.close()
    cluster.cluster.delete("nodes", "n")


def test_the_doctor_runs_a_task(tmp_path: Path, cluster: StandIn) -> None:
    desk = Desk(tmp_path, cluster)
    desk.compute.close()
    found = check_compute("k8s", find_site(tmp_path), tmp_path / "store")
    assert [one.is_well for one in found] == [True, True, True, True], found
    assert found[1].what == "all required permissions granted"
    assert "a task ran in here:1" in found[-1].what
    assert [*(tmp_path / "code").iterdir()] == []
    wait_until(lambda: cluster.left() == [])


# Pods that are deleted, evicted or killed while their task runs: none of it is a success


@pytest.fixture
def desk_lost_pods(tmp_path: Path, cluster: StandIn) -> Iterator[Desk]:
    made = Desk(tmp_path, cluster)
    yield made
    made.compute.close()
    wait_until(lambda: cluster.left() == [])


def begun(desk_lost_pods: Desk, command: str) -> tuple[Attempt, Path]:
    """Start two workers that run until a file is there."""
    end = desk_lost_pods.folder / "end"
    loop = f"echo begun; while [ ! -e {end} ]; do sleep 0.05; done"
    attempt = desk_lost_pods.submit(f"{command}; {loop}", nodes=2)
    for rank in range(2):
        desk_lost_pods.watching.until_written(attempt, "begun", f"worker-{rank}")
    return attempt, end


def is_gone(cluster: StandIn, pod: str) -> bool:
    return pod not in cluster.cluster.things["pods"]


@pytest.mark.parametrize("command", [":", "trap 'exit 0' TERM", "trap 'exit 3' TERM"])
def test_a_worker_pod_that_is_deleted_while_the_job_runs_is_lost(
    desk_lost_pods: Desk, cluster: StandIn, command: str
) -> None:
    """Whatever its program makes of the signal: it is not what it was started for."""
    attempt, end = begun(desk_lost_pods, command)
    victim = pod_of(cluster, attempt, "worker", 1)
    cluster.cluster.delete("pods", victim)
    wait_until(lambda: is_gone(cluster, victim))
    end.touch()
    [found] = desk_lost_pods.watching.until_over(attempt)
    assert (found.outcome, found.exit_code, found.culprit) == ("lost", 1, "worker-1")
    assert f"worker-1: pod {victim} was deleted, not by rankwise" in found.reason


def test_a_worker_pod_that_is_preempted_is_lost_for_the_reason_that_kubernetes_gives(
    desk_lost_pods: Desk, cluster: StandIn
) -> None:
    attempt, end = begun(desk_lost_pods, "trap 'exit 0' TERM")
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
    [found] = desk_lost_pods.watching.until_over(attempt)
    assert (found.outcome, found.culprit) == ("lost", "worker-1")
    assert (
        f"worker-1: pod {victim} was taken away: PreemptionByScheduler: for another" in found.reason
    )


_FIRST_ENDS = """\
if [ "$RANKWISE_NODE_RANK" = 0 ]; then echo made > made.txt; exit 0; fi"""


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_pod_may_go_when_its_program_has_ended_if_all_that_it_has_is_brought(
    desk_lost_pods: Desk, cluster: StandIn, is_asked: bool
) -> None:
    """One that is asked to go brings its files; with one that is killed, they are gone."""
    end = desk_lost_pods.folder / "end"
    loop = f"echo begun; while [ ! -e {end} ]; do sleep 0.05; done"
    attempt = desk_lost_pods.submit(f"{_FIRST_ENDS}\n{loop}", nodes=2)
    desk_lost_pods.watching.until_written(attempt, "begun", "worker-1")
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
    [found] = desk_lost_pods.watching.until_over(attempt)
    if is_asked:
        assert (found.outcome, found.exit_code, found.reason) == ("passed", 0, "")
        made = attempt.folder / "nodes" / "node0" / "made.txt"
        assert made.read_text() == "made\n"
    else:
        assert (found.outcome, found.culprit) == ("lost", "worker-0")
        assert f"worker-0: pod {victim} is gone: the line to it has broken" in found.reason
        assert "Kubernetes says: Failed, exit code 137" in found.reason


def test_a_worker_pod_that_is_deleted_before_all_are_there_does_not_make_the_others_wait(
    desk_lost_pods: Desk, cluster: StandIn
) -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "no room"}
    cluster.kubelet.refusals["worker"] = {"phase": "Pending", "conditions": [condition]}
    attempt = desk_lost_pods.submit("true", nodes=2)
    try:

        def are_seen() -> bool:
            assert desk_lost_pods.watching.hear(0.05) == []
            return "worker-0 (and 1 more) is unschedulable" in desk_lost_pods.told()

        wait_until(are_seen)
        [victim] = [name for name in cluster.cluster.things["pods"] if "-worker-1-" in name]
        cluster.cluster.delete("pods", victim)
        [found] = desk_lost_pods.watching.until_over(attempt)
    finally:
        cluster.kubelet.refusals.clear()
    assert (found.outcome, found.culprit) == ("lost", "worker-1")
    assert f"worker-1: pod {victim} was deleted, not by rankwise" in found.reason


def test_what_is_too_large_to_be_brought_is_named_in_the_outcome(
    desk_lost_pods: Desk, cluster: StandIn
) -> None:
    command = "truncate -s 3M ok.bin; truncate -s 40M huge.bin; cp ok.bin ../../processes/*/"
    attempt = desk_lost_pods.submit(command)
    [found] = desk_lost_pods.watching.until_over(attempt)
    assert (found.outcome, found.exit_code) == ("passed", 0)
    assert found.reason == "not brought here, and gone with its pod: huge.bin (41.9 MB)"
    assert found.reason in desk_lost_pods.told()
    for place in ("nodes/node0", "processes/worker-0"):
        assert (attempt.folder / place / "ok.bin").stat().st_size == 3 << 20
    assert not (attempt.folder / "nodes" / "node0" / "huge.bin").exists()
    assert "huge.bin is not brought" in (attempt.folder / "kubernetes.log").read_text()


def test_a_head_whose_node_is_gone_is_lost_and_not_waited_for_without_end(
    desk_lost_pods: Desk, cluster: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API knows that it is to end, and the node will never say that it has."""
    monkeypatch.setattr(module, "_STUCK_SECONDS", 0.2)
    monkeypatch.setattr(module, "_AWAY_SECONDS", 0.2)
    attempt = desk_lost_pods.submit("echo begun; sleep 300")
    desk_lost_pods.watching.until_written(attempt, "begun")
    victim = pod_of(cluster, attempt, "worker")
    cluster.cluster.unreachable.add(victim)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    cluster.cluster.update("pods", victim, lambda pod: pod["status"].update(conditions=[condition]))
    cluster.cluster.delete("pods", victim)
    try:
        [found] = desk_lost_pods.watching.until_over(attempt)
    finally:
        cluster.cluster.unreachable.clear()
    assert found.outcome == "lost"
    assert f"pod {victim} was taken away: DeletionByTaintManager" in found.reason


def test_a_job_that_is_complete_and_has_no_pods_any_more_is_lost(
    desk_lost_pods: Desk, cluster: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client has read its log while it was there."""
    monkeypatch.setattr(module, "_NO_POD_SECONDS", 0.1)
    cluster.kubelet.refusals["worker"] = {"phase": "Pending"}
    attempt = desk_lost_pods.submit("true")
    assert desk_lost_pods.watching.look() == []
    try:
        [job] = [name for name in cluster.cluster.things["jobs"] if attempt.marker in name]
        done = {"type": "Complete", "status": "True"}
        cluster.cluster.update(
            "jobs", job, lambda one: one.update(status={"started": True, "conditions": [done]})
        )
        for pod in [*cluster.cluster.things["pods"]]:
            cluster.cluster.delete("pods", pod)
        other = Desk(desk_lost_pods.folder, cluster)
        other.compute.adopt(attempt, job)
        [found] = other.watching.until_over(attempt)
        other.compute.close()
    finally:
        cluster.kubelet.refusals.clear()
    assert found.outcome == "lost"
    assert "it left no record of how it ended" in found.reason


def test_a_task_whose_other_pods_are_not_known_any_more_does_not_wait_for_them(
    desk_lost_pods: Desk, cluster: StandIn
) -> None:
    cluster.kubelet.refusals["head"] = {"phase": "Pending"}
    attempt = desk_lost_pods.submit("true", nodes=2)
    try:
        assert desk_lost_pods.watching.look() == []
        (attempt.folder / OTHERS).unlink()
    finally:
        cluster.kubelet.refusals.clear()
    [found] = desk_lost_pods.watching.until_over(attempt)
    assert desk_lost_pods.watching.look() == [], "it has ended once"
    assert not any(attempt.marker in one.name for one in threading.enumerate())
    assert found.outcome == "not run"
    assert f"{OTHERS} does not say which pods there are to be" in found.reason


def test_a_full_disk_here_is_not_the_end_of_a_job(
    desk_lost_pods: Desk, cluster: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    attempt = desk_lost_pods.submit(f"while ! [ -e {go} ]; do sleep 0.05; done")
    obstacle = attempt.folder / ".end.json.part"
    obstacle.symlink_to("/dev/full")
    go.touch()

    def is_told() -> bool:
        assert desk_lost_pods.watching.hear(0.05) == []
        return "cannot be written here" in desk_lost_pods.told()

    def is_over() -> bool:
        assert desk_lost_pods.watching.hear(0.05) == []
        pods = cluster.cluster.things["pods"].values()
        return all(pod["status"]["phase"] == "Succeeded" for pod in pods)

    wait_until(is_told)
    # Only now: on a busy machine, the pod may have ended before its log is read.
    for name in ("_STATE_SECONDS", "_LOG_SECONDS", "_AWAY_SECONDS"):
        monkeypatch.setattr(module, name, 0.0)
    wait_until(is_over)
    assert "No space left on device" in desk_lost_pods.told()
    time.sleep(1.0)
    assert desk_lost_pods.watching.look() == []
    obstacle.unlink()
    [found] = desk_lost_pods.watching.until_over(attempt)
    assert (found.outcome, found.exit_code, found.reason) == ("passed", 0, "")
