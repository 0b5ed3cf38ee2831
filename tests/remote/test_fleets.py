"""Which machine a task gets, and how files get there, by the computes themselves."""

from __future__ import annotations

import os
import py_compile
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sshd import Sshd

from rankwise.backends.base import Attempt
from rankwise.backends.cloud import ProviderConnection
from rankwise.backends.doctor import check_compute
from rankwise.backends.remote.connection import Machine
from rankwise.backends.remote.tracked import Tracked
from rankwise.backends.ssh import SshConnection
from rankwise.documents.site import find_site
from rankwise.documents.site_models import CommandConfig
from rankwise.errors import ComputeFailure, InputError
from rankwise.plan import Resources
from rankwise.records import AttemptEnd
from tests.backends.places import NAME, Place, Watching, output_of, provider_table


def _place(folder: Path, table: str) -> Place:
    made = Place(folder=folder, table=table)
    made.prepare()
    return made


def _cloud(folder: Path, more: str) -> Place:
    (folder / "cloud").mkdir()
    return _place(folder, provider_table(folder / "cloud", more))


def _run(place: Place, *lines: str, **more: object) -> list[tuple[Attempt, AttemptEnd]]:
    """Run lines at once, and give everything back."""
    compute = place.open()
    attempts = [place.attempt(compute) for _ in lines]
    for attempt, line in zip(attempts, lines, strict=True):
        compute.submit(place.job(attempt, line, **more))
    ends = Watching(compute, place.updates).until_over(*attempts)
    compute.close()
    return list(zip(attempts, ends, strict=True))


def _calls(folder: Path) -> list[str]:
    lines = (folder / "cloud" / "calls.log").read_text().splitlines()
    return [line.split()[0] for line in lines]


def test_without_reuse_each_task_has_an_instance_of_its_own(tmp_path: Path) -> None:
    place = _cloud(tmp_path, "reuse = false\ninstances = 2")
    found = _run(place, "echo $INSTANCE", "echo $INSTANCE")
    assert [end.outcome for _, end in found] == ["passed", "passed"]
    assert len({output_of(attempt) for attempt, _ in found}) == 2
    calls = _calls(tmp_path)
    assert calls.count("create") == calls.count("delete") == 2
    assert list((tmp_path / "cloud").glob("i-*")) == []


def test_tasks_share_an_instance_that_is_said_to_have_room(tmp_path: Path) -> None:
    """Each waits for the other: they must run at once."""
    place = _cloud(tmp_path, "cores = 2\ninstances = 2")
    lines = [
        f"touch {tmp_path}/{own}; while ! test -e {tmp_path}/{other}; do sleep 0.05; done"
        for own, other in (("a", "b"), ("b", "a"))
    ]
    found = _run(place, *lines, timeout=60.0)
    assert [end.outcome for _, end in found] == ["passed", "passed"]
    assert _calls(tmp_path).count("create") == 1


def test_files_go_by_send_and_fetch_where_run_cannot_pass_them(tmp_path: Path) -> None:
    """The instance's `run` has no input, and wraps what is written into something else."""
    copy = '["cp", "${{source}}", "${{target}}"]'
    place = _cloud(tmp_path, f"send = {copy}\nfetch = {copy}")
    wrapped = 'run = ["sh", "-c", "\\"$@\\" < /dev/null | sed s/^/said:/", "sh", '
    text = place.table.replace("run = [", wrapped)
    text = text.replace('folder = "~/rankwise"', f'folder = "{tmp_path}/far"')
    (tmp_path / "rankwise.toml").write_text(f"[compute.{NAME}]\n{text}")
    [(attempt, end)] = _run(place, "cat greeting.txt; echo 42 > made.txt")
    assert end.outcome == "passed", end
    assert output_of(attempt) == "good morning\n"
    assert (attempt.folder / "nodes/node0/made.txt").read_text() == "42\n"
    assert [one for one in (tmp_path / "far").iterdir() if one.is_file()] == [], "it was copied"


def test_a_task_whose_instance_cannot_be_made_is_not_run_with_the_reason(tmp_path: Path) -> None:
    place = _cloud(tmp_path, "")
    (tmp_path / "cloud" / "fail-create").write_text("")
    [(_, end)] = _run(place, "true")
    assert end.outcome == "not run"
    assert "`create` failed: the provider is out of order: create" in end.reason
    assert _calls(tmp_path).count("create") == 1
    assert list((tmp_path / "store" / "elsewhere").iterdir()) == [], "`list` says it is not there"


def test_a_host_that_is_down_does_not_delay_tasks_on_other_hosts(
    tmp_path: Path, server: Sshd
) -> None:
    settings = server.config.read_text()
    config = tmp_path / "config"
    config.write_text(f"Host down\n  HostName 127.0.0.1\n  Port 9\n{settings}")
    table = f'backend = "ssh"\nhosts = ["down", "here"]\nconfig = "{config}"\n'
    place = _place(tmp_path, f'{table}folder = "{tmp_path}/there"\ncores = 3\ngpus = 1')
    [(attempt, end)] = _run(place, "cat greeting.txt")
    assert end.outcome == "passed", end
    assert output_of(attempt) == "good morning\n"

    found = check_compute(NAME, find_site(tmp_path), tmp_path)
    assert [one.is_well for one in found] == [False, True, True, True]

    compute = place.open()
    facts = compute.facts()
    assert facts.capacity.cores == facts.room.cores == 3
    assert _refusal(place, resources=Resources(gpus=2)) == "needs 2 GPUs, found 1"
    with pytest.raises(ComputeFailure, match="needs 2 nodes, and a task runs on one machine"):
        compute.submit(place.job(place.attempt(compute), "true", nodes=2))


def _refusal(place: Place, **more: object) -> str:
    """Say why a task is not taken."""
    [(_, end)] = _run(place, "true", **more)
    assert end.outcome == "not run"
    return end.reason


# The tables of hosts and of providers in a site file

_CLOUD = """\
[compute.it]
backend = "command"
create = "cloud create --name ${{name}}"
run = ["cloud", "run", "${{id}}", "${{command}}"]
delete = "cloud delete ${{id}}"
capture = { id = "$.id" }
"""


def test_hosts_are_read(tmp_path: Path) -> None:
    (tmp_path / "rankwise.toml").write_text(
        '[compute.it]\nbackend = "ssh"\nhosts = ["a", "me@b"]\noptions = ["-J", "gate"]\n'
        'config = "ssh/config"\nshared = true\npatience = 60\ncores = 4\n'
    )
    choice = find_site(tmp_path, {}).compute("it")
    assert choice.ssh.hosts == ("a", "me@b")
    assert choice.ssh.options == ("-J", "gate")
    assert choice.ssh.config == str(tmp_path / "ssh" / "config")
    assert (choice.ssh.shared, choice.ssh.patience, choice.cores) == (True, 60.0, 4)


def test_a_provider_is_read(tmp_path: Path) -> None:
    (tmp_path / "rankwise.toml").write_text(f"{_CLOUD}reuse = false\ninstances = 3\n")
    command = find_site(tmp_path, {}).compute("it").command
    assert command.create == ("cloud", "create", "--name", "${{name}}")
    assert dict(command.capture) == {"id": "$.id"}
    assert (command.reuse, command.instances, command.list) == (False, 3, ())


def test_a_name_in_a_command_line_is_one_word_with_blanks_or_without(tmp_path: Path) -> None:
    (tmp_path / "rankwise.toml").write_text(
        _CLOUD.replace("${{name}}", "'a ${{ name }}' ${{ name }}")
    )
    command = find_site(tmp_path, {}).compute("it").command
    assert command.create == ("cloud", "create", "--name", "a ${{name}}", "${{name}}")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[compute.it]\nbackend = "ssh"\n', ':1: `hosts` is missing in `compute.it`'),
        ('[compute.it]\nbackend = "ssh"\nhosts = ["-oX"]\n', ":3: `compute.it.hosts[1]` must be a host, not '-oX'"),
        (
            '[compute.it]\nbackend = "ssh"\nhosts = ["a"]\noptions = ["-o", "controlpath=x"]\n',
            ':4: `compute.it.options[2]` cannot be `controlpath=x`, which rankwise sets itself',
        ),
        (_CLOUD.replace("${{command}}", "x"), ':4: `run` must have ${{command}} in it'),
        (_CLOUD.replace("delete ${{id}}", "delete ${{ids}}"), ':5: `delete` has ${{ids}}, which is unknown; did you mean `id`?'),
        (_CLOUD.replace("--name ${{name}}", "${{id}}"), ':3: `create` has ${{id}}, which is unknown; there are name'),
        (_CLOUD.replace('"$.id"', '"$id"'), ':6: `compute.it.capture` has id = \'$id\': must go on with `.name`, `[0]`, `["name"]` or `[*]`, not \'id\''),
        (_CLOUD.replace('"$.id"', "'id (.) (.)'"), "must have one group"),
        (_CLOUD.replace("create =", "creat ="), 'unknown field `creat`: did you mean `create`?'),
        (_CLOUD.replace('"cloud delete', '"cloud \\"delete'), '`compute.it.delete` is no command line: No closing quotation'),
    ],
)  # fmt: skip
def test_mistakes_have_a_line_and_a_remedy(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "rankwise.toml").write_text(text)
    with pytest.raises(InputError) as error:
        find_site(tmp_path, {})
    assert complaint in str(error.value)


# Folders from which programs are run, here and on other machines: they must be ours alone


def _foreign(folder: Path, kind: str) -> Path:
    """Return a folder into which others can write, or which belongs to another user."""
    place = folder / "foreign"
    if kind == "writable":
        place.mkdir()
        place.chmod(0o777)
    elif os.getuid() == 0:
        place.mkdir(mode=0o700)
        os.chown(place, 12345, 12345)
    else:
        place = Path("/usr")
    return place


def _instance(folder: Path, place: str, **more: tuple[str, ...]) -> Machine:
    """Return a machine that is this one, by a provider's command line."""
    command = CommandConfig(run=("sh", "-c", "${{command}}"), folder=place, **more)  # type: ignore[arg-type]  # command lines
    line = ProviderConnection("it", {}, command, Tracked(folder / "elsewhere"))
    return Machine(line, folder=place)


@pytest.mark.parametrize("kind", ["writable", "of another user"])
def test_a_folder_of_an_instance_that_is_not_ours_alone_is_refused(
    tmp_path: Path, kind: str
) -> None:
    place = _foreign(tmp_path, kind)
    before = sorted(place.iterdir())
    with pytest.raises(ComputeFailure, match="is not yours alone there") as refused:
        _instance(tmp_path, str(place)).reach()
    assert str(place) in str(refused.value)
    assert sorted(place.iterdir()) == before, "nothing is put there"


@pytest.mark.parametrize("kind", ["writable", "of another user"])
def test_a_folder_of_a_host_that_is_not_ours_alone_is_refused(
    tmp_path: Path, server: Sshd, kind: str
) -> None:
    place = _foreign(tmp_path, kind)
    line = SshConnection("here", config=str(server.config))
    with pytest.raises(ComputeFailure, match="is not yours alone there"):
        Machine(line, folder=str(place)).reach()


@pytest.mark.parametrize("kind", ["writable", "of another user"])
def test_files_are_copied_into_no_folder_that_is_not_ours_alone(tmp_path: Path, kind: str) -> None:
    """They may have the values of secrets in them."""
    place = _foreign(tmp_path, kind)
    copy = ("cp", "${{source}}", "${{target}}")
    with pytest.raises(ComputeFailure, match="not yours alone"):
        _instance(tmp_path, str(place), send=copy).reach()


def test_a_link_of_another_is_followed_once_and_never_again(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    assert _instance(tmp_path, str(tmp_path / "link")).reach().root == str(tmp_path / "real")


def test_our_folder_is_in_the_home_and_for_no_other_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rankwise.toml").write_text(
        '[compute.it]\nbackend = "command"\ncreate = "c"\ndelete = "d"\nrun = "r ${{command}}"\n'
    )
    place = find_site(tmp_path, {}).compute("it").command.folder
    monkeypatch.setenv("HOME", str(tmp_path))
    copy = ("cp", "${{source}}", "${{target}}")
    for machine in (_instance(tmp_path, place), _instance(tmp_path, place, send=copy)):
        root = Path(machine.reach().root)
        assert root.is_relative_to(tmp_path)
        assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["changed", "added", "link", "compiled"])
def test_what_a_stranger_has_put_in_the_place_of_our_files_is_not_run(
    tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "root"
    _instance(tmp_path, str(root)).reach()
    [parts] = root.glob("parts-*")
    stranger = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    if kind == "changed":
        (parts / "agent.py").write_text(stranger)
        (parts / "start.py").write_text(stranger)
    elif kind == "added":
        (parts / "json.py").write_text(stranger)
    elif kind == "compiled":
        (tmp_path / "start.py").write_text(stranger)
        py_compile.compile(
            str(tmp_path / "start.py"),
            cfile=str(parts / "__pycache__" / f"start.{sys.implementation.cache_tag}.pyc"),
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    else:
        (tmp_path / "theirs").mkdir()
        (tmp_path / "theirs" / "agent.py").write_text(stranger)
        (parts / "agent.py").unlink()
        (parts / "agent.py").symlink_to(tmp_path / "theirs" / "agent.py")
    machine = _instance(tmp_path, str(root))
    machine.reach()
    assert machine.ask("look", {"attempts": {}}) == {"attempts": {}}
    assert not (tmp_path / "ran").exists()
    assert [one.name for one in root.glob("parts-*")] == [parts.name]
    assert not (parts / "json.py").exists()


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="rw-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("kind", ["writable", "of another user", "link"])
def test_a_connection_is_kept_in_no_folder_that_is_not_ours_alone(
    short: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Who can write there could answer in the place of a host."""
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    place = short / f"rankwise-ssh-{os.getuid()}"
    if kind == "link":
        (short / "real").mkdir(mode=0o700)
        place.symlink_to("real")
    elif kind == "of another user" and os.getuid() != 0:
        place.symlink_to("/usr")
    else:
        _foreign(short, kind).rename(place)
    with pytest.raises(ComputeFailure, match="is not yours alone"):
        SshConnection("here")
