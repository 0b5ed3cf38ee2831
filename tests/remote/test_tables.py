"""The tables of hosts and of providers in a site file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.documents.site import find_site
from rankwise.errors import InputError

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
