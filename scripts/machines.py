"""A machine of its own for tests: a Linux kernel that runs as a process of any user.

    python3 scripts/machines.py --install     fetch it, as root on Debian

Its cgroups are those of today, whatever the kernel around it has. It sees this machine's files.
Standard library only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from debian import add_option, install, refuse

LINUX = "linux.uml"
PACKAGES = ("user-mode-linux",)


def obstacle() -> str | None:
    """Say why there can be no such machine here; None if there can be one."""
    return None if shutil.which(LINUX) else f"{LINUX} is not on PATH (Debian: {PACKAGES[0]})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_option(parser)
    chosen = parser.parse_args()
    why = install(PACKAGES, obstacle)
    return refuse(why, chosen, os.environ) if why else 0


if __name__ == "__main__":
    sys.exit(main())
