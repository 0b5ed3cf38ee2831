"""`rankwise submit`."""

from __future__ import annotations

import sys
import time

from rankwise.cli.options import (
    Failed,
    FailFast,
    Files,
    Force,
    From,
    Limit,
    Notified,
    On,
    Only,
    Repeat,
    Shard,
    StoreFolder,
    Strict,
    Yes,
)


def command(
    files: Files,
    *,
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
    notify: Notified = None,
    store: StoreFolder = None,
) -> None:
    """Run documents in the background, and print the run's id at once.

    It goes on when this shell is closed.

    \b
    For example:
      run=$(rankwise submit job.yaml)
      rankwise logs -f $run
    """
    from rankwise.cli.afterwards import remembering
    from rankwise.cli.cells import check_count
    from rankwise.cli.selection import Options, selection
    from rankwise.cli.stores import store_folder
    from rankwise.engine.background import start_in_background
    from rankwise.engine.reuse import check_taken
    from rankwise.engine.runs import check_secrets
    from rankwise.planning import plan_from
    from rankwise.store import Store

    folder = store_folder(store)
    options = Options(only=only, failed=failed, fail_fast=fail_fast, repeat=repeat, shard=shard)
    wanted = selection(options, files, folder)
    choice = {"from": begin, "force": force}
    plan, text = plan_from(files, strict=strict, on=on, choice=choice, wanted=wanted)
    check_count(plan, limit=limit, is_agreed=yes)
    plan = remembering(plan, notify or ())
    check_secrets(plan)
    with Store.open(folder) as opened:
        check_taken(opened, plan)
        run = opened.create_run(plan, text, now=time.time())
        start_in_background(opened, run)
    for notice in plan.notices:
        print(f"note: {notice}", file=sys.stderr)
    print(run)
    if sys.stdout.isatty():
        print(f"To look on:  rankwise logs -f {run}", file=sys.stderr)
