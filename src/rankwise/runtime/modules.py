"""Environment modules, as clusters have them: loaded by a shell around each command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rankwise.plan import RuntimeChoice
from rankwise.runtime.contract import Command, Prepared, Say

# The shell that finds `module` is a login shell's child, or knows where its definition lies.
_SCRIPT = """\
if ! type module >/dev/null 2>&1; then
    for file in "${MODULESHOME:-/usr/share/modules}/init/bash" /usr/share/modules/init/bash \\
        /usr/share/lmod/lmod/init/bash /etc/profile.d/lmod.sh /etc/profile.d/modules.sh; do
        if [ -r "$file" ]; then . "$file"; break; fi
    done
fi
if ! type module >/dev/null 2>&1; then
    echo "rankwise: this machine has no environment modules: no command \\`module\\`" >&2
    exit 127
fi
count=$1; shift
while [ "$count" -gt 0 ]; do
    module load "$1" || { echo "rankwise: module load $1 failed" >&2; exit 1; }
    shift; count=$((count - 1))
done
exec "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Turns commands into ones that load modules first."""

    names: tuple[str, ...]

    def __call__(
        self,
        command: Command,
        *,
        folder: str,
        mounts: Sequence[str] = (),
        names: Iterable[str] = (),
        gpus: int = 0,
    ) -> Command:
        """Give the command of a shell that loads them where it is started."""
        del folder, mounts, names, gpus
        inner = ("/bin/sh", "-c", command) if isinstance(command, str) else command
        return ("bash", "-c", _SCRIPT, "rankwise", str(len(self.names)), *self.names, *inner)


def prepare(choice: RuntimeChoice, say: Say) -> Prepared:
    """Have commands find what the modules bring; whether they are there shows when they run."""
    del say
    return Prepared(wrap=Modules(names=choice.modules))
