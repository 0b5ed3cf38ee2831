"""Processes are held to the limits of an order, and what exceeds one is named."""

from __future__ import annotations

import json
import os
import pwd
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from machines import LINUX, obstacle

from tests.backends.places import need
from tests.node.test_runner import RUNNER, Attempt, process, python

# Touched, so that it counts wherever memory is counted.
HOG = "data = b'x' * (300 << 20); print('fine')"
FACTS = """\
import json, os, resource
print(json.dumps([resource.getrlimit(resource.RLIMIT_DATA)[0], sorted(os.sched_getaffinity(0))]))
"""
MEMORY = {"memory": 200 << 20}
SMALL, LESS = HOG.replace("300", "60"), {"memory": 40 << 20}
EXCEEDED = "exceeded its memory limit of 200Mi"


def on_a_batch_system(folder: Path, *processes: Mapping[str, Any], **node: Any) -> Attempt:
    """Return an attempt for which the runner may make no cgroups, whoever runs this."""
    attempt = Attempt(folder, *processes)
    attempt.order["nodes"][0] |= {"reach": [], **node}
    attempt.write()
    return attempt


def facts(attempt: Attempt, name: str) -> tuple[int, list[int]]:
    """Return the limit of memory and the cores that a process has said."""
    memory, cores = json.loads(attempt.log(name))
    return memory, cores


def test_a_process_that_exceeds_its_memory_is_named(tmp_path: Path) -> None:
    small = process("worker-0", python("print('fine')"), limits=MEMORY)
    attempt = Attempt(tmp_path, small, process("worker-1", python(HOG), limits=MEMORY))
    end = attempt.run()
    assert (end["outcome"] != "passed", end["culprit"]) == (True, "worker-1")
    assert end["reason"].startswith(f"worker-1 {EXCEEDED}")


def test_without_cgroups_each_process_has_an_rlimit(tmp_path: Path) -> None:
    attempt = on_a_batch_system(
        tmp_path,
        process("worker-0", python(FACTS), limits=MEMORY),
        process("worker-1", python(HOG), limits=MEMORY),
        process("worker-2", python(FACTS), limits={}),
    )
    end = attempt.run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 1, "worker-1")
    assert end["reason"] == f"worker-1 {EXCEEDED} (MemoryError): worker-1 exited with code 1"
    assert facts(attempt, "worker-0")[0] == MEMORY["memory"]
    assert facts(attempt, "worker-2")[0] == resource.getrlimit(resource.RLIMIT_DATA)[0]


def test_processes_without_limits_of_their_own_have_those_of_their_node(tmp_path: Path) -> None:
    attempt = on_a_batch_system(tmp_path, process("worker-0", python(HOG)), limits=MEMORY)
    assert attempt.run()["reason"].startswith(f"worker-0 {EXCEEDED} (MemoryError)")


@pytest.mark.parametrize("command", ["kill -SEGV $$", "sh -c 'kill -SEGV $$'; exit $?"])
def test_a_crash_below_a_limit_names_the_limit(tmp_path: Path, command: str) -> None:
    attempt = on_a_batch_system(tmp_path, process("worker-0", command, limits=MEMORY))
    assert attempt.run()["reason"].endswith("; its memory limit of 200Mi may be why")


def test_a_failure_that_says_nothing_of_memory_has_its_own_reason(tmp_path: Path) -> None:
    attempt = on_a_batch_system(tmp_path, process("worker-0", "exit 7", limits=MEMORY))
    assert attempt.run()["reason"] == "worker-0 exited with code 7"


def test_a_process_that_does_with_less_memory_passes(tmp_path: Path) -> None:
    code = f"try:\n {HOG}\nexcept MemoryError: print('less')"
    attempt = on_a_batch_system(tmp_path, process("worker-0", python(code), limits=MEMORY))
    assert attempt.run()["outcome"] == "passed"
    assert attempt.log("worker-0") == "less\n"


def test_without_cgroups_processes_are_bound_to_as_many_cores_as_they_may_use(
    tmp_path: Path,
) -> None:
    one = {"cores": 0.5}
    attempt = on_a_batch_system(
        tmp_path,
        process("worker-0", python(FACTS), limits=one),
        process("worker-1", python(FACTS), limits=one),
        process("worker-2", python(FACTS), limits={"cores": 500}),
        process("launcher-0", python(FACTS), limits=one, role="launcher"),
    )
    assert attempt.run()["outcome"] == "passed"
    known = sorted(os.sched_getaffinity(0))
    own = [facts(attempt, f"worker-{number}")[1] for number in range(3)]
    assert (len(own[0]), len(own[1])) == (1, 1)
    assert own[0] != own[1] or len(known) == 1
    assert own[2] == known
    # What a launcher starts would be bound as it is.
    assert facts(attempt, "launcher-0")[1] == known


def test_processes_keep_to_the_cores_of_their_node(tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    attempt = on_a_batch_system(
        tmp_path, process("worker-0", python(FACTS), limits={"cores": 1}), cores=[last]
    )
    assert attempt.run()["outcome"] == "passed"
    assert facts(attempt, "worker-0")[1] == [last]


def test_orders_without_limits_change_none(tmp_path: Path) -> None:
    attempt = on_a_batch_system(tmp_path, process("worker-0", python(FACTS)))
    assert attempt.run()["outcome"] == "passed"
    known = resource.getrlimit(resource.RLIMIT_DATA)[0], sorted(os.sched_getaffinity(0))
    assert facts(attempt, "worker-0") == known


# In a machine of its own

_KERNEL = ("mem=700M", "rootfstype=hostfs", "rootflags=/", "quiet", "con=null", "con0=null,fd:1")
BOOT = """\
#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t devtmpfs dev /dev
for folder in {folders}; do
    HOME=/ PATH={path} {runner} run "$folder" > "$folder/runner.log" 2>&1
    ls -d /sys/fs/cgroup/rankwise-* > "$folder/left" 2> /dev/null
done
sync
echo o > /proc/sysrq-trigger
sleep 60
"""


def in_a_machine(folder: Path, attempts: Mapping[str, Attempt]) -> None:
    """Run attempts in a machine whose kernel has the cgroups of today, and nothing else."""
    words = " ".join(quote(str(word)) for word in (sys.executable, "-I", "-S", RUNNER))
    folders = " ".join(quote(str(one.folder)) for one in attempts.values())
    script = folder / "boot.sh"
    path = quote(os.environ["PATH"])
    script.write_text(BOOT.format(folders=folders, runner=words, path=path))
    script.chmod(0o755)
    # The kernel's command line has no quotes. Not in /tmp itself: there, it follows no link of
    # another user, and we are root in the machine.
    with tempfile.TemporaryDirectory(prefix="rankwise-boot-", dir="/tmp") as place:
        link = Path(place) / "boot.sh"
        link.symlink_to(script)
        boot(f"init={link}", "rw")


def boot(*words: str) -> None:
    """Start a machine, and wait until it is off."""
    command = [LINUX, *_KERNEL, *words]
    null = subprocess.DEVNULL
    subprocess.run(command, stdin=null, stdout=null, stderr=null, timeout=120, check=False)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Attempt]:
    need(obstacle())
    folder = tmp_path_factory.mktemp("machine")

    def attempt(name: str, *processes: Mapping[str, Any], **node: Any) -> Attempt:
        (folder / name).mkdir()
        made = Attempt(folder / name, *processes)
        made.order["nodes"][0] |= node
        made.write()
        return made

    half = python(f"{HOG.replace('300', '25')}; import time; time.sleep(60)")
    cgroup = "cat /proc/self/cgroup /sys/fs/cgroup/rankwise-*/worker-0/cpu.max"
    rank = 'OMPI_COMM_WORLD_RANK=0 "$RANKWISE_FOLDER/bin/rankwise-rank" cat /proc/self/cgroup'
    attempts = {
        "one": attempt("one", process("worker-0", python(SMALL), limits=LESS)),
        "child": attempt(
            "child",
            process("worker-0", f"{quote(sys.executable)} -c {quote(SMALL)}; true", limits=LESS),
        ),
        "sum": attempt("sum", *(process(f"worker-{n}", half) for n in range(2)), limits=LESS),
        "cores": attempt("cores", process("worker-0", cgroup, limits={"cores": 0.5})),
        "rank": attempt("rank", process("launcher-0", rank, limits=LESS), limits={"cores": 1}),
    }
    in_a_machine(folder, attempts)
    return attempts


def test_a_cgroup_ends_what_exceeds_its_memory(machine: Mapping[str, Attempt]) -> None:
    end = machine["one"].end()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("crashed", 137, "worker-0")
    assert end["reason"].startswith("worker-0 exceeded its memory limit of 40Mi: ")


def test_a_program_that_goes_on_without_what_was_killed_has_failed(
    machine: Mapping[str, Attempt],
) -> None:
    assert machine["child"].end("worker-0")["exit_code"] == 0
    end = machine["child"].end()
    assert (end["outcome"], end["exit_code"]) == ("failed", 137)
    assert end["reason"] == "worker-0 exceeded its memory limit of 40Mi"


def test_the_processes_of_a_node_share_its_cgroup(machine: Mapping[str, Attempt]) -> None:
    end = machine["sum"].end()
    assert end["outcome"] == "crashed"
    assert end["reason"].startswith("node0 exceeded its memory limit of 40Mi: worker-")


def test_a_cgroup_has_its_share_of_the_cores(machine: Mapping[str, Attempt]) -> None:
    marker = machine["cores"].marker
    assert machine["cores"].end()["outcome"] == "passed"
    path, share = machine["cores"].log("worker-0").splitlines()[-2:]
    assert (path, share) == (f"0::/rankwise-{marker}/worker-0", "50000 100000")


def test_a_rank_has_the_cgroup_of_its_node_and_not_that_of_its_launcher(
    machine: Mapping[str, Attempt],
) -> None:
    assert machine["rank"].end()["outcome"] == "passed"
    cgroup = machine["rank"].log("launcher-0").splitlines()[-1]
    assert cgroup == f"0::/rankwise-{machine['rank'].marker}/node.0"


def test_no_cgroup_is_left(machine: Mapping[str, Attempt]) -> None:
    assert {
        name: (one.folder / "left").read_text() for name, one in machine.items()
    } == dict.fromkeys(machine, "")


# In a machine with systemd, on which all files are for reading only

USER = pwd.getpwnam("nobody").pw_uid
SERVICE = f"""\
[Unit]
DefaultDependencies=no
Requires=dbus.socket user@{USER}.service
After=dbus.socket user@{USER}.service
[Service]
Type=oneshot
ExecStartPre=/bin/sh -c 'mkdir -p /run/work /run/out && mount -t hostfs -o FOLDER none /run/out'
ExecStartPre=/bin/sh -c 'cp -r /run/out/attempts /run/out/node /run/work && chmod -R a+rwX /run/work'
ExecStart=-/sbin/runuser -u nobody -- PYTHON -I -S /run/work/node/__main__.py run /run/work/attempts/user
ExecStart=-PYTHON -I -S /run/work/node/__main__.py run /run/work/attempts/root
ExecStart=/bin/sh -c 'cp -r /run/work/attempts /run/out/done; sleep 1; find /sys/fs/cgroup -name "rankwise-*" > /run/out/left'
ExecStart=/bin/sh -c 'sync; echo o > /proc/sysrq-trigger; sleep 20'
"""
TARGET = "[Unit]\nDefaultDependencies=no\nRequires=limits.service\n"
SYSTEMD = Path("/lib/systemd")
# Units of Debian that need no other ones then.
COPIED = ("dbus.socket", "dbus.service", "user@.service", "user-runtime-dir@.service")


def units(folder: Path) -> None:
    """Write all units that the machine has."""
    folder.mkdir()
    for name in COPIED:
        text = (SYSTEMD / "system" / name).read_text()
        text = text.replace("[Unit]", "[Unit]\nDefaultDependencies=no").replace("PAMName", "#")
        here = "/run/user/%i"
        variables = f"[Service]\nEnvironment=XDG_RUNTIME_DIR={here} HOME={here}"
        text = text.replace("[Service]", variables) if name == "user@.service" else text
        (folder / name).write_text(text.replace("systemd-user-sessions.service", ""))
    service = SERVICE.replace("FOLDER", str(folder.parent)).replace("PYTHON", "/usr/bin/python3")
    (folder / "limits.service").write_text(service)
    (folder / "default.target").write_text(TARGET)


@pytest.mark.full_length
def test_systemd_gives_a_user_and_root_cgroups_for_their_replicas() -> None:
    needed = (SYSTEMD / "systemd", *(SYSTEMD / "system" / name for name in COPIED))
    missing = [str(path) for path in (*needed, Path("/usr/bin/python3")) if not path.exists()]
    need(obstacle() or (f"{missing[0]} is missing" if missing else None))
    # Paths in units and on the kernel's command line have no blanks.
    with tempfile.TemporaryDirectory(prefix="rankwise-systemd-", dir="/tmp") as name:
        folder = Path(name)
        shutil.copytree(RUNNER.parent, folder / "node", ignore=shutil.ignore_patterns("__py*"))
        hog = ["/usr/bin/python3", "-c", SMALL]
        for who in ("user", "root"):
            (folder / "attempts" / who).mkdir(parents=True)
            attempt = Attempt(folder / "attempts" / who, process("worker-0", hog, limits=LESS))
            place = f"/run/work/attempts/{who}"
            attempt.order |= {"folder": place}
            attempt.order["nodes"][0]["folder"] = f"{place}/nodes/node0"
            attempt.write()
            for path in attempt.folder.iterdir():
                path.rename(path.parent.parent / path.name)
        units(folder / "units")
        boot(f"init={SYSTEMD}/systemd", f"SYSTEMD_UNIT_PATH={folder}/units", "ro")
        ends = [
            json.loads((folder / f"done/{who}/end.json").read_text()) for who in ("user", "root")
        ]
        homes = [(folder / f"done/{who}/cgroup").read_text() for who in ("user", "root")]
        assert f"/user@{USER}.service/app.slice/rankwise-rw-" in homes[0]
        assert "/system.slice/rankwise-rw-" in homes[1]
        for end in ends:
            assert end["reason"].startswith("worker-0 exceeded its memory limit of 40Mi: "), end
        assert (folder / "left").read_text() == ""
