"""Documents of Azure ML as they are: environments, inputs, outputs, components, pipelines, sweeps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rankwise.documents.load import load
from rankwise.errors import InputError
from rankwise.plan import Plan, Task, show
from rankwise.planning import plan_from
from tests.export.exporting import judged

SCHEMA = "$schema: https://azuremlschemas.azureedge.net/latest/{}.schema.json\n"
JOB, PIPELINE = SCHEMA.format("commandJob"), SCHEMA.format("pipelineJob")


@pytest.fixture(autouse=True)
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a PATH with nothing on it; returns the folder to put programs into."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    monkeypatch.setenv("PATH", str(bin_folder))
    # Plans name the site file if it is elsewhere.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return bin_folder


def planned(folder: Path, text: str, name: str = "job.yml") -> Plan:
    (folder / name).write_text(text)
    return plan_from([folder / name])[0]


def job(folder: Path, text: str) -> tuple[Task, str]:
    """Plan a command job; returns its task, and what people are told."""
    plan = planned(folder, JOB + text)
    said = " ".join(plan.notices)
    return plan.tasks[-1], said


def line(task: Task) -> str:
    command = task.processes[0].command
    assert isinstance(command, str)
    return show(command)


def program(folder: Path, name: str) -> None:
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        planned(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


# Environments

IMAGE = "command: hostname\nenvironment: {image: library/python:latest}\n"


def test_an_image_is_used_where_there_is_an_engine(tmp_path: Path, no_engine: Path) -> None:
    task, said = job(tmp_path, IMAGE)
    assert task.runtime.kind == "current"
    assert (
        "environment library/python:latest: there is no container engine: using the current Python"
        in said
    )
    assert 'add [runtime."library/python:latest"] to rankwise.toml' in said
    program(no_engine, "podman")
    task, said = job(tmp_path, IMAGE)
    assert (task.runtime.kind, task.runtime.image, said) == (
        "container",
        "library/python:latest",
        "",
    )


def test_the_site_file_says_what_an_image_stands_for(tmp_path: Path, no_engine: Path) -> None:
    program(no_engine, "docker")
    (tmp_path / "rankwise.toml").write_text('[runtime."library/*"]\nrequirements = ["numpy"]\n')
    task, said = job(tmp_path, IMAGE)
    assert (task.runtime.kind, task.runtime.requirements, said) == ("uv", ("numpy",), "")


CONDA = """\
name: some
dependencies:
  - python=3.11.2
  - numpy=1.21
  - pip<23
  - pip:
      - mlflow>=2
      - torch==2.1
"""
KEPT = ("pip", "mlflow>=2", "torch==2.1")


@pytest.mark.parametrize("is_file", [True, False])
def test_the_packages_of_pip_in_a_conda_file_become_an_environment(
    tmp_path: Path, is_file: bool
) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "conda.yml").write_text(CONDA)
    inner = "".join(f"    {one}\n" for one in CONDA.splitlines())
    said = "conda_file: ./envs/conda.yml\n" if is_file else f"conda_file:\n{inner}"
    task, told = job(tmp_path, f"command: x\nenvironment:\n  image: some/image\n  {said}")
    assert task.runtime.kind == "uv"
    assert (task.runtime.python, task.runtime.requirements) == ("3.11.2", KEPT)
    assert "of its pip packages, without numpy=1.21 and some/image" in told


def test_conda_makes_the_environment_where_it_is_installed(tmp_path: Path, no_engine: Path) -> None:
    program(no_engine, "micromamba")
    task, _ = job(tmp_path, "command: x\nenvironment: {conda_file: {dependencies: [r-base]}}\n")
    assert (task.runtime.kind, task.runtime.engine) == ("conda", "micromamba")
    assert json.loads(task.runtime.requirements[0]) == {"dependencies": ["r-base"]}


def test_a_conda_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    text = f"{JOB}command: x\nenvironment: {{conda_file: no.yml}}\n"
    assert "no.yml" in complaint(tmp_path, text)


def test_an_image_is_built_where_there_is_an_engine(tmp_path: Path, no_engine: Path) -> None:
    text = "command: x\nenvironment: {build: {path: made, dockerfile_path: My.file}}\n"
    task, said = job(tmp_path, text)
    assert task.runtime.kind == "current"
    assert (
        "environment of the document: there is no container engine: using the current Python"
        in said
    )
    program(no_engine, "podman")
    assert "My.file: No such file" in complaint(tmp_path, JOB + text)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "My.file").write_text("FROM scratch\n")
    task, said = job(tmp_path, text)
    assert (task.runtime.kind, said) == ("container", "")
    assert task.runtime.build == f"{tmp_path}/made/My.file"
    assert task.runtime.context == f"{tmp_path}/made"


# Packages that a command installs


@pytest.mark.parametrize("command", ["pip install -r r.txt && x", "python -m pip3 install x"])
def test_what_a_command_installs_stays_out_of_the_environment(tmp_path: Path, command: str) -> None:
    task, said = job(tmp_path, f"command: {command}\n")
    assert line(task).startswith('export PIP_TARGET="<folder of the attempt>/packages/')
    assert line(task).endswith(command)
    assert said == "pip installs for this attempt alone, not into the environment"


def test_an_environment_of_the_user_gets_what_a_command_installs(tmp_path: Path) -> None:
    (tmp_path / "rankwise.toml").write_text('[runtime.mine]\npython = "/opt/mine"\n')
    task, _ = job(tmp_path, "command: pip install x\nenvironment: mine\n")
    assert line(task) == "pip install x"


# Inputs and outputs


def test_paths_of_inputs_begin_at_the_document_and_stay_one_word(tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    (folder / "data").mkdir(parents=True)
    task, said = job(
        folder,
        "command: a ${{inputs.data}}/x '${{inputs.data}}' \"${{ inputs.none }}\" ${{inputs.n}}\n"
        "inputs: {data: {path: ./data}, none: {path: /no/such}, n: 3}\n"
        "environment_variables: {DATA: '${{inputs.data}}'}\n",
    )
    quoted = str(folder / "data").replace("'", "'\"'\"'")
    inside = str(folder / "data").replace("'", "'\\''")
    assert line(task) == f"a '{quoted}'/x '{inside}' \"/no/such\" 3"
    assert task.environment["DATA"] == str(folder / "data")
    assert task.mounts == (str(folder / "data"), "/no/such")
    assert said == "inputs.none: there is no /no/such yet"


DATA = "command: ls ${{inputs.data}}\ninputs: {data: {type: uri_folder, path: 'azureml:iris@latest'}}\n"


@pytest.mark.parametrize("path", ["azureml:iris@latest", "azureml://datastores/x", "wasbs://x@y/z"])
def test_an_input_of_azure_is_not_run_and_the_remedy_is_said(tmp_path: Path, path: str) -> None:
    task, _ = job(tmp_path, DATA.replace("azureml:iris@latest", path))
    assert task.skip == (
        f"inputs.data is {path}, which is not here: "
        f'add `"{path}" = "/its/path"` to [inputs] in rankwise.toml'
    )
    (tmp_path / "rankwise.toml").write_text(f'[inputs]\n"{path}" = "mine"\n')
    task, _ = job(tmp_path, DATA.replace("azureml:iris@latest", path))
    assert (task.skip, line(task)) == ("", f"ls {tmp_path}/mine")


@pytest.mark.parametrize("kind", ["uri_file", "uri_folder"])
def test_an_input_from_the_web_is_fetched_first(tmp_path: Path, kind: str) -> None:
    text = DATA.replace("azureml:iris@latest", "https://example.org/a/iris x.csv?v=1/2")
    plan = planned(tmp_path, JOB + text.replace("uri_folder", kind))
    fetch, own = plan.tasks
    assert own.needs == (fetch.key,)
    assert fetch.compute == "local"
    into = next(word[7:] for word in fetch.processes[0].command if word.startswith("--into="))
    assert into.startswith(f"{tmp_path}/cache/rankwise/inputs/")
    name = "iris-x.csv" if kind == "uri_file" else ""
    assert line(own) == f"ls {into}/content{'/' * bool(name)}{name}"


def test_a_folder_in_the_web_cannot_be_listed(tmp_path: Path) -> None:
    task, _ = job(tmp_path, DATA.replace("azureml:iris@latest", "https://example.org/a/"))
    assert "a folder in the web: name its files, each as a `uri_file`" in task.skip


def test_an_input_is_not_brought_to_another_machine(tmp_path: Path) -> None:
    (tmp_path / "rankwise.toml").write_text('[compute.far]\nbackend = "ssh"\nhosts = ["far"]\n')
    text = DATA.replace("azureml:iris@latest", "./data")
    task, said = job(tmp_path, f"{text}compute: far\n")
    assert said == "inputs.data: ./data is not brought to far"
    assert line(task) == "ls ./data"


def test_outputs_have_folders_here(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    task, said = job(
        tmp_path,
        "command: x ${{outputs.a}} ${{outputs.b}} ${{outputs.c}} > ./outputs/log\n"
        "code: src\nresources: {instance_count: 2}\ndistribution: {type: pytorch}\n"
        "outputs: {a: , b: {type: uri_file, path: out/b.txt}, c: {path: 'azureml://x/y'}}\n",
    )
    own = "<folder of the attempt>/outputs"
    assert line(task) == f"x {own}/a {tmp_path}/out/b.txt {own}/c > ./outputs/log"
    assert [show(folder) for folder in task.folders] == [
        f"{own}/a",
        f"{tmp_path}/out",
        f"{own}/c",
        "<folder of node 0>/outputs",
        "<folder of node 1>/outputs",
    ]
    assert task.mounts == (f"{tmp_path}/out",)
    assert "outputs.c: azureml://x/y is in Azure: see the attempt's folder" in said


# Names, types


def test_the_display_name_names_runs_that_have_no_name(tmp_path: Path) -> None:
    assert planned(tmp_path, f"{JOB}command: x\ndisplay_name: My (first) job\n").name == (
        "My-first-job"
    )
    assert planned(tmp_path, f"{JOB}command: x\ndisplay_name: 日本\n").name == "job"
    assert planned(tmp_path, f"{JOB}command: x\ndisplay_name: a\nname: b\n").name == "b"


def test_a_document_without_a_type_is_a_command_job_if_it_could_be_one(tmp_path: Path) -> None:
    assert planned(tmp_path, "command: hostname\ncode: .\n").kind == "command"
    assert "`type` is missing" in complaint(tmp_path, "command: x\nparameters: {a: [1]}\n")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SCHEMA.format("sparkJob"), "sparkJob"),
        (SCHEMA.format("pipelineComponent") + "type: pipeline\njobs: {}\n", "pipelineComponent"),
        (
            "$schema: https://azuremlsdk2.blob.example/autoMLJob.schema.json\ntype: automl\n",
            "autoMLJob",
        ),
    ],
)
def test_what_only_azure_can_run_is_said_once(tmp_path: Path, text: str, kind: str) -> None:
    said = complaint(tmp_path, text)
    assert re.fullmatch(
        rf"job.yml:1:\d+: `{kind}` is for Azure ML alone: no such thing runs here", said
    )


def test_a_misspelt_type_of_ours_is_not_taken_for_one_of_azure(tmp_path: Path) -> None:
    said = complaint(tmp_path, "type: pipeline\nstages: {a: x}\n")
    assert "not 'pipeline'; did you mean `Pipeline`?" in said


# Components

COMPONENT = SCHEMA.format("commandComponent") + (
    "type: command\nname: part\nversion: 1\n"
    "inputs:\n  word: {type: string, description: what, enum: [a, b]}\n"
    "  count: {type: integer, default: 2, min: 1}\n  extra: {type: string, optional: true}\n"
    "outputs: {text: {type: uri_folder}}\n"
    "command: say ${{inputs.word}} ${{inputs.count}} $[[--extra ${{inputs.extra}}]] ${{outputs.text}}\n"
)


def test_a_component_alone_lacks_its_inputs(tmp_path: Path) -> None:
    (task,) = planned(tmp_path, COMPONENT).tasks
    assert task.skip.startswith("no value for the inputs word: a pipeline job gives them")
    assert line(task) == "say <word> 2  <folder of the attempt>/outputs/text"
    (task,) = planned(tmp_path, COMPONENT.replace("type: string, desc", "default: x, desc")).tasks
    assert task.skip == ""


# Pipelines

STEPS = """\
type: pipeline
display_name: two steps
settings: {default_compute: azureml:cpu, default_datastore: azureml:store}
inputs: {word: hello, data: {path: data}}
outputs: {last: {path: kept}}
jobs:
  second:
    command: cat ${{inputs.text}}/a ${{inputs.data}} > ${{outputs.all}}/b
    inputs: {text: '${{parent.jobs.first.outputs.text}}', data: '${{parent.inputs.data}}'}
    outputs: {all: '${{parent.outputs.last}}'}
    compute: azureml:gpu
  first:
    type: command
    component: ./parts/part.yml
    inputs: {word: '${{ parent.inputs.word }}'}
    environment_variables: {A: 1}
"""


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part.yml").write_text(COMPONENT)
    return tmp_path


def test_jobs_of_a_pipeline_run_after_those_whose_outputs_they_read(steps: Path) -> None:
    plan = planned(steps, PIPELINE + STEPS)
    assert (plan.name, [task.key for task in plan.tasks]) == ("two-steps", ["first", "second"])
    first, second = plan.tasks
    text = "<artifacts of first>/text"
    assert line(first) == f"say hello 2  '{text}'"
    assert line(second) == f"cat '{text}'/a {steps}/data > {steps}/kept/b"
    assert (first.needs, second.needs) == ((), ("first",))
    assert (first.compute, second.compute) == ("cpu", "gpu")
    assert [show(one) for one in (*first.folders, *second.folders)] == [text, f"{steps}/kept"]
    assert first.folder == f"{steps}/parts"
    assert first.environment["A"] == "1"


def test_two_jobs_fetch_the_same_file_once(steps: Path) -> None:
    text = STEPS.replace("{path: data}", "{path: 'http://example.org/x.csv', type: uri_file}")
    text = text.replace("{word: '${{ parent.inputs.word }}'}", "{word: '${{parent.inputs.data}}'}")
    fetch, first, second = planned(steps, PIPELINE + text).tasks
    assert (first.needs, second.needs) == ((fetch.key,), (fetch.key, "first"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("jobs.first.outputs.text", "jobs.first.outputs.txt", "`${{parent.jobs.first.outputs.txt}}` is none of parent.inputs.word, parent.inputs.data, parent.jobs.second.outputs.all and parent.jobs.first.outputs.text"),
        ("parent.inputs.data", "parent.inputs.dta", "job.yml:10:"),
        ("{word: '", "{wrd: '", "parts/part.yml: no input wrd: see word, count and extra"),
        ("./parts/part.yml", "azureml:part@latest", "the component azureml:part@latest is wrong:\nonly Azure ML knows it: name a file"),
        ("./parts/part.yml", "./parts/none.yml", "job.yml:15:16: the component ./parts/none.yml is wrong:\nparts/none.yml"),
        ("type: command", "type: automl", "job.yml:14:5: `jobs.first` cannot be `automl`: in a pipeline, jobs other than `command` are for Azure ML alone"),
        ("component: ./parts/part.yml", "commandx: x", "unknown field `commandx`: did you mean `command`?"),
        ("{word: '${{ parent.inputs.word }}'}", "{word: '${{parent.jobs.second.outputs.all}}'}", "jobs that need each other: second and first"),
    ],
)  # fmt: skip
def test_mistakes_in_a_pipeline_are_said(steps: Path, old: str, new: str, said: str) -> None:
    assert said in complaint(steps, PIPELINE + STEPS.replace(old, new))


# Sweeps

SWEEP = SCHEMA.format("sweepJob") + (
    "type: sweep\n"
    "trial:\n  command: run ${{inputs.a}} ${{search_space.b}} ${{ search_space.c }} ${{outputs.o}}\n"
    "inputs: {a: 0.5}\noutputs: {o: }\nsampling_algorithm: grid\n"
    "search_space:\n  b: {type: choice, values: [x, y]}\n  c: {type: choice, values: [1, 2.0]}\n"
    "objective: {goal: minimize, primary_metric: loss}\n"
    "limits: {max_concurrent_trials: 2, trial_timeout: 60, timeout: 600}\n"
)


def test_a_sweep_of_choices_tries_each_combination(tmp_path: Path) -> None:
    plan = planned(tmp_path, SWEEP)
    out = "<folder of the attempt>/outputs/o"
    assert [line(task) for task in plan.tasks] == [
        f"run 0.5 {b} {c} {out}" for b in "xy" for c in ("1", "2.0")
    ]
    task = plan.tasks[1]
    assert (task.tags, task.lane_width, task.timeout) == ({"b": "x", "c": "2.0"}, 2, 60)
    assert plan.notices == ("`objective` is not read: no trial is the best",)
    assert len(planned(tmp_path, SWEEP.replace("limits: {", "limits: {max_total_trials: 3, ")).tasks) == 3  # fmt: skip


def test_a_sweep_may_try_a_component(tmp_path: Path) -> None:
    (tmp_path / "part.yml").write_text(COMPONENT)
    text = SWEEP.replace("trial:\n", "trial: ./part.yml\n").replace("{a: 0.5}", "{extra: e}")
    text = re.sub(r"  command: run.*\n", "", text).replace("outputs: {o: }\n", "")
    text = text.replace("  b: {", "  word: {").replace("  c: {", "  count: {")
    first = planned(tmp_path, text).tasks[0]
    assert line(first).startswith("say x 1 --extra e ")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{type: choice, values: [1, 2.0]}", "{type: uniform, min_value: 1, max_value: 2}", "job.yml:10:6: `search_space.c` cannot be `uniform`: nothing is drawn at random here; write the values to try as a `choice`"),
        ("grid\n", "bayesian\n", "`bayesian` sampling would choose some of 4 combinations: take `grid`"),
        ("grid\n", "{type: random, seed: 1}\n", ""),
        ("limits: {", "limits: {max_total_trials: 9, ", ""),
        ("search_space.b", "search_space.d", "`${{inputs.d}}` is unknown"),
    ],
)  # fmt: skip
def test_what_a_sweep_cannot_have_is_said(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = SWEEP.replace(old, new)
    if said:
        assert said in complaint(tmp_path, text)
    else:
        assert len(planned(tmp_path, text).tasks) == 4
    text = text.replace("grid", "random").replace("limits: {", "limits: {max_total_trials: 3, ")
    if old == "search_space.b":
        assert "`random` sampling would choose 3 of 4 combinations" in complaint(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (f"{PIPELINE}type: pipeline\njobs: {{}}\n", "jobs"),
        (SWEEP.replace("values: [x, y]", "values: []"), "search_space.b.values"),
    ],
)
def test_a_document_that_would_run_nothing_is_wrong(tmp_path: Path, text: str, field: str) -> None:
    assert f"`{field}` is not valid" in complaint(tmp_path, text)


def test_a_component_is_loaded_as_one_whatever_its_schema_says(tmp_path: Path) -> None:
    (tmp_path / "part.yml").write_text(COMPONENT.partition("\n")[2])
    assert load(tmp_path / "part.yml", kind="component").model.type == "component"


def test_documents_like_these_are_those_of_azures_own_package(steps: Path) -> None:
    (steps / "docker").mkdir()
    (steps / "docker" / "Dockerfile").write_text("FROM scratch\n")
    (steps / "data").write_text("1\n")
    (steps / "conda.yml").write_text(CONDA)
    compute = "compute: azureml:cpu\n"
    texts = {
        "image.yml": f"{JOB}{IMAGE}{compute}",
        "conda-job.yml": f"{JOB}command: x\nenvironment: {{image: a/b, conda_file: ./conda.yml}}\n{compute}",
        "built.yml": f"{JOB}command: x\nenvironment: {{build: {{path: ./docker}}}}\n{compute}",
        "data.yml": f"{JOB}{DATA}environment: azureml:a:1\n{compute}",
        "pipeline.yml": PIPELINE
        + STEPS.replace("{path: kept}", "{mode: upload}")
        .replace("  second:\n", "  second:\n    environment: azureml:a:1\n")
        .replace("{path: data}", "{path: ./data, type: uri_file}"),
        "sweep.yml": SWEEP.replace("trial:\n", "trial:\n  environment: azureml:a:1\n").replace(
            "limits: {", "limits: {max_total_trials: 4, "
        )
        + compute,
    }
    (steps / "parts" / "part.yml").write_text(COMPONENT + "environment: azureml:a:1\n")
    for name, text in texts.items():
        (steps / name).write_text(text)
    answers = judged("azure", [str(steps / name) for name in texts])
    wrong = {name: one["wrong"] for name, one in zip(texts, answers, strict=True) if one["wrong"]}
    assert wrong == {}
    assert all(plan_from([steps / name])[0].tasks for name in texts)
