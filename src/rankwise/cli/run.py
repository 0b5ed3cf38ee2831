"""`rankwise run`."""

from __future__ import annotations

import time

from rankwise.cli.options import (
    AsJson,
    Failed,
    FailFast,
    Files,
    Force,
    From,
    Junit,
    Limit,
    List,
    Markdown,
    Notified,
    On,
    Only,
    Quiet,
    Repeat,
    Shard,
    StoreFolder,
    Strict,
    Yes,
)


def command(
    files: Files,
    *,
    quiet: Quiet = False,
    as_json: AsJson = False,
    strict: Strict = False,
    on: On = None,
    begin: From = None,
    force: Force = False,
    only: Only = None,
    failed: Failed = False,
    fail_fast: FailFast = False,
    repeat: Repeat = 1,
    shard: Shard = None,
    limit: Limit = 50,
    yes: Yes = False,
    listed: List = False,
    junit: Junit = None,
    markdown: Markdown = None,
    notify: Notified = None,
    store: StoreFolder = None,
) -> int:
    """Run documents here and now, and show what their processes write.

    The exit code is 0 if all passed, and otherwise that of the process that failed first. Ctrl-C
    ends everything in good order; a second one leaves it to itself, and `rankwise resume` goes on
    with it.

    \b
    For example:
      rankwise run job.yaml
      rankwise run job.yaml --on gpu-cluster --strict
      rankwise run job.yaml --json | jq .kind
      rankwise run pipeline.yaml --from test
      rankwise run suite.yaml --failed --junit results.xml
      rankwise run suite.yaml --only checkpoint --repeat 20
      rankwise run matrix.yaml --only runtime=torch-2.13,machine=cpu*
    """
    from rankwise.cli.afterwards import remembering
    from rankwise.cli.cells import check_count, list_cells
    from rankwise.cli.foreground import chosen, drive_shown
    from rankwise.cli.outcomes import tell_outside
    from rankwise.cli.selection import Options, selection
    from rankwise.cli.stores import store_folder
    from rankwise.engine.reuse import check_taken
    from rankwise.engine.runs import check_secrets
    from rankwise.planning import plan_from
    from rankwise.store import Store

    folder = store_folder(store)
    options = Options(only=only, failed=failed, fail_fast=fail_fast, repeat=repeat, shard=shard)
    wanted = selection(options, files, folder)
    choice = {"from": begin, "force": force}
    plan, text = plan_from(files, strict=strict, on=on, choice=choice, wanted=wanted)
    if listed:
        list_cells(plan)
        return 0
    check_count(plan, limit=limit, is_agreed=yes)
    plan = remembering(plan, notify or ())
    check_secrets(plan)
    with Store.open(folder) as opened:
        check_taken(opened, plan)
        run = opened.create_run(plan, text, now=time.time())
        shown = chosen(quiet=quiet, as_json=as_json)
        code = drive_shown(opened, opened.run(run), plan.tasks, shown)
        tell_outside(opened, run, junit=junit, markdown=markdown, is_quiet=as_json)
        return code
