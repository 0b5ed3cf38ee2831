"""Every document of examples/jobs runs to success here, with the real frameworks."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from environments import ROOT, RUNTIMES, why_unavailable

from tests.acceptance.jobs import opened
from tests.lengths import IS_FULL
from tests.seeds.sentences import sentence

EXAMPLES = ROOT / "examples" / "jobs"
DOCUMENTS = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/*.yaml"))
RUNTIME_OF_FOLDER = {"mpi": "mpi4py", "pytorch": "torch", "tensorflow": "tensorflow"}
LEARNED = re.compile(
    r"ranks: \d+, loss before: [\d.]+, after: 0\.0\d+|(?:processes|workers|replicas): \d+, .*after: (?:9\d|100)%"
)


def take_runtime(folder: Path, place: Path | None = None) -> None:
    """Have the documents run in the environment that is there already, made of the same.

    At a place of its own, if one is given.
    """
    name = RUNTIME_OF_FOLDER[folder.name]
    runtime = RUNTIMES[name]
    if reason := why_unavailable(runtime):
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail(reason)
        pytest.skip(reason)
    site = folder / "rankwise.toml"
    text = site.read_text()
    (wanted,) = tomllib.loads(text)["runtime"].values()
    assert tuple(wanted["requirements"]) == runtime.requirements
    if place is not None:
        place.symlink_to(runtime.folder)
    python = f'python = "{place or runtime.folder}"'
    site.write_text(re.sub("(?m)^requirements = .*$", python, text))


# Those for Kubernetes differ in what they claim, and command jobs in how they are written.
OTHER_DAYS = ("/k8s.yaml", "/command-job.yaml")


TF_CONFIG = sentence(
    "azureml-distributed-jobs",
    ran="rankwise run multiworker.yaml and parameter-server.yaml, with TensorFlow",
    said="Azure ML sets TF_CONFIG, which is required for distributed training with TensorFlow.",
)
OF_TENSORFLOW = ("tensorflow/multiworker.yaml", "tensorflow/parameter-server.yaml")


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(name, marks=[TF_CONFIG] if name in OF_TENSORFLOW else [])
        for name in DOCUMENTS
        if IS_FULL or not name.endswith(OTHER_DAYS)
    ],
)
def test_an_example_learns(tmp_path: Path, document: str) -> None:
    folder, name = document.split("/")
    with opened(tmp_path / "shop") as shop:
        shutil.copytree(EXAMPLES / folder, shop.folder / folder)
        take_runtime(shop.folder / folder)
        shop.variables["PATH"] = f"{shop.folder / folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        said = shop.rankwise("run", f"{folder}/{name}", "--strict")
        assert said.exit_code == 0, said
        assert LEARNED.search(said.output), said
        shop.wait_until_empty()


TORCHRUN = """\
torchrun --nproc_per_node 2 --nnodes 4 --node_rank NODE_RANK --master_addr MASTER_ADDR
      --master_port MASTER_PORT train.py
"""


@pytest.mark.parametrize(
    "document",
    [
        "mpi/amlcompute.yaml",
        "pytorch/torchrun.yaml",
        # Goes the same way as torchrun, with an older name.
        pytest.param("pytorch/launch.yaml", marks=pytest.mark.full_length),
    ],
)
def test_folders_of_an_example_may_have_blanks_and_quotes_in_their_names(
    tmp_path: Path, document: str
) -> None:
    folder, name = document.split("/")
    with opened(tmp_path / "it's a shop (of $HOME)") as shop:
        shutil.copytree(EXAMPLES / folder, shop.folder / folder)
        if name == "torchrun.yaml":
            launch = (EXAMPLES / folder / "launch.yaml").read_text()
            text, count = re.subn(r"python -m torch(?s:.*?)train\.py\n", TORCHRUN, launch)
            assert count == 1
            (shop.folder / folder / name).write_text(text)
        take_runtime(shop.folder / folder, tmp_path / "it's an environment")
        shop.variables["TMPDIR"] = str(shop.folder)
        said = shop.rankwise("run", f"{folder}/{name}", "--strict")
        assert said.exit_code == 0, said
        assert LEARNED.search(said.output), said
        shop.wait_until_empty()
