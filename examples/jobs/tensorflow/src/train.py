"""Teach a small network to read noisy digits, on all processes of a TensorFlow job.

TF_CONFIG says who belongs to the job and which of them this process is. With parameter servers
among them, these keep the weights, and each worker changes them when it is ready to
(ParameterServerStrategy). Without, every worker keeps all weights, and they change them together
(MultiWorkerMirroredStrategy). Without TF_CONFIG, the script is a job of one.

Leaves with 1 if too few digits are read right, or the workers' weights are not the same. The steps
are written out, because `fit` of Keras 3.15 fails with MultiWorkerMirroredStrategy.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf
from digits import Network

STEPS = 60
RATE = 0.5
NEEDED = 0.8
POLL_SECONDS = 0.1

Cluster = Mapping[str, Sequence[str]]


def report(workers: int, before: float, after: float) -> None:
    """Say how it went."""
    print(f"workers: {workers}, read right before: {before:.0%}, after: {after:.0%}", flush=True)
    if after < NEEDED:
        print(f"less than {NEEDED:.0%} are read right", file=sys.stderr)


def threads_between(cluster: Cluster) -> int:
    """Say how many operations a process may have under way.

    As many as it has cores would be TensorFlow's choice. But some wait for other processes, and
    with one core, a worker and a parameter server would wait for each other for ever.
    """
    return 1 + sum(map(len, cluster.values()))


# Every worker keeps all weights.


def train_together(index: int) -> bool:
    """Train as one of the workers, and say whether it went well."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers = strategy.num_replicas_in_sync
    with strategy.scope():
        network = Network(rate=RATE)

    @tf.function
    def learn(step: tf.Tensor) -> None:
        strategy.run(network.learn, [step * workers + index])

    @tf.function
    def accuracy() -> tf.Tensor:
        share = strategy.run(network.accuracy, [tf.constant(-1 - index)])
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, share, axis=None)

    @tf.function
    def distance() -> tf.Tensor:
        mine = tf.concat([tf.reshape(weight, [1, -1]) for weight in network.weights], axis=1)
        everyones = strategy.gather(mine, axis=0)
        return tf.reduce_max(tf.reduce_max(everyones, axis=0) - tf.reduce_min(everyones, axis=0))

    before = float(accuracy())
    for step in range(STEPS):
        learn(tf.constant(step))
    after, apart = float(accuracy()), float(distance())
    if index == 0:
        report(workers, before, after)
    if apart > 0:
        print(f"the weights of the workers are {apart} apart", file=sys.stderr)
    return after >= NEEDED and apart == 0


# Parameter servers keep the weights.


def with_chief(cluster: Cluster, kind: str, index: int) -> tuple[Cluster, str, int]:
    """Make the first worker the chief, if there is none, and say who this process is then.

    ParameterServerStrategy needs one process that hands out the work and does none itself, and
    calls it the chief. TF_CONFIG need not name one. Every process has the same cluster in its
    TF_CONFIG and changes it in the same way, so that all of them agree on who is who: worker 0
    is the chief, and worker 1 is worker 0.
    """
    if "chief" in cluster:
        return cluster, kind, index
    chief, *workers = cluster["worker"]
    changed = {**cluster, "chief": [chief], "worker": workers}
    if kind != "worker":
        return changed, kind, index
    return (changed, "chief", 0) if index == 0 else (changed, "worker", index - 1)


def farewell(index: int) -> str:
    """Name the file by which a worker knows that there is no more work."""
    return f"worker-{index}-is-done"


def start_server(cluster: Cluster, kind: str, index: int) -> tf.distribute.Server:
    """Let the chief use this process; the server works in threads of its own."""
    threads = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=threads_between(cluster)
    )
    return tf.distribute.Server(cluster, job_name=kind, task_index=index, config=threads)


def work(cluster: Cluster, index: int) -> None:
    """Do what the chief says until it says that all is done."""
    sign = Path(farewell(index))
    sign.unlink(missing_ok=True)
    _server = start_server(cluster, "worker", index)
    # Server.join() would never return: TensorFlow leaves it to others to end workers. But a job is
    # good when its workers leave with 0, so they must know when to.
    while not sign.exists():
        time.sleep(POLL_SECONDS)
    sign.unlink()


def keep_weights(cluster: Cluster, index: int) -> None:
    """Serve for ever: who started the job ends parameter servers when the workers are done."""
    start_server(cluster, "ps", index).join()


def train_as_chief(cluster: Cluster) -> bool:
    """Hand out the steps to the workers, and say whether it went well."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    workers = len(cluster["worker"])
    with strategy.scope():
        # A worker's step may come late, when the others have gone on: small ones bear that.
        network = Network(rate=RATE / workers)

    @tf.function
    def learn(step: tf.Tensor) -> None:
        strategy.run(network.learn, [step])

    before = float(network.accuracy(tf.constant(-1)))
    for step in range(STEPS * workers):
        coordinator.schedule(learn, [tf.constant(step)])
    coordinator.join()
    after = float(network.accuracy(tf.constant(-1)))
    for index in range(workers):
        # The worker itself writes it, in its own folder and maybe on another machine.
        with tf.device(f"/job:worker/task:{index}"):
            tf.io.write_file(farewell(index), "")
    report(workers, before, after)
    return after >= NEEDED


def main() -> int:
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    cluster: Cluster = config.get("cluster", {})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(threads_between(cluster))
    task = config.get("task", {"type": "worker", "index": 0})
    kind, index = task["type"], int(task["index"])
    if "ps" not in cluster:
        return int(not train_together(index))
    cluster, kind, index = with_chief(cluster, kind, index)
    if kind == "chief":
        return int(not train_as_chief(cluster))
    if kind == "worker":
        work(cluster, index)
    else:
        keep_weights(cluster, index)
    return 0


if __name__ == "__main__":
    sys.exit(main())
