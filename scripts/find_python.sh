#!/bin/sh
# Print a Python >= 3.11 that can make virtual environments, or explain how to get one and exit 1.
# PYTHON=/path/to/python, when set, is the only candidate.

candidates=${PYTHON:-python3 python3.13 python3.12 python3.11 python}
without_venv=

for candidate in $candidates; do
    # Run it instead of looking for it: a pyenv shim is on PATH for versions that are not active.
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
    # Debian has ensurepip in a package of its own.
    if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        "$candidate" -c 'import sys; print(sys.executable)'
        exit 0
    fi
    without_venv=${without_venv:-$candidate}
done

if [ -n "$without_venv" ]; then
    version=$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "rankwise: $without_venv (Python $version) cannot make virtual environments: ensurepip is missing." >&2
    echo "  On Debian and Ubuntu: sudo apt-get install python$version-venv" >&2
    echo "  Or use another Python: make PYTHON=/path/to/python3 ..." >&2
else
    echo "rankwise: it needs Python 3.11 or newer, and none of these is: $candidates" >&2
    echo "  Install one from your system's packages or from python.org," >&2
    echo "  or say where it is: make PYTHON=/path/to/python3 ..." >&2
fi
exit 1
