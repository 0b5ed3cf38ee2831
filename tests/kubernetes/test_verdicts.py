"""How attempts ended, by their runner's word and that of Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.compute.kubernetes.answers import PodState, failure_of, read_pod
from rankwise.compute.kubernetes.start import NO_PYTHON
from rankwise.compute.kubernetes.verdict import hold_up, is_clear, judge, pull_trouble, refusal
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
    assert is_clear(told)
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
         "left with exit code 3: rankwise: oops"),
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


def test_what_we_have_cancelled_is_cancelled() -> None:
    for told in (None, LOST, end("cancelled", 130)):
        assert judge(told, [pod()], is_wanted=True).outcome == "cancelled"


def test_a_process_that_the_kernel_ended_for_want_of_memory() -> None:
    told = end("crashed", 137, signal=9, culprit="worker-2")
    found = judge(told, [pod(phase="Running")], is_out_of_memory=True)
    assert (found.outcome, found.culprit) == ("crashed", "worker-2")
    assert found.reason == "out of memory: worker-2 used more than its pod may have"


def test_why_pods_do_not_start() -> None:
    words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    waiting = [pod(f"p{n}", phase="Pending", index=n, unschedulable=words) for n in range(3)]
    assert hold_up(waiting) == f"worker-0 (and 2 more) is unschedulable: {words}"
    assert hold_up([pod(phase="Running")]) == ""
    pulled = pod(waiting="ImagePullBackOff", waiting_message='Back-off pulling image "x"')
    assert pull_trouble([pulled]) == (
        'the image cannot be had: ImagePullBackOff: Back-off pulling image "x"'
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
