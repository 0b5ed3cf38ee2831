"""Arguments and options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwise.cli.completion import (
    complete_compute,
    complete_notified,
    complete_run,
    complete_task,
)

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE", help="YAML documents.", show_default=False)
]
Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run's id, how it begins, or its name (the newest of that name); "
        "without it, the newest of all.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
StoreFolder = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FOLDER",
        envvar="RANKWISE_STORE",
        help="Where runs and their logs are kept; otherwise .rankwise in this folder.",
        show_default=False,
        show_envvar=True,
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Take names that rankwise.toml does not know for errors.")
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="NAME",
        help="Run on this compute, whatever documents say.",
        autocompletion=complete_compute,
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="STAGE",
        help="Of a pipeline, run this stage and all after it; take the others from the last run.",
        autocompletion=complete_task,
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Of a pipeline, run also what has not changed.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing unless something is wrong.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
TaskKey = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="KEY",
        help="Only this task.",
        show_default=False,
        autocompletion=complete_task,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="NAME",
        help="Only this task or test, and what it needs; a pattern such as 'check*'; of a matrix, "
        "runtime=NAME,machine=NAME. May be given several times.",
        show_default=False,
        autocompletion=complete_task,
    ),
]
Failed = Annotated[
    bool,
    typer.Option(
        "--failed",
        help="Only what was not green in the last run of the document; of a matrix, whole cells.",
    ),
]
Limit = Annotated[
    int,
    typer.Option(
        "--limit", min=0, metavar="N", help="Ask before more cells of a matrix are started."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Start them all, and do not ask.")]
List = Annotated[
    bool, typer.Option("--list", help="Only show the cells of a matrix, and start nothing.")
]
FailFast = Annotated[
    bool, typer.Option("--fail-fast", help="End everything after the first failure.")
]
Repeat = Annotated[
    int,
    typer.Option(
        "--repeat", min=1, max=10_000, metavar="N", help="Each so many times, to find flaky ones."
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Only a share: 2/5 is the second of five.",
        show_default=False,
    ),
]
Junit = Annotated[
    Path | None,
    typer.Option(
        "--junit", metavar="FILE", help="Write the results as JUnit XML.", show_default=False
    ),
]
Notified = Annotated[
    list[str] | None,
    typer.Option(
        "--notify",
        metavar="NAME",
        help="When it is over, tell [notify.NAME] of rankwise.toml. May be given several times.",
        show_default=False,
        autocompletion=complete_notified,
    ),
]
Markdown = Annotated[
    Path | None,
    typer.Option(
        "--markdown", metavar="FILE", help="Write a summary in Markdown.", show_default=False
    ),
]
