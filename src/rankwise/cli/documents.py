"""`rankwise plan`, `validate`, `init`, `schema` and `export`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from rankwise.cli.main import WRONG_USE
from rankwise.cli.options import AsJson, Files, On, PlanningOptions, Strict, TaskKey
from rankwise.errors import InputError
from rankwise.wording import alternatives, did_you_mean

_PATH = re.compile(r"[\w][\w./-]*")
# Where each service looks for its file, and what we call ours in `documents/starters/ci`.
CI_FILES = {
    "github": (".github/workflows/rankwise.yml", "github.yml"),
    "gitlab": (".gitlab-ci.yml", "gitlab.yml"),
    "azure": ("azure-pipelines.yml", "azure.yml"),
    "jenkins": ("Jenkinsfile", "Jenkinsfile"),
}


def ci_file(service: str, document: str) -> tuple[str, str]:
    """Return where a service looks for its file, and the file.

    Raises InputError if there is no such service, or the name of the document is too odd.
    """
    if service not in CI_FILES:
        hint = did_you_mean(service, CI_FILES)
        raise InputError(f"--ci {service}: there is {', '.join(CI_FILES)}{hint}")
    # The path becomes part of commands and of YAML: only characters that need no quotes in either.
    if not _PATH.fullmatch(document):
        raise InputError(
            f"{document!r}: a path in a CI file is made of letters, digits and . _ - /, and begins "
            "in the folder of the repository"
        )
    from rankwise.documents.load import STARTERS

    path, name = CI_FILES[service]
    text = (STARTERS / "ci" / name).read_text(encoding="utf-8")
    return path, text.replace("@DOCUMENT@", document)


def export_command(
    files: Files,
    *,
    to: str,
    on: str | None = None,
    image: str = "",
    code_in_image: str = "",
    runtime: str = "",
    output: str | None = None,
    strict: bool = False,
) -> int:
    """Write jobs as YAML for Kubernetes, its operators or Azure ML.

    Nothing is started. What cannot be expressed there is reported on standard error, a line for
    each.

    Options:
      --to TARGET             kubernetes, kubeflow-v1, mpi-operator, kubeflow-trainer or azureml.
      --on NAME               Write for this compute, whatever documents say.
      --image IMAGE           Run in this image, instead of that of the environment in
                              rankwise.toml.
      --code-in-image FOLDER  The image has the code, in this folder; otherwise it becomes a
                              ConfigMap.
      --runtime NAME          The training runtime of the cluster that a TrainJob names.
      -o, --output PLACE      A file, or a folder for a file of each job; otherwise all is printed.
      --strict                Write nothing if something cannot be expressed there.

    Examples:
      rankwise export job.yaml --to kubernetes --image pytorch/pytorch | kubectl apply -f -
      rankwise export jobs/*.yaml --to azureml -o azure/
    """
    from rankwise.export.base import TARGETS, ExportOptions, export_from, to_yaml
    from rankwise.files import write_whole

    if to not in TARGETS:
        raise InputError(f"--to {to}: there is {alternatives(list(TARGETS))}")
    place = Path(output or ".")
    is_folder = output is not None and (output.endswith("/") or place.is_dir())
    beside = place if output is None or is_folder else place.parent
    options = ExportOptions(
        on=on, image=image, code_in_image=code_in_image, runtime=runtime, beside=beside
    )
    # All of them before anything is written: an error in one leaves no half of the export.
    made = export_from(files, to, options)
    for one in made:
        # On standard error: what is printed may be read by kubectl.
        for line in one.losses:
            print(f"{line} ({'error' if strict else 'lost'})", file=sys.stderr)
        for line in one.notes:
            print(f"{one.name}: note: {line}", file=sys.stderr)
    if strict and any(one.losses for one in made):
        return WRONG_USE
    if is_folder:
        for one in made:
            write_whole(place / f"{one.name}.yaml", to_yaml(one.objects))
        return 0
    text = to_yaml(data for one in made for data in one.objects)
    if output is None:
        sys.stdout.write(text)
    else:
        write_whole(place, text)
    return 0


def init_command(
    type_name: str | None = None,
    file: Path | None = None,
    *,
    ci: str | None = None,
    launcher: str | None = None,
    nodes: str | None = None,
    ranks: str | None = None,
    runtimes: str | None = None,
    on: str | None = None,
    yes: bool = False,
) -> None:
    """Write a commented document to start from, or a file for a CI.

    Without TYPE, the types are listed. A file that exists is left as it is. On a terminal, what
    the type leaves open and no option says is asked for.

    Arguments:
      TYPE  What the document is to describe; with --ci, the suite to run.
      FILE  Where to write it; otherwise it is printed.

    Options:
      --ci SERVICE      Write the file by which github, gitlab, azure or jenkins runs a suite on
                        every pull request.
      --launcher NAME   What starts the ranks: pytorch or mpi.
      --nodes N         How many nodes; of a sweep, several with commas between them.
      --ranks N         How many ranks on each node, of an MpiJob in all; of a sweep, several.
      --runtimes NAMES  Runtimes of a matrix, with commas between them.
      --on NAME         The compute; of a matrix, several.
      -y, --yes         Take what is usual, and do not ask.

    Examples:
      rankwise init
      rankwise init PytorchJob job.yaml
      rankwise init Suite suite.yaml --launcher mpi --ranks 2
      rankwise init --ci github suite.yaml
    """
    from rankwise.documents.load import starter

    if ci is not None:
        _write_ci(ci, type_name or "suite.yaml", file)
        return
    if type_name is None:
        _list_types()
        return
    given = {"launcher": launcher, "nodes": nodes, "ranks": ranks, "runtimes": runtimes, "on": on}
    answers = {name: answer for name, answer in given.items() if answer is not None}
    folder = (file or Path("-")).absolute().parent
    # Before anything is asked, which would be in vain.
    text = starter(type_name, answers)
    for name, answer in answers.items():
        _check_names(folder, name, answer)
    if file is None:
        print(text, end="")
        return
    # To standard error, as in `check_count`.
    if not yes and not file.exists() and sys.stdin.isatty() and sys.stderr.isatty():
        text = starter(type_name, _asked(type_name, answers, folder))
    _write_new(file, text)
    # The second line of a starter says what in it is only an example.
    edit = text.splitlines()[1].removeprefix("# Edit ").rstrip(".")
    print(f"created {file}: edit {edit}")
    print(f"to see what it would run:  rankwise plan {file}")


def _asked(type_name: str, given: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the answers, with those of the user to what is still open."""
    from rankwise.documents.load import choices_of, text_for

    answers = dict(given)
    for name, said in choices_of(type_name).items():
        of = "" if "form" in said else f" ({alternatives([*said['texts']])})"
        while name not in answers:
            print(f"{said['ask']}{of}? [{said['usual']}] ", end="", file=sys.stderr, flush=True)
            answer = sys.stdin.readline().strip() or said["usual"]
            try:
                text_for(name, said, answer)
                if answer != said["usual"]:
                    _check_names(folder, name, answer)
            except InputError as error:
                print(error, file=sys.stderr)
            else:
                answers[name] = answer
    return answers


def _check_names(folder: Path, choice: str, answer: str) -> None:
    """Raise InputError for a compute or a runtime that the site file of a folder does not have."""
    if choice not in ("on", "runtimes"):
        return
    from rankwise.documents.site import find_site

    places = {name.strip(): f"--{choice} {name.strip()}" for name in answer.split(",")}
    computes, runtimes = (places if choice == one else {} for one in ("on", "runtimes"))
    find_site(folder).check(computes=computes, runtimes=runtimes, is_strict=True)


def _write_ci(service: str, document: str, file: Path | None) -> None:
    path, text = ci_file(service, document)
    place = file or Path(path)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{place.parent}: cannot be made: {error.strerror}") from error
    _write_new(place, text)
    print(f"created {place}; it runs {document} on every pull request")
    if not Path(document).exists():
        print(f"{document} does not exist yet; to begin with:  rankwise init Suite {document}")


def _list_types() -> None:
    """Print the types, and what each says of itself in its first line."""
    from rankwise.documents.load import TYPES, starter

    width = max(map(len, TYPES))
    for name in TYPES:
        print(f"{name:{width}}  {starter(name).splitlines()[0].lstrip('# ')}")


def _write_new(file: Path, text: str) -> None:
    """Write a file that does not exist yet; raises InputError if it does."""
    try:
        # "x": what the user has written is never replaced.
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        why = f"{file}: the file exists; remove it first, or choose another name"
        raise InputError(why) from None
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror}") from error


def plan_command(options: PlanningOptions, *, task: TaskKey = None, json_: AsJson = False) -> None:
    """Show what would run, and start nothing.

    Commands, variables, hosts and files, and what was derived or changed on the way. What is known
    only at the start, such as a free port, stands there <in words>.

    Examples:
      rankwise plan job.yaml
      rankwise plan suite.yaml --shard 2/5
    """
    from rankwise.reports.terminal.console import make_console
    from rankwise.reports.terminal.plan import plan_data, show_plan

    plan, _ = options.plan()
    keys = [one.key for one in plan.tasks]
    if task is not None and task not in keys:
        raise InputError(f"{plan.source}: there is no task {task!r}, only {', '.join(keys[:10])}")
    if json_:
        print(json.dumps(plan_data(plan), indent=2))
    else:
        show_plan(make_console(), plan, only=task or "")


def schema_command(what: str = "documents") -> None:
    """Print the JSON Schema of documents, for editors.

    With `site`, it is that of rankwise.toml. An editor finds it by the first line of a document,

    \b
      # yaml-language-server: $schema=rankwise.schema.json

    or of rankwise.toml:

    \b
      #:schema ./site.schema.json

    Arguments:
      WHAT  `documents`, or `site` for rankwise.toml.

    Examples:
      rankwise schema > rankwise.schema.json
      rankwise schema site > site.schema.json
    """
    from rankwise.documents.schema import json_schema, site_schema

    schemas = {"documents": json_schema, "site": site_schema}
    if what not in schemas:
        raise InputError(f"{what}: there is a schema for {alternatives(list(schemas))}")
    print(json.dumps(schemas[what](), indent=2))


def validate_command(files: Files, *, strict: Strict = False, on: On = None) -> int:
    """Check documents, and start nothing.

    All errors in all documents are shown, each with its place. The exit code is 2 if there are
    any.

    Examples:
      rankwise validate job.yaml
      rankwise validate jobs/*.yaml --strict
    """
    from rankwise.planning import plan_from

    code = 0
    for file in files:
        try:
            # One by one, so that a mistake in one document does not hide those of the next.
            plan, _ = plan_from([file], strict=strict, on=on)
        except InputError as error:
            print(error, file=sys.stderr)
            code = WRONG_USE
            continue
        for notice in plan.notices:
            print(f"{file}: note: {notice}")
        print(f"{file}: ok")
    return code
