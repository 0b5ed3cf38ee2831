"""`rankwise plan`."""

from __future__ import annotations

import json

from rankwise.cli.options import (
    AsJson,
    Failed,
    Files,
    On,
    Only,
    Repeat,
    Shard,
    StoreFolder,
    Strict,
    TaskKey,
)


def command(
    files: Files,
    *,
    task: TaskKey = None,
    as_json: AsJson = False,
    strict: Strict = False,
    on: On = None,
    only: Only = None,
    failed: Failed = False,
    repeat: Repeat = 1,
    shard: Shard = None,
    store: StoreFolder = None,
) -> None:
    """Show what would run, and start nothing.

    Commands, variables, hosts and files, and what was derived or mended on the way. What is known
    only at the start, such as a free port, stands there <in words>.

    \b
    For example:
      rankwise plan job.yaml
      rankwise plan suite.yaml --shard 2/5
    """
    from rankwise.cli.selection import Options, selection
    from rankwise.cli.stores import store_folder
    from rankwise.errors import InputError
    from rankwise.planning import plan_from
    from rankwise.report.terminal import make_console
    from rankwise.report.terminal_plan import plan_data, show_plan

    options = Options(only=only, failed=failed, repeat=repeat, shard=shard)
    wanted = selection(options, files, store_folder(store))
    plan, _ = plan_from(files, strict=strict, on=on, wanted=wanted)
    keys = [one.key for one in plan.tasks]
    if task is not None and task not in keys:
        raise InputError(f"{plan.source}: there is no task {task!r}, only {', '.join(keys[:10])}")
    if as_json:
        print(json.dumps(plan_data(plan), indent=2))
    else:
        show_plan(make_console(), plan, only=task or "")
