"""Run one step of a pipeline: `python -m rankwise.steps NAME ...`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module

STEPS: Mapping[str, tuple[str, str]] = {
    "artifacts": ("keeping", "artifacts_main"),
    "cache": ("keeping", "cache_main"),
    "checkout": ("workspace", "checkout_main"),
    "deploy": ("releases", "deploy_main"),
    "detach": ("detach", "main"),
    "notify": ("reporting", "notify_main"),
    "report": ("reporting", "report_main"),
    "runtime": ("workspace", "runtime_main"),
    "wait": ("wait", "main"),
}
"""The module and the function of each step."""


def main() -> int:
    """Run the step that the command line names, with the rest of the line."""
    if len(sys.argv) < 2 or sys.argv[1] not in STEPS:
        print(f"usage: python -m rankwise.steps {'|'.join(STEPS)} ...", file=sys.stderr)
        return 2
    module, function = STEPS[sys.argv.pop(1)]
    code: int = getattr(import_module(f"rankwise.steps.{module}"), function)()
    return code


if __name__ == "__main__":
    sys.exit(main())
