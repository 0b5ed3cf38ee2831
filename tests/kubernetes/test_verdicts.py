"""How attempts ended, by their runner's word and that of Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.backends.base import is_conclusive
from rankwise.backends.kubernetes.objects import NO_PYTHON
from rankwise.backends.kubernetes.states import (
    PodState,
    failure_of,
    hold_up,
    is_complete,
    judge,
    pull_trouble,
    read_pod,
    refusal,
)
from rankwise.records import AttemptEnd


def pod(name: str = "rw-1-worker-0-x", **more: Any) -> PodState:
    return PodState(**{"name": name, "role": "worker", "phase": "Failed", **more})


def end(outcome: str, code: int = 1, **more: Any) -> AttemptEnd:
    return AttemptEnd(outcome=outcome, exit_code=code, **more)


LOST = end("lost", reason="worker-0 is gone", culprit="worker-0", started=1.0, ended=2.0)


@pytest.mark.parametrize(
    "told",
    [end("passed", 0), end("failed", 7), end("timed out", 124), end("crashed", 139, signal=11)],
)
def test_the_runner_s_word_is_enough_where_it_was_not_ended_itself(told: AttemptEnd) -> None:
    assert is_conclusive(told)
    assert judge(told, [pod(exit_reason="OOMKilled")], is_wanted=True) is told


@pytest.mark.parametrize(
    ("told", "pods", "outcome", "code", "reason"),
    [
        (LOST, [pod(exit_reason="OOMKilled", exit_code=137)], "crashed", 137, "out of memory: worker-0"),
        (None, [pod(exit_reason="OOMKilled", exit_code=137)], "crashed", 137, "out of memory: worker-0"),
        (None, [pod(reason="Evicted", message="low on disk", node="n1")], "lost", 1,
         "pod rw-1-worker-0-x on n1 was taken away: Evicted: low on disk"),
        (LOST, [pod(disrupted="PreemptionByScheduler: for another")], "lost", 1,
         "taken away: PreemptionByScheduler: for another"),
        (LOST, [pod()], "lost", 1, "worker-0 is gone"),
        (None, [pod(exit_code=NO_PYTHON, exit_message="rankwise: the image has no Python")], "not run", 1,
         "the image has no Python"),
        (None, [pod(is_deleted=True)], "cancelled", 130, "was deleted, not by rankwise"),
        (None, [pod(exit_code=3, exit_message='rankwise: oops\n{"n":1}')], "lost", 1,
         "exited with code 3: rankwise: oops"),
        (None, [], "lost", 1, "Kubernetes has forgotten it"),
        (end("crashed", 137, signal=9), [pod(phase="Running")], "crashed", 137, ""),
    ],
)  # fmt: skip
def test_what_kubernetes_says_is_heard_where_it_must_be(
    told: AttemptEnd | None, pods: list[PodState], outcome: str, code: int, reason: str
) -> None:
    found = judge(told, pods)
    assert (found.outcome, found.exit_code) == (outcome, code)
    assert reason in found.reason


OTHER, HEAD = {"part": "other"}, {"part": "head", "role": "head"}


@pytest.mark.parametrize(
    ("pods", "outcome", "culprit", "reason"),
    [
        ([pod("a", **OTHER), pod("b", index=1, reason="Evicted", message="low on disk", **OTHER)],
         "lost", "worker-1", "worker-1: pod b was taken away: Evicted: low on disk"),
        ([pod("a", phase="", is_gone=True, **OTHER)], "lost", "worker-0",
         "worker-0: pod a was deleted, not by rankwise"),
        ([pod("a", exit_code=137, exit_reason="Error", **OTHER)], "lost", "worker-0",
         "worker-0: pod a is gone: no answer; Kubernetes says: Failed, exit code 137 Error"),
        ([], "lost", None, "pod a is gone: no answer"),
        ([pod("a", exit_reason="OOMKilled", **OTHER)], "crashed", "worker-0", "out of memory"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("told", [end("passed", 0), end("cancelled", 130), LOST, None])
def test_a_pod_that_was_gone_before_its_time_is_no_success(
    told: AttemptEnd | None, pods: list[PodState], outcome: str, culprit: str | None, reason: str
) -> None:
    found = judge(told, pods, lost={"a": "no answer", "b": "no answer"})
    assert (found.outcome, found.culprit) == (outcome, culprit)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("told", "outcome"),
    [(end("passed", 0), "lost"), (end("cancelled", 130), "cancelled"), (None, "cancelled")],
)
def test_a_task_of_which_all_pods_were_deleted_was_cancelled_unless_it_was_through(
    told: AttemptEnd | None, outcome: str
) -> None:
    pods = [pod("a", is_deleted=True, **OTHER), pod("h", is_deleted=True, **HEAD)]
    assert judge(told, pods, lost={"a": "no answer"}).outcome == outcome


@pytest.mark.parametrize(
    "told", [end("passed", 3), end("running", 0), end("well done", 0), end("", 0)]
)
def test_an_end_that_is_not_understood_is_no_success(told: AttemptEnd) -> None:
    assert not is_conclusive(told)
    found = judge(told, [pod("h", phase="Succeeded", exit_code=0, **HEAD)])
    assert (found.outcome, found.exit_code) == ("lost", 1)
    assert f"its end is {told.outcome!r}" in found.reason


@pytest.mark.parametrize("reason", ["Evicted", "Preempting", "NodeLost", "Terminated"])
def test_a_pod_that_was_taken_away_was_not_refused(reason: str) -> None:
    gone = pod(reason=reason, message="why", **OTHER)
    assert refusal([gone]) == ""
    assert judge(None, [gone]).outcome == "lost"


def test_a_head_that_its_node_does_not_admit_has_not_run() -> None:
    refused = pod(reason="OutOfcpu", message="Node didn't have enough resource", **HEAD)
    found = judge(None, [refused])
    assert found.outcome == "not run"
    assert "was not admitted: OutOfcpu" in found.reason


def test_what_failed_by_itself_has_failed_though_a_pod_was_gone_later() -> None:
    told = end("failed", 7, culprit="worker-0")
    assert judge(told, [pod("a", is_gone=True, **OTHER)], lost={"a": "no answer"}) is told


def test_a_worker_that_is_deleted_before_all_are_there_is_lost() -> None:
    pods = [pod("h", phase="Running", **HEAD), pod("a", is_gone=True, index=1, **OTHER)]
    found = judge(None, pods)
    assert (found.outcome, found.culprit) == ("lost", "worker-1")
    assert "worker-1: pod a was deleted, not by rankwise" in found.reason


def test_a_head_without_a_record_is_blamed_and_not_the_pods_that_left_after_it() -> None:
    pods = [pod("a", exit_code=1, **OTHER), pod("h", exit_code=3, **HEAD)]
    assert "pod h exited with code 3" in judge(None, pods).reason


def test_what_we_have_cancelled_is_cancelled() -> None:
    for told in (None, LOST, end("cancelled", 130)):
        assert judge(told, [pod()], is_wanted=True).outcome == "cancelled"


@pytest.mark.parametrize(
    "told",
    [
        end("crashed", 137, signal=9, culprit="worker-2"),
        # What a shell says whose command was killed.
        end("failed", 137, culprit="worker-2"),
    ],
)
def test_a_process_that_the_kernel_ended_for_want_of_memory(told: AttemptEnd) -> None:
    found = judge(told, [pod(phase="Running")], is_out_of_memory=True)
    assert (found.outcome, found.signal, found.culprit) == ("crashed", 9, "worker-2")
    assert found.reason == "out of memory: worker-2 used more than its pod may have"


def test_why_pods_do_not_start() -> None:
    words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    waiting = [pod(f"p{n}", phase="Pending", index=n, unschedulable=words) for n in range(3)]
    assert hold_up(waiting) == f"worker-0 (and 2 more) is unschedulable: {words}"
    assert hold_up([pod(phase="Running")]) == ""
    pulled = pod(waiting="ImagePullBackOff", waiting_message='Back-off pulling image "x"')
    assert pull_trouble([pulled]) == (
        'the image cannot be pulled: ImagePullBackOff: Back-off pulling image "x"'
    )
    assert refusal([pulled]) == ""
    refused = pod(
        phase="Pending", waiting="CreateContainerConfigError", waiting_message="runAsNonRoot"
    )
    assert "CreateContainerConfigError: runAsNonRoot" in refusal([refused])
    outright = pod(reason="OutOfcpu", message="Node didn't have enough resource")
    assert "was not admitted: OutOfcpu" in refusal([outright])


def test_a_pod_is_read_as_the_api_writes_it() -> None:
    found = read_pod(
        {
            "metadata": {
                "name": "p",
                "labels": {
                    "rankwise.dev/attempt": "rw-1",
                    "rankwise.dev/part": "other",
                    "rankwise.dev/role": "worker",
                },
                "annotations": {"batch.kubernetes.io/job-completion-index": "3"},
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"nodeName": "n1"},
            "status": {
                "phase": "Failed",
                "podIP": "10.0.0.3",
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "message": "no room"},
                    {"type": "DisruptionTarget", "status": "True", "reason": "A", "message": "b"},
                ],
                "containerStatuses": [
                    {"name": "sidecar", "state": {"running": {}}},
                    {
                        "name": "main",
                        "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    },
                ],
            },
        }
    )
    assert found == PodState(
        name="p",
        attempt="rw-1",
        part="other",
        role="worker",
        index=3,
        phase="Failed",
        address="10.0.0.3",
        node="n1",
        unschedulable="no room",
        disrupted="A: b",
        exit_code=137,
        exit_reason="OOMKilled",
        is_deleted=True,
    )
    assert found.who == "worker-3"
    assert read_pod({}) == PodState(name="")


def test_why_a_job_has_failed() -> None:
    condition = {"type": "Failed", "status": "True", "reason": "A", "message": "b"}
    assert failure_of({"status": {"conditions": [condition]}}) == "A: b"
    assert failure_of({"status": None}) == ""


def test_a_job_that_is_complete() -> None:
    condition = {"type": "Complete", "status": "True"}
    assert is_complete({"status": {"conditions": [condition]}})
    assert not is_complete({"status": {"conditions": [{**condition, "status": "False"}]}})
    assert not is_complete({"status": None})
