"""`rankwise validate`."""

from __future__ import annotations

import sys

from rankwise.cli.options import Files, On, Strict


def command(files: Files, *, strict: Strict = False, on: On = None) -> int:
    """Check documents, and start nothing.

    All mistakes in all documents are shown, each with its place. The exit code is 2 if there are
    any.

    \b
    For example:
      rankwise validate jobs/*.yaml
    """
    from rankwise.cli.faults import WRONG_USE
    from rankwise.errors import InputError
    from rankwise.planning import plan_from

    code = 0
    for file in files:
        try:
            plan, _ = plan_from([file], strict=strict, on=on)
        except InputError as error:
            print(error, file=sys.stderr)
            code = WRONG_USE
            continue
        for notice in plan.notices:
            print(f"{file}: note: {notice}")
        print(f"{file}: ok")
    return code
