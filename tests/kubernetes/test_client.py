"""The client of the API comes through whatever a server, or what is in between, does to it."""

from __future__ import annotations

import errno
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from rankwise.backends.base import Unreachable
from rankwise.backends.kubernetes import client as module
from rankwise.backends.kubernetes import watch as watch_module
from rankwise.backends.kubernetes.client import ApiClient, ApiRefused
from rankwise.backends.kubernetes.watch import NUMBER, LogStream, PodWatch
from rankwise.documents.site_models import KubernetesConfig
from rankwise.errors import ComputeFailure
from rankwise.node.mirror import Frame, to_line, whole_file
from tests.kubernetes.api_server import Cluster as World
from tests.kubernetes.api_server import Fault, Request, Server, Thing
from tests.kubernetes.kubelet import wait_until

LABELS = {"app.kubernetes.io/managed-by": "rankwise"}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSES", (0.01, 0.01, 0.01))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def server(world: World) -> Iterator[Server]:
    server = Server(world)
    yield server
    server.close()


@pytest.fixture
def cluster(server: Server, tmp_path: Path) -> Iterator[ApiClient]:
    file = server.kubeconfig(tmp_path / "config")
    made = ApiClient(KubernetesConfig(kubeconfig=str(file)))
    yield made
    made.forget()


def config_map(name: str, marker: str = "one") -> Thing:
    metadata = {"name": name, "labels": {**LABELS, "rankwise.dev/attempt": marker}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}}


def pod(name: str, phase: str = "Pending") -> Thing:
    return {"metadata": {"name": name, "labels": dict(LABELS)}, "status": {"phase": phase}}


def is_post(request: Request) -> bool:
    return request.method == "POST"


def posts(world: World) -> int:
    return sum(map(is_post, world.requests))


def test_an_answer_that_was_lost_is_no_collision(world: World, cluster: ApiClient) -> None:
    fault = Fault(is_post, after=True)
    world.faults.append(fault)
    made = cluster.create(config_map("ours"))
    assert made["metadata"]["uid"] == world.things["configmaps"]["ours"]["metadata"]["uid"]
    assert (fault.happened, posts(world)) == (1, 2)


def test_a_name_that_is_another_s_is_refused(world: World, cluster: ApiClient) -> None:
    world.create("configmaps", config_map("ours", "another"))
    with pytest.raises(ApiRefused, match="409: ours already exists") as raised:
        cluster.create(config_map("ours"))
    assert raised.value.code == 409


@pytest.mark.parametrize("code", [429, 500, 503, 504])
def test_a_server_that_is_busy_is_asked_again(world: World, cluster: ApiClient, code: int) -> None:
    world.faults.append(Fault(is_post, code=code, headers={"Retry-After": "0"}, times=3))
    cluster.create(config_map("ours"))
    assert posts(world) == 4


def test_as_long_as_it_says_is_waited(
    world: World, cluster: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("rankwise.backends.kubernetes.client.time.sleep", waited.append)
    world.faults.append(Fault(is_post, code=429, headers={"Retry-After": "3"}))
    world.faults.append(Fault(is_post, code=429, headers={"Retry-After": "900"}))
    cluster.create(config_map("ours"))
    assert waited == [3.0, module._LONGEST_PAUSE]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(is_post, code=500, times=9),
        Fault(is_post, times=9),
        Fault(is_post, code=502, body=b"<h1>Bad gateway</h1>", times=9),
    ],
    ids=["fault", "cut", "page"],
)
def test_one_that_stays_away_is_away(world: World, cluster: ApiClient, fault: Fault) -> None:
    fault.happened = 0
    world.faults.append(fault)
    with pytest.raises(Unreachable):
        cluster.create(config_map("ours"))
    assert posts(world) == 4
    assert world.things["configmaps"] == {}


def test_what_is_forbidden_is_not_tried_again(world: World, cluster: ApiClient) -> None:
    world.faults.append(Fault(is_post, code=403, times=9))
    with pytest.raises(ApiRefused, match="403: so it is"):
        cluster.create(config_map("ours"))
    assert posts(world) == 1


def test_a_token_that_has_expired_is_read_anew(
    world: World, server: Server, cluster: ApiClient, tmp_path: Path
) -> None:
    world.tokens = {"first"}
    cluster.create(config_map("one"))
    world.tokens = {"second"}
    server.kubeconfig(tmp_path / "config", token="second")
    cluster.create(config_map("two"))
    assert sorted(world.things["configmaps"]) == ["one", "two"]
    world.tokens = {"third"}
    with pytest.raises(ApiRefused, match="401"):
        cluster.create(config_map("three"))


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_plugin_is_asked_for_another_token(
    world: World, server: Server, tmp_path: Path, version: str
) -> None:
    tokens = tmp_path / "token"
    program = f"import json; t = open({str(tokens)!r}).read(); print(json.dumps(dict(status=dict(token=t))))"
    plugin = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": sys.executable,
        "args": ["-c", program],
    }
    file = server.kubeconfig(tmp_path / "config", user={"exec": plugin})
    cluster = ApiClient(KubernetesConfig(kubeconfig=str(file)))
    for number, token in enumerate(("first", "second")):
        tokens.write_text(token)
        world.tokens = {token}
        cluster.create(config_map(f"map-{number}"))
    cluster.forget()
    assert len(world.things["configmaps"]) == 2


def test_without_a_kubeconfig_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ComputeFailure, match=r"nowhere cannot be used: .*KUBECONFIG"):
        ApiClient(KubernetesConfig(kubeconfig=str(tmp_path / "nowhere"))).pods(LABELS)
    (tmp_path / "broken").write_text(json.dumps({"clusters": [], "users": [], "contexts": []}))
    with pytest.raises(ComputeFailure, match="cannot be used"):
        ApiClient(KubernetesConfig(kubeconfig=str(tmp_path / "broken"))).pods(LABELS)
    monkeypatch.setitem(sys.modules, "lightkube", None)
    with pytest.raises(ComputeFailure, match=r"pip install 'rankwise\[kubernetes\]'"):
        ApiClient(KubernetesConfig()).pods(LABELS)


@pytest.fixture
def watch(world: World, cluster: ApiClient) -> Iterator[PodWatch]:
    watch = PodWatch(cluster, LABELS, poke=lambda: None)
    wait_until(lambda: any(one.is_watch for one in world.requests))
    yield watch
    watch.close()


def phases(watch: PodWatch) -> dict[str, str]:
    watch.apply()
    return {name: "gone" if one.is_gone else one.phase for name, one in watch.pods.items()}


def lists(world: World) -> list[Request]:
    is_list = [one.path.endswith("/pods") and not one.is_watch for one in world.requests]
    return [one for one, wanted in zip(world.requests, is_list, strict=True) if wanted]


def test_what_becomes_of_pods_is_heard(world: World, watch: PodWatch) -> None:
    world.create("pods", pod("a"))
    wait_until(lambda: phases(watch) == {"a": "Pending"})
    world.update("pods", "a", lambda one: one["status"].update(phase="Running"))
    wait_until(lambda: phases(watch) == {"a": "Running"})
    world.delete("pods", "a")
    wait_until(lambda: phases(watch) == {"a": "gone"})


@pytest.mark.parametrize(
    "fits",
    [lambda one: one.method == "EVENT", lambda one: one.is_watch],
    ids=["an event", "the request"],
)
def test_a_watch_that_is_cut_loses_nothing(world: World, watch: PodWatch, fits: object) -> None:
    world.create("pods", pod("a"))
    wait_until(lambda: "a" in phases(watch))
    cut = Fault(fits, times=2)  # type: ignore[arg-type]  # one of those above
    world.faults.append(cut)
    for number in range(20):
        world.create("pods", pod(f"b{number}"))
        if number % 7 == 0:
            world.update("pods", "a", lambda one: one["status"].update(phase="Running"))
    wait_until(lambda: len(phases(watch)) == 21 and phases(watch)["a"] == "Running")
    wait_until(lambda: phases(watch) is not None and watch.trouble == "")


def test_what_is_too_old_to_go_on_from_is_listed_anew(world: World, watch: PodWatch) -> None:
    world.create("pods", pod("a"))
    wait_until(lambda: "a" in phases(watch))
    # The server ends the watch; when it is asked to go on, what was told last is no longer known.
    world.oldest = world.version + 1
    ended = Fault(lambda one: one.method == "EVENT", code=200)
    world.faults.append(ended)
    asked = len(lists(world))
    world.create("pods", pod("b"))
    world.delete("pods", "a")
    wait_until(lambda: phases(watch) == {"a": "gone", "b": "Pending"})
    wait_until(lambda: ended.happened == 1 and len(lists(world)) > asked)
    # And from then on it is told again.
    world.create("pods", pod("c"))
    wait_until(lambda: "c" in phases(watch))


def test_a_pod_that_cannot_be_read_does_not_end_the_watching(
    world: World, watch: PodWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistake(pod: object) -> NoReturn:
        raise KeyError("odd")

    assert phases(watch) == {}
    with monkeypatch.context() as patch:
        patch.setattr(watch_module, "read_pod", mistake)
        world.create("pods", pod("a"))

        def is_told() -> bool:
            watch.apply()
            return watch.trouble != ""

        wait_until(is_told)
    assert watch.trouble == "KeyError('odd')"
    wait_until(lambda: phases(watch) == {"a": "Pending"})


def test_who_does_not_answer_is_told_of(world: World, watch: PodWatch) -> None:
    world.create("pods", pod("a"))
    wait_until(lambda: "a" in phases(watch))
    world.faults.append(Fault(lambda one: one.method == "EVENT"))
    down = Fault(lambda one: one.path.endswith("/pods"), code=503, times=8)
    world.faults.append(down)
    world.create("pods", pod("b"))
    wait_until(lambda: phases(watch) is not None and "503" in watch.trouble)
    down.times = 0
    wait_until(lambda: "b" in phases(watch) and watch.trouble == "")


def test_a_log_that_is_cut_is_taken_up_where_it_was(
    world: World, cluster: ApiClient, tmp_path: Path
) -> None:
    folder = tmp_path / "attempt"
    folder.mkdir()
    log = tmp_path / "log"
    lines = [
        {
            "n": number,
            "path": "processes/w/output.log",
            "at": 10 * (number - 1),
            "text": f"{number:9}\n",
        }
        for number in range(1, 2001)
    ]
    end = {"n": 2001, **next(iter(whole_file("end.json", b"{}")))}
    frames = [*lines, end, {"n": 2002, "end": True}]
    text = "".join(f"{to_line(one)}\n" for one in frames)
    log.write_text(f"rankwise: a word for people\n{text}")
    world.logs["head"], world.finished_logs = log, {"head"}
    cut = Fault(lambda one: one.method == "LOG", times=2)
    world.faults.append(cut)
    poked: list[None] = []
    stream = LogStream(cluster.twin(), "head", folder, poke=lambda: poked.append(None))
    wait_until(lambda: stream.is_whole and (folder / NUMBER).read_text() == "2002")
    assert cut.happened == 2
    text = (folder / "processes" / "w" / "output.log").read_text()
    assert text == "".join(f"{number:9}\n" for number in range(1, 2001))
    assert (folder / "end.json").read_text() == "{}"

    # Another client goes on from the number of the last frame.
    (folder / "processes" / "w" / "output.log").write_text("as it was")
    again = LogStream(cluster.twin(), "head", folder, poke=lambda: None)
    wait_until(lambda: again.is_whole)
    assert again.has_begun
    assert [*again.said] == ["rankwise: a word for people"]
    assert (folder / "processes" / "w" / "output.log").read_text() == "as it was"


@pytest.mark.parametrize("times", [1, 100])
def test_a_list_whose_rest_is_too_old_is_asked_for_again(
    cluster: ApiClient, world: World, times: int
) -> None:
    body = b'{"kind":"Status","code":410,"reason":"Expired","message":"too old"}'
    world.faults.append(
        Fault(
            lambda one: one.method == "GET",
            code=410,
            times=times,
            body=body,
            kind="application/json",
        )
    )
    if times == 1:
        assert cluster.pods(LABELS)[0] == []
    else:
        with pytest.raises(Unreachable, match="too old"):
            cluster.pods(LABELS)


# What the head of an attempt writes, turned into files here: nothing of it is lost unseen

_LOG = "processes/worker-0/output.log"


class Kept(ApiClient):
    """What a cluster has of a log, each time that it is asked for it."""

    def __init__(self, *answers: Sequence[Frame]) -> None:
        super().__init__(KubernetesConfig())
        self.asked: list[int | None] = []
        self._answers = list(answers)

    def log(self, pod: str, *, since: int | None) -> Iterator[str]:
        del pod
        self.asked.append(since)
        frames = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        yield from map(to_line, frames)
        if self._answers[0] is not frames:
            raise Unreachable("the line has broken")


def numbered(*frames: Frame) -> list[Frame]:
    return [{"n": number, **frame} for number, frame in enumerate(frames, 1)]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "_SOONEST_SECONDS", 0.01)


def follow(cluster: ApiClient, folder: Path) -> LogStream:
    return LogStream(cluster, "pod", folder, poke=lambda: None)


def test_what_cannot_be_written_is_waited_for_and_nothing_is_lost(tmp_path: Path) -> None:
    """The disk is full: first for a log, and then for a file."""
    frames = numbered(
        {"path": _LOG, "at": 0, "text": "one\n"},
        *whole_file("processes/worker-0/end.json", b"{}"),
        {"end": True},
    )
    process = (tmp_path / _LOG).parent
    process.mkdir(parents=True)
    obstacles = {tmp_path / _LOG: tmp_path / _LOG, process / ".end.json.part": process / "end.json"}
    for obstacle in obstacles:
        obstacle.symlink_to("/dev/full")
    stream = follow(Kept(frames), tmp_path)
    for obstacle, place in obstacles.items():
        wait_until(lambda: "No space left" in stream.trouble_here)
        assert (stream.is_whole, stream.left_out) == (False, {})
        obstacle.unlink()
        wait_until(place.exists)
    wait_until(lambda: stream.is_whole)
    assert stream.trouble_here == ""
    assert (tmp_path / _LOG).read_text() == "one\n"
    assert (process / "end.json").read_text() == "{}"


def test_a_client_that_ends_while_it_waits_leaves_the_rest_to_the_next_one(tmp_path: Path) -> None:
    frames = numbered({"path": _LOG, "at": 0, "text": "one\n"}, {"end": True})
    (tmp_path / _LOG).parent.mkdir(parents=True)
    (tmp_path / _LOG).symlink_to("/dev/full")
    first = follow(Kept(frames), tmp_path)
    wait_until(lambda: bool(first.trouble_here))
    first.close()
    first.join()
    assert int((tmp_path / NUMBER).read_text()) == 0, "the next one asks for it again"
    (tmp_path / _LOG).unlink()
    second = follow(Kept(frames), tmp_path)
    wait_until(lambda: second.is_whole)
    assert (tmp_path / _LOG).read_text() == "one\n"


def test_a_full_disk_does_not_make_a_client_forget_what_it_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that was moved would be moved again, over what was moved before."""
    (tmp_path / NUMBER).write_text("1")

    def write_on_a_full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(watch_module, "write_file", write_on_a_full_disk)
    frames = numbered(*({"path": "a.log", "at": 0, "text": "x"} for _ in range(3)), {"end": True})
    stream = follow(Kept(frames), tmp_path)
    stream.join()
    assert stream.is_whole
    assert (tmp_path / NUMBER).read_text() == "1"


def test_a_file_where_a_folder_is_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    frames = numbered(*whole_file("a/b", b"x"), {"end": True})
    stream = follow(Kept(frames), tmp_path)
    wait_until(lambda: stream.is_whole)
    assert [*stream.left_out] == ["a/b"]


def test_a_file_that_can_never_be_here_is_named(tmp_path: Path) -> None:
    name = f"nodes/node0/{'x' * 300}"
    frames = numbered(*whole_file(name, b"x"), *whole_file("a", b"a"), {"end": True})
    stream = follow(Kept(frames), tmp_path)
    wait_until(lambda: stream.is_whole)
    assert [*stream.left_out] == [name]
    assert "File name too long" in stream.left_out[name]
    assert (tmp_path / "a").read_text() == "a"


def test_frames_that_were_written_without_a_reader_are_asked_for_again(tmp_path: Path) -> None:
    frames = numbered(
        *({"path": _LOG, "at": 4 * count, "text": f"{count:03}\n"} for count in range(9)),
        {"end": True},
    )
    # The line breaks; what is asked for is too late, and all is asked for.
    cluster = Kept(frames[:3], frames[6:], frames)
    stream = follow(cluster, tmp_path)
    wait_until(lambda: stream.is_whole)
    assert (tmp_path / _LOG).read_text() == "".join(f"{count:03}\n" for count in range(9))
    assert stream.missing == 0
    assert [since is None for since in cluster.asked] == [True, False, True]


def test_frames_that_the_cluster_has_no_more_are_counted(tmp_path: Path) -> None:
    first, second, *rest = whole_file("result.bin", b"x" * 20_000)
    frames = numbered({"path": _LOG, "at": 0, "text": "one\n"}, first, second, *rest, {"end": True})
    stream = follow(Kept(frames[:2], frames[3:], frames[3:]), tmp_path)
    wait_until(lambda: stream.is_whole)
    assert stream.missing == 1
    assert not (tmp_path / "result.bin").exists()
    assert stream.left_out == {"result.bin": "a part of it was lost on the way"}


class _ListingOnly:
    """A cluster without pods, whose lists fail in the thread of a test."""

    def __init__(self) -> None:
        self.is_away = self.is_watched = False

    def twin(self) -> _ListingOnly:
        return self

    def pods(self, labels: object) -> tuple[list[object], str]:
        if self.is_away and threading.current_thread() is threading.main_thread():
            raise Unreachable("no answer")
        return [], "1"

    def watch(self, labels: object, version: str, *, seconds: int) -> Iterator[object]:
        self.is_watched = True
        time.sleep(0.05)
        return iter(())

    def forget(self) -> None:
        """Do nothing: it has no connections."""


def test_a_list_of_pods_that_fails_once_is_no_trouble_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "_RELIST_SECONDS", 0.0)
    cluster = _ListingOnly()
    watch = PodWatch(cluster, {}, poke=lambda: None)  # type: ignore[arg-type]  # all that it calls
    try:
        wait_until(lambda: cluster.is_watched)
        watch.apply()
        cluster.is_away = True
        watch.apply()
        assert watch.trouble == "no answer"
        cluster.is_away = False
        watch.apply()
        assert watch.trouble == ""
    finally:
        watch.close()
