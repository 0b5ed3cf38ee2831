"""Documents that are exported, and what is found in what comes of them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from environments import ROOT, RUNTIMES, why_unavailable
from ruamel.yaml import YAML

from rankwise.export.base import Exported, ExportOptions, export_from, to_yaml

EXAMPLES = ROOT / "examples" / "jobs"
DOCUMENTS = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/*.yaml"))
IMAGE = "registry.example.com/team/image:1"
_JUDGES = Path(__file__).parent / "judges"
_LIMIT_SECONDS = 120


def example(name: str, target: str, **wishes: Any) -> Exported:
    """Export one of the examples."""
    [made] = export_from([EXAMPLES / name], target, ExportOptions(image=IMAGE, **wishes))
    return made


def written(folder: Path, text: str, target: str, *, site: str = "", **wishes: Any) -> Exported:
    """Export a document; it has its code in `src`."""
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "train.py").write_text("print('hello')\n")
    (folder / "job.yaml").write_text(text)
    (folder / "rankwise.toml").write_text(site)
    [made] = export_from([folder / "job.yaml"], target, ExportOptions(**{"image": IMAGE, **wishes}))
    return made


def read_back(text: str) -> list[Any]:
    """Read a stream of documents as YAML 1.2."""
    return list(YAML(typ="safe", pure=True).load_all(StringIO(text)))


def job_in(made: Exported) -> Mapping[str, Any]:
    """Return the object that is the job, as a reader finds it."""
    found: Mapping[str, Any] = read_back(to_yaml(made.objects))[-1]
    return found


def templates_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Find the templates of pods in an object."""
    if isinstance(value, Mapping):
        if isinstance(value.get("spec"), Mapping) and "containers" in value["spec"]:
            yield value
        else:
            for entry in value.values():
                yield from templates_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from templates_in(entry)


def judged(judge: str, given: Any) -> Any:
    """Ask a judge who lives in an environment of his own."""
    runtime = RUNTIMES[judge]
    if reason := why_unavailable(runtime):
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    name = {"kubeflow": "judge_kubeflow.py", "azure": "judge_azureml.py"}[judge]
    done = subprocess.run(
        [runtime.folder / "bin" / "python", "-I", _JUDGES / name],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
