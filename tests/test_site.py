"""Site files: what names mean, and what is said of files that are wrong."""

from __future__ import annotations

import grp
import itertools
import os
import pwd
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.documents.site import Site, find_site
from rankwise.documents.site_models import ComputeConfig, KubernetesConfig, SlurmConfig
from rankwise.errors import InputError
from rankwise.plan import Resources, RuntimeChoice

PYTORCH = "azureml:pytorch-1.7:1"


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a project of one's own, and let no settings of the real user count."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def site_of(text: str) -> Site:
    Path("rankwise.toml").write_text(text)
    return find_site(Path())


def write_users_own(text: str, *, place: str = "home/.config") -> None:
    file = Path("..", place, "rankwise", "rankwise.toml")
    file.parent.mkdir(parents=True)
    file.write_text(text)


def complaints_about(text: str | bytes) -> list[str]:
    Path("rankwise.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as raised:
        find_site(Path())
    return str(raised.value).splitlines()


# Whose it is.


def open_to_a_group(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a group write that has more people in it than us."""
    path.chmod(path.stat().st_mode | 0o020)
    if os.geteuid() == 0:
        os.chown(path, -1, 54321)
    else:
        group = grp.struct_group(("team", "x", path.stat().st_gid, ["somebody", "else"]))
        monkeypatch.setattr(grp, "getgrgid", lambda number: group)


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a file or a folder be another user's."""
    if os.geteuid() == 0:
        os.chown(path, 54321, 54321)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)


def refusal(place: Path | None = None) -> str:
    with pytest.raises(InputError) as raised:
        find_site(place or Path())
    return str(raised.value)


@pytest.mark.parametrize("where", [".", "..", "../.."])
def test_a_site_file_of_another_user_is_refused_wherever_it_is(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Path("a/b")
    inner.mkdir(parents=True)
    file = (inner / where / "rankwise.toml").resolve()
    file.write_text('[defaults]\nruntime = "mine"\n[runtime.mine]\npython = "/evil/python"\n')
    give_away(file, monkeypatch)
    said = refusal(inner)
    assert str(file) in said
    assert "belongs to" in said
    assert f"chown {pwd.getpwuid(0).pw_name if os.geteuid() == 0 else ''}" in said


@pytest.mark.parametrize("mode", [0o666, 0o646])
def test_a_site_file_that_others_can_write_is_refused(mode: int) -> None:
    Path("rankwise.toml").write_text("")
    Path("rankwise.toml").chmod(mode)
    assert f"other users can write the site file {Path.cwd()}/rankwise.toml: chmod " in refusal()


def test_a_site_file_that_a_group_can_write_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("rankwise.toml").write_text("")
    open_to_a_group(Path("rankwise.toml"), monkeypatch)
    assert f"{Path.cwd()}/rankwise.toml: chmod g-w {Path.cwd()}/rankwise.toml" in refusal()


def test_a_site_file_in_a_folder_that_others_can_write_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("rankwise.toml").write_text("")
    Path.cwd().chmod(0o777)
    assert f"chmod o-w {Path.cwd()}" in refusal().replace("go-w", "o-w")
    Path.cwd().chmod(0o755)
    find_site(Path())
    open_to_a_group(Path.cwd(), monkeypatch)
    assert f"chmod g-w {Path.cwd()}" in refusal()


def test_a_site_file_in_the_folder_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if os.geteuid() == 0:
        Path("rankwise.toml").write_text("")
        give_away(Path.cwd(), monkeypatch)
        assert "rankwise.toml belongs to 54321" in refusal()
    else:
        # All that is ours is another's then, and the file comes first.
        Path("rankwise.toml").write_text("")
        give_away(Path.cwd(), monkeypatch)
        assert "belongs to" in refusal()


def test_in_a_sticky_folder_only_a_site_file_of_ones_own_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path.cwd().chmod(0o1777)
    assert site_of("[compute.local]\ncores = 1\n").compute().cores == 1
    give_away(Path("rankwise.toml"), monkeypatch)
    assert "belongs to" in refusal()


def test_who_owns_a_private_group_may_let_it_write(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("rankwise.toml").write_text("")
    name = pwd.getpwuid(os.geteuid()).pw_name
    own = grp.struct_group((name, "x", os.getegid(), [name]))
    monkeypatch.setattr(grp, "getgrgid", lambda number: own)
    for path in (Path("rankwise.toml"), Path.cwd()):
        path.chmod(0o775)
    find_site(Path())


def test_a_plan_says_which_site_file_counts_if_it_is_not_in_this_folder() -> None:
    site_of("")
    assert find_site(Path()).notice == ""
    Path("a").mkdir()
    os.chdir("a")
    assert find_site(Path()).notice == f"the site file is {Path.cwd().parent}/rankwise.toml"


# What names mean.


def test_without_a_site_file_there_are_local_and_current() -> None:
    site = find_site(Path())
    assert site.compute() == ComputeConfig()
    assert site.compute("local") == ComputeConfig(is_mapped=True)
    assert site.runtime() == site.runtime("current") == RuntimeChoice()


def test_an_unknown_name_falls_back_to_this_machine_and_interpreter() -> None:
    site = site_of("")
    assert site.compute("gpu-cluster") == ComputeConfig(name="gpu-cluster", is_mapped=False)
    assert site.runtime(PYTORCH) == RuntimeChoice(name=PYTORCH, kind="current")
    assert not site.has("compute", "gpu-cluster")
    assert not site.has("runtime", PYTORCH)


def test_a_compute_may_be_told_to_have_what_it_has_not() -> None:
    site = site_of(
        '[compute.gpu-cluster]\nbackend = "local"\ncores = 64\ngpus = 8\nmemory = "2TiB"\n'
        "oversubscribe = true\n"
    )
    choice = site.compute("gpu-cluster")
    assert choice == ComputeConfig(
        name="gpu-cluster",
        cores=64,
        gpus=8,
        memory=2 << 40,
        oversubscribe=True,
        place="rankwise.toml:1",
    )
    found = Resources(cores=2, memory=1 << 30)
    assert choice.capacity(found) == Resources(cores=64, memory=2 << 40, gpus=8)


def test_what_is_not_told_of_a_compute_is_what_is_found() -> None:
    choice = site_of('[compute.laptop]\nbackend = "local"\ngpus = 0\n').compute("laptop")
    found = Resources(cores=2, memory=1 << 30, gpus=1)
    assert choice.capacity(found) == Resources(cores=2, memory=1 << 30, gpus=0)


def test_local_may_be_told_things_too_and_they_count_where_it_stands_in() -> None:
    site = site_of("[compute.local]\ncores = 1.5\n")
    assert site.compute().cores == 1.5
    assert site.compute("gpu-cluster").cores == 1.5
    assert not site.compute("gpu-cluster").is_mapped


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("1024", 1024),
        ('"1024"', 1024),
        ('"2Gi"', 2 << 30),
        ('"2GiB"', 2 << 30),
        ('"1.5 GiB"', 3 << 29),
        ('"500M"', 500_000_000),
        ('"500MB"', 500_000_000),
        ('"7k"', 7000),
        ('"64B"', 64),
    ],
)
def test_memory_is_read_as_people_write_it(written: str, size: int) -> None:
    assert site_of(f"[compute.local]\nmemory = {written}\n").compute().memory == size


def test_a_kubernetes_cluster_has_keys_of_its_own() -> None:
    site = site_of(
        """
[compute.big]
backend = "kubernetes"
namespace = "gpu"
image = "python:3.12"
user = "image"
gpus = 8
tolerations = [{ key = "gpu", operator = "Exists", effect = "NoSchedule" }]
pull_secrets = "registry"
[compute.big.node_selector]
zone = "a"
"""
    )
    found = site.compute("big")
    assert (found.backend, found.gpus) == ("kubernetes", 8)
    assert found.kubernetes == KubernetesConfig(
        namespace="gpu",
        image="python:3.12",
        user=None,
        tolerations=({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},),
        pull_secrets=("registry",),
        node_selector={"zone": "a"},
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('partition = "a"', "unknown field `partition`: did you mean `annotations`?"),
        (
            'pull_policy = "always"',
            "`compute.big.pull_policy` must be `IfNotPresent`, `Always` or `Never`, not 'always'; did you mean `Always`?",
        ),
        ('code = "git"', "`compute.big.code` must be `configmap`, `image` or `claim`, not 'git'"),
        ('code = "image"', 'code = "image" needs code_path: the folder in pods'),
        ('namespace = "A_b"', "`compute.big.namespace` must be the name of a namespace, not 'A_b'"),
        ("user = -1", '`compute.big.user` must be the number of a user, or "image", not -1'),
        (
            'mount = "rankwise"',
            "`compute.big.mount` must be a folder such as \"/rankwise\", not 'rankwise'",
        ),
        (
            'tolerations = [{ kay = "a" }]',
            "`compute.big.tolerations[1].kay` must be `key`, `operator`, `value`, `effect` or `tolerationSeconds`, not 'kay'; did you mean `key`?",
        ),
        (
            "node_selector = { gpu = 1 }",
            "`compute.big.node_selector.gpu` must be text in quotes, not 1",
        ),
        (
            'labels = { "rankwise.dev/run" = "x" }',
            "`compute.big.labels` cannot have the label rankwise.dev/run = 'x'",
        ),
    ],
)
def test_what_is_wrong_with_the_table_of_a_kubernetes_cluster(line: str, complaint: str) -> None:
    with pytest.raises(InputError) as raised:
        site_of(f'[compute.big]\nbackend = "kubernetes"\n{line}\n')
    assert str(raised.value).startswith("rankwise.toml:3: ")
    assert complaint in str(raised.value)


def test_a_cluster_is_read_with_all_that_it_has() -> None:
    site = site_of(
        '[compute.big]\nbackend = "slurm"\npartition = "gpu"\naccount = "me"\ntime = 90\n'
        'options = ["--exclusive"]\nmodules = "mpi/4"\ninit = ["ulimit -s unlimited"]\n'
        'mpi = "srun-pmi2"\nshared = "/scratch/me"\nmode = "pilot"\nmax_queued = 20\ngpus = 4\n'
    )
    big = site.compute("big")
    assert (big.backend, big.gpus) == ("slurm", 4)
    assert isinstance(big.batch, SlurmConfig)
    assert (big.batch.partition, big.batch.account, big.batch.time) == ("gpu", "me", "90")
    assert big.batch.options == ("--exclusive",)
    assert big.batch.modules == ("mpi/4",)
    assert big.batch.init == ("ulimit -s unlimited",)
    assert (big.batch.mpi, big.batch.shared) == ("srun-pmi2", "/scratch/me")
    assert (big.batch.mode, big.batch.max_queued) == ("pilot", 20)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            'time = "soon"',
            '`compute.big.time` must be minutes, or like "1:30:00" or "2-0", not \'soon\'',
        ),
        (
            'mpi = "srum"',
            "`compute.big.mpi` must be `mpirun`, `srun`, `srun-pmi2` or `srun-pmix`, not 'srum'; did you mean `srun`?",
        ),
        (
            'mode = "pilots"',
            "`compute.big.mode` must be `job` or `pilot`, not 'pilots'; did you mean `pilot`?",
        ),
        (
            'options = ["--array=1-4"]',
            "`compute.big.options[1]` cannot be `--array`, which rankwise sets itself",
        ),
        (
            'options = ["exclusive"]',
            "`compute.big.options[1]` must be an option of sbatch, \"--name=value\" as one text, not 'exclusive'",
        ),
        ("max_queued = 0", "`compute.big.max_queued` must be at least 1, not 0"),
        ('partitoin = "x"', "unknown field `partitoin`: did you mean `partition`?"),
        (
            "oversubscribe = true",
            "unknown field `oversubscribe`: there are `backend`, `cores`, `gpus`, `memory`, `features`, `enforce_limits`, `options`, `modules`, `init`, `shared`, `python`, `mode`, `max_queued`, `pilot_nodes`, `pilot_idle`, `partition`, `account`, `qos`, `constraint`, `time` and `mpi`",
        ),
        ("modules = [1]", "`compute.big.modules[1]` must be text in quotes, not 1"),
    ],
)
def test_a_mistake_in_what_is_said_of_a_cluster_is_told(line: str, complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        site_of(f'[compute.big]\nbackend = "slurm"\n{line}\n')


def test_a_runtime_is_an_interpreter_requirements_an_image_or_the_current_one() -> None:
    site = site_of(
        f'[runtime."{PYTORCH}"]\nrequirements = ["torch==2.13.0"]\npython = "3.12"\n'
        '[runtime.made]\npython = "venv"\n'
        '[runtime.other]\npython = "/opt/py/bin/python3"\n'
        '[runtime.image]\nimage = "pytorch/pytorch:2.4"\nengine = "podman"\n'
        "[runtime.mine]\ncurrent = true\n"
        "[runtime.empty]\nrequirements = []\n"
    )
    assert site.runtime(PYTORCH) == RuntimeChoice(
        name=PYTORCH, kind="uv", python="3.12", requirements=("torch==2.13.0",)
    )
    assert site.runtime("made").python == str(Path.cwd() / "venv")
    assert site.runtime("made").kind == "python"
    assert site.runtime("other").python == "/opt/py/bin/python3"
    assert site.runtime("image") == RuntimeChoice(
        name="image", kind="container", image="pytorch/pytorch:2.4", engine="podman"
    )
    assert site.runtime("mine") == RuntimeChoice(name="mine")
    assert site.has("runtime", "mine")
    assert site.runtime("empty").kind == "uv"


def test_paths_are_relative_to_the_file_and_not_to_the_folder_of_the_user() -> None:
    Path("deep").mkdir()
    Path("link").symlink_to("elsewhere")
    Path("rankwise.toml").write_text(
        '[runtime.a]\npython = "../venv/bin/python"\n'
        '[runtime.b]\npython = "link"\n'
        '[runtime.c]\npython = "~/venv"\n'
        '[runtime.d]\nimage = "images/a.sif"\n'
    )
    site = find_site(Path("deep"))
    here = Path.cwd()
    assert site.runtime("a").python == str(here.parent / "venv/bin/python")
    assert site.runtime("b").python == str(here / "link")
    assert site.runtime("c").python == str(here.parent / "home/venv")
    assert site.runtime("d").image == str(here / "images/a.sif")


def test_the_longest_pattern_wins_and_a_whole_name_wins_over_it() -> None:
    site = site_of(
        '[runtime."azureml:*"]\ncurrent = true\n'
        '[runtime."azureml:pytorch-*"]\nimage = "pytorch"\n'
        f'[runtime."{PYTORCH}"]\nimage = "exactly"\n'
        '[compute."*"]\nbackend = "local"\ncores = 3\n'
    )
    assert site.runtime(PYTORCH).image == "exactly"
    assert site.runtime("azureml:pytorch-2:1") == RuntimeChoice(
        name="azureml:pytorch-2:1", kind="container", image="pytorch"
    )
    assert site.runtime("azureml:tensorflow-2.3:1").kind == "current"
    assert site.has("runtime", "azureml:tensorflow-2.3:1")
    assert not site.has("runtime", "AzureML:pytorch")
    assert site.compute("anything").cores == 3
    assert site.compute("anything").is_mapped
    assert site.compute("local").cores is None


def test_the_defaults_are_for_documents_that_name_nothing() -> None:
    site = site_of(
        '[defaults]\ncompute = "small"\nruntime = "venv-1"\n'
        '[compute.small]\nbackend = "local"\ncores = 1\n'
        '[runtime."venv-*"]\nimage = "x"\n'
    )
    assert (site.compute().name, site.compute().cores) == ("small", 1)
    assert (site.runtime().name, site.runtime().image) == ("venv-1", "x")
    assert site.compute("gpu-cluster").cores is None
    assert site.runtime("unknown").kind == "current"


# Which files count.


def test_the_nearest_file_upwards_counts_alone() -> None:
    Path("rankwise.toml").write_text('[compute.far]\nbackend = "local"\n')
    inner = Path("a/b")
    inner.mkdir(parents=True)
    assert find_site(inner).has("compute", "far")
    Path("a/rankwise.toml").write_text('[compute.near]\nbackend = "local"\n')
    site = find_site(inner)
    assert site.has("compute", "near")
    assert not site.has("compute", "far")
    assert site.file == Path.cwd() / "a/rankwise.toml"


def test_the_users_own_file_counts_below_the_projects() -> None:
    write_users_own(
        '[defaults]\ncompute = "mine"\nruntime = "r"\n'
        '[compute.mine]\nbackend = "local"\ncores = 1\n'
        '[compute.both]\nbackend = "local"\ncores = 1\n'
        '[runtime."r"]\nimage = "users"\n'
    )
    site = site_of(
        '[defaults]\nruntime = "r"\n[compute."bo*"]\nbackend = "local"\ncores = 2\n'
        '[runtime.r]\nimage = "projects"\n'
    )
    assert site.compute().name == "mine"
    assert site.compute("mine").cores == 1
    assert site.compute("both").cores == 2
    assert site.runtime().image == "projects"


def test_the_users_own_file_counts_alone_where_there_is_no_other() -> None:
    write_users_own("[compute.local]\ncores = 7\n")
    assert find_site(Path()).compute().cores == 7


def test_the_users_own_file_is_where_xdg_config_home_says(monkeypatch: pytest.MonkeyPatch) -> None:
    write_users_own("[compute.local]\ncores = 7\n", place="settings")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path.cwd().parent / "settings"))
    assert find_site(Path()).compute().cores == 7
    monkeypatch.setenv("XDG_CONFIG_HOME", "../settings")
    assert find_site(Path()).compute().cores is None


def test_the_users_own_file_is_not_read_twice_from_its_own_folder() -> None:
    write_users_own('[compute.a]\nbackend = "nothing"\n')
    with pytest.raises(InputError) as raised:
        find_site(Path("../home/.config/rankwise"))
    assert len(str(raised.value).splitlines()) == 1


def test_without_a_home_there_is_no_users_own_file() -> None:
    assert find_site(Path(), environ={}).layers == ()


def test_without_a_site_file_pydantic_is_not_loaded() -> None:
    program = (
        "import sys, rankwise.engine.runs, rankwise.backends.base\n"
        "from pathlib import Path\n"
        "from rankwise.documents.site import find_site\n"
        "find_site(Path(), environ={})\n"
        "print('pydantic' in sys.modules)\n"
        "Path('rankwise.toml').write_text('')\n"
        "find_site(Path(), environ={})\n"
        "print('pydantic' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout.split(), done.stderr) == (["False", "True"], "")


# Names that no site file has.


def test_each_kind_of_unknown_name_has_one_notice() -> None:
    site = site_of("[runtime.known]\ncurrent = true\n")
    notices = site.check(
        computes={"local": "", "": "", "nc24-cluster": "job.yaml:7:3"},
        runtimes={PYTORCH: "", "azureml:tf:1": "", "c": "", "current": ""},
    )
    assert notices == (
        (
            'compute "nc24-cluster" is not in rankwise.toml: using this machine instead; to change '
            "that, add [compute.nc24-cluster] there"
        ),
        (
            f'runtimes "{PYTORCH}", "azureml:tf:1" and "c" are not in rankwise.toml: using the current '
            f'Python instead; to change that, add [runtime."{PYTORCH}"] there'
        ),
    )


def test_known_names_need_no_notice_and_are_not_refused() -> None:
    site = site_of(f'[runtime."{PYTORCH}"]\ncurrent = true\n')
    assert site.check(computes={"local": ""}, runtimes={PYTORCH: ""}, is_strict=True) == ()


def test_unknown_names_are_refused_all_at_once_if_it_is_strict() -> None:
    site = site_of('[compute.my-aks-cluster]\nbackend = "local"\n')
    with pytest.raises(InputError) as raised:
        site.check(
            computes={"my-aks-clutser": "job.yaml:12:11"}, runtimes={PYTORCH: ""}, is_strict=True
        )
    assert str(raised.value).splitlines() == [
        (
            'job.yaml:12:11: compute "my-aks-clutser" is not in rankwise.toml (there are '
            '"my-aks-cluster" and "local"); did you mean "my-aks-cluster"? If not, write [compute.my-aks-clutser] there with backend = "local"'
        ),
        (
            f'runtime "{PYTORCH}" is not in rankwise.toml; write [runtime."{PYTORCH}"] there with '
            "current = true, python = …, requirements = […] or image = …"
        ),
    ]


def test_what_a_refusal_tells_to_write_is_a_name_in_toml() -> None:
    site = find_site(Path())
    for name in ("plain", PYTORCH, 'with "quotes"', "back\\slash", "ü"):
        with pytest.raises(InputError) as raised:
            site.check(computes={name: ""}, runtimes={}, is_strict=True)
        header = str(raised.value).partition("write ")[2].partition(" there")[0]
        assert tomllib.loads(header) == {"compute": {name: {}}}


# Files that are wrong.


def test_all_mistakes_are_told_at_once_in_the_order_of_the_lines() -> None:
    assert complaints_about(
        """\
[compute.gpu-cluster]
backend = "slrum"

[compute.laptop]
backend = "local"
core = 2
cores = "many"
gpus = 1.5
memory = "lots"
oversubscribe = "yes"

[runtime."azureml:pytorch-1.7:1"]
python = "venv"
image = "pytorch"

[runtime.b]
engine = "dockr"
image = "pytorch"

[runtimes.c]

[defaults]
compute = "laptpo"
runtime = 3
"""
    ) == [
        (
            "rankwise.toml:2: `compute.gpu-cluster.backend` must be `local`, `slurm`, `gridengine`, "
            "`pbs`, `kubernetes`, `ssh` or `command`, not 'slrum'; did you mean `slurm`?"
        ),
        "rankwise.toml:6: unknown field `core`: did you mean `cores`?",
        (
            "rankwise.toml:7: `compute.laptop.cores` must be a number of cores, such as 4, 0.5 or "
            "500m (thousandths), not 'many'"
        ),
        "rankwise.toml:8: `compute.laptop.gpus` must be a whole number, not 1.5",
        (
            "rankwise.toml:9: `compute.laptop.memory` must be a size: a number of bytes, or such as "
            "500M, 2Gi (with a capital letter), not 'lots'"
        ),
        "rankwise.toml:10: `compute.laptop.oversubscribe` must be `true` or `false`, not 'yes'",
        "rankwise.toml:14: a runtime has `python` or `image`, not both",
        (
            "rankwise.toml:17: `runtime.b.engine` must be `docker`, `podman` or `apptainer`, not "
            "'dockr'; did you mean `docker`?"
        ),
        "rankwise.toml:20: unknown field `runtimes`: did you mean `runtime`?",
        'rankwise.toml:23: there is no compute "laptpo"; did you mean "laptop"?',
        "rankwise.toml:24: `defaults.runtime` must be text in quotes, not 3",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "[compute.a]\n",
            (
                ":1: `compute.a.backend` must be `local`, `slurm`, `gridengine`, `pbs`, `kubernetes`, "
                "`ssh` or `command`, not ''"
            ),
        ),
        ("[compute]\na = 1\n", ":2: `compute.a` must be a table, not 1"),
        ("compute = 1\n", ":1: `compute` must be a table, not 1"),
        ("[[compute]]\n", ":1: `compute` must be a table, not a list"),
        ("defaults = []\n", ":1: `defaults` must be a table, not a list"),
        (
            "[defaults]\nworker = 1\n",
            ":2: unknown field `worker`: there are `compute` and `runtime`",
        ),
        (
            '[compute."a*b"]\nbackend = "local"\n',
            ":1: `compute.a*b` is no name: a `*` may stand at its end only",
        ),
        (
            '[compute.""]\nbackend = "local"\n',
            ":1: `compute.` is no name: a `*` may stand at its end only",
        ),
        ('[compute.local]\nbackend = "slurm"\n', ':2: the compute "local" is always this machine'),
        (
            "[compute.a]\nbackend = []\n",
            (
                ":2: `compute.a.backend` must be `local`, `slurm`, `gridengine`, `pbs`, `kubernetes`, "
                "`ssh` or `command`, not a list"
            ),
        ),
        (
            "[compute.local]\ncores = 0\n",
            ":2: `compute.local.cores` must be more than 0 and at most 1000000, not 0",
        ),
        (
            "[compute.local]\ncores = nan\n",
            ":2: `compute.local.cores` must be a number of cores, such as 4, 0.5 or 500m (thousandths), not nan",
        ),
        (
            "[compute.local]\ncores = true\n",
            ":2: `compute.local.cores` must be a number of cores, such as 4, 0.5 or 500m (thousandths), not true",
        ),
        ("[compute.local]\ngpus = -1\n", ":2: `compute.local.gpus` must be at least 0, not -1"),
        (
            "[compute.local]\nmemory = 0\n",
            ":2: `compute.local.memory` must be at least 1 byte and at most 1Ei, not 0",
        ),
        (
            "[compute.local]\nmemory = {}\n",
            ":2: `compute.local.memory` must be a size: a number of bytes, or such as 500M, 2Gi (with a capital letter), not a mapping",
        ),
        (
            "compute.local.cores = 0\n",
            ":1: `compute.local.cores` must be more than 0 and at most 1000000, not 0",
        ),
        (
            "\ncompute = {local = {cores = 0}}\n",
            ":2: `compute.local.cores` must be more than 0 and at most 1000000, not 0",
        ),
        (
            "[runtime.a]\n",
            ":1: a runtime needs one of `python`, `requirements`, `image` or `current`",
        ),
        ("[runtime.a]\ncurrent = false\n", ":2: `current` can only be true"),
        ("[runtime.a]\npython = 3.12\n", ":2: `runtime.a.python` must be text in quotes, not 3.12"),
        (
            '[runtime.a]\npython = "3.12"\n',
            ":2: a version alone is no runtime: add `requirements`, which may be empty, or name a path",
        ),
        ("[runtime.a]\nimage = ''\n", ":2: `runtime.a.image` must not be empty"),
        (
            '[runtime.a]\nimage = "--rm"\n',
            ":2: `runtime.a.image` must be the name of an image, not '--rm'",
        ),
        ('[runtime.a]\nengine = "docker"\ncurrent = true\n', ":2: `engine` goes with `image` only"),
        (
            '[runtime.a]\nrequirements = "x"\n',
            ":2: `runtime.a.requirements` must be a list, not 'x'",
        ),
        ('[runtime.a]\nrequirements = ["-r x"]\n', ":2: `-r x` is an option: list packages only"),
        (
            '[runtime.a]\nrequirements = ["./x"]\n',
            ":2: `./x` is a path: make an environment for it, and give its `python`",
        ),
        (
            '[runtime.a]\nrequirements = []\npython = "venv"\n',
            ":3: `python` must be a version such as 3.12 here, not `venv`",
        ),
        (
            '[runtime.a]\nimage = "x"\ncurrent = true\n',
            ":3: a runtime has `image` or `current`, not both",
        ),
        ('[defaults]\nruntime = "a"\n', ':2: there is no runtime "a"; write [runtime.NAME] for it'),
        ("[compute.a\n", ":1:11: Expected ']' at the end of a table declaration"),
        ("a = 1\n\nb\n", ":3:2: Expected '=' after a key in a key/value pair"),
        ("[compute.a]\nbackend = 'local'\n[compute.a]\n", ":3:11: Cannot declare"),
        ("a = '''\n\n", ":1: Expected \"'''\""),
        (b"a = 1\nb = '\xff'\n", ":2: not UTF-8; save the file as UTF-8"),
        ("a = " + "[" * 5000, ":1: too many brackets within each other"),
        (b"#" * 1_000_001, ": larger than 1 MB; a site file has a few lines"),
        ("a = " + "9" * 5000, ":1: "),
    ],
    ids=itertools.count(),
)
def test_a_mistake_has_its_place_and_a_remedy(text: str | bytes, complaint: str) -> None:
    [line] = complaints_about(text)
    assert line.startswith(f"rankwise.toml{complaint}")


def test_an_unknown_key_with_nothing_like_it_lists_the_known_ones() -> None:
    [line] = complaints_about('[compute.a]\nbackend = "local"\nzzz = 1\n')
    assert line == (
        "rankwise.toml:3: unknown field `zzz`: there are `backend`, `cores`, `gpus`, `memory`, "
        "`features`, `enforce_limits` and `oversubscribe`"
    )


def test_the_mistakes_of_both_files_are_told() -> None:
    write_users_own('[defaults]\ncompute = "nowhere"\n')
    first, second = complaints_about("[compute.local]\ncores = 0\n")
    assert first.startswith("rankwise.toml:2: ")
    assert second.startswith(f"{Path.cwd().parent}/home/.config/rankwise/rankwise.toml:2: ")


def test_a_default_of_one_file_may_be_defined_in_the_other() -> None:
    write_users_own('[compute.mine]\nbackend = "local"\ncores = 5\n')
    assert site_of('[defaults]\ncompute = "mine"\n').compute().cores == 5


def test_a_compute_that_is_wrong_is_not_also_missing() -> None:
    complaints = complaints_about('[defaults]\ncompute = "a"\n[compute.a]\nbackend = "x"\n')
    assert len(complaints) == 1


def test_a_file_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13))

    Path("rankwise.toml").write_text("")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"^rankwise.toml: cannot be read: Permission denied$"):
        find_site(Path())


def test_windows_line_ends_and_a_byte_order_mark_do_no_harm() -> None:
    Path("rankwise.toml").write_bytes(b"\xef\xbb\xbf[compute.local]\r\ncores = 3\r\n")
    assert find_site(Path()).compute().cores == 3


# A loaded machine is no defect: how long an example takes says nothing here.
@settings(deadline=None)
@given(
    st.text()
    | st.lists(
        st.sampled_from(
            (
                "[compute.a]",
                "backend",
                "=",
                '"local"',
                "[",
                "]",
                "\n",
                "cores",
                "1",
                "[runtime.b]",
                "python",
                "requirements",
                "current",
                "true",
                "[defaults]",
                "compute",
                ".",
                "*",
                '"',
            )
        ),
        max_size=25,
    ).map(" ".join)
)
def test_no_text_makes_anything_else_than_a_site_or_complaints(text: str) -> None:
    Path("rankwise.toml").write_bytes(text.encode(errors="surrogatepass"))
    complaints = ""
    try:
        find_site(Path())
    except InputError as error:
        complaints = str(error)
    assert all(line.startswith("rankwise.toml") for line in complaints.splitlines())


def test_a_number_of_hundreds_of_digits_is_a_mistake(tmp_path: Path) -> None:
    digits = "1" + "0" * 400
    (tmp_path / "rankwise.toml").write_text(
        f'[compute.c]\nbackend = "slurm"\npilot_idle = {digits}\ncores = {digits}\n'
    )
    with pytest.raises(InputError) as caught:
        find_site(tmp_path, environ={})
    assert ":3: `compute.c.pilot_idle` must be a number, not 1000" in str(caught.value)
    assert ":4: `compute.c.cores` must be a number of cores" in str(caught.value)


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9_9" * 2500, "[1, " + "9" * 5000 + "]"])
def test_a_number_of_thousands_of_digits_is_a_mistake_in_its_line(
    tmp_path: Path, number: str
) -> None:
    (tmp_path / "rankwise.toml").write_text(f'[compute.c]\nbackend = "local"\ncores = {number}\n')
    with pytest.raises(InputError) as caught:
        find_site(tmp_path, environ={})
    assert str(caught.value).endswith("rankwise.toml:3: a number has too many digits")
