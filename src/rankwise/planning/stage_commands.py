"""The scripts and command lines of a pipeline's stages."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from rankwise.documents.pipeline import Stage
from rankwise.documents.steps import Cache
from rankwise.plan import later

# Those with a dot are ours: a plan that is shown to people leaves them out.
RUN, STAGE, AROUND = "run.sh", ".stage.sh", ".around.sh"
_BASH = ("bash", "-eo", "pipefail")

# Everything is done by bash itself: a process more for each stage would cost as much as the rest.
# A value of a secret is not written, under whatever name; neither is what bash sets by itself.
_STAGE = r"""
# Runs run.sh, and writes down which variables it has left behind.
declare -A __rankwise_before=()
__rankwise_list() {
    compgen -e >"$RANKWISE_FOLDER/.names"
    mapfile -t __rankwise_names <"$RANKWISE_FOLDER/.names"
}
__rankwise_is_kept() {
    local secret
    case $1 in
        RANKWISE_*|BASH*|_|SHLVL|PWD|OLDPWD|SLURM_*) return 1 ;;
    esac
    for secret in ${RANKWISE_SECRETS//,/ }; do
        if [[ $1 == "$secret" || ( -n ${!secret-} && ${!1-} == *"${!secret}"* ) ]]; then
            return 1
        fi
    done
}
__rankwise_exports() {
    local name
    local -A after=()
    for name in "${__rankwise_names[@]}"; do
        after[$name]=1
        if [[ -v __rankwise_before[$name] && ${__rankwise_before[$name]} == "${!name}" ]]; then
            continue
        fi
        if __rankwise_is_kept "$name"; then
            printf '%s=%s\0' "$name" "${!name}"
        fi
    done
    for name in "${!__rankwise_before[@]}"; do
        if [[ ! -v after[$name] ]] && __rankwise_is_kept "$name"; then
            printf '%s\0' "$name"
        fi
    done
}
__rankwise_end() {
    local code=$? IFS=$' \t\n'
    set +eu
    if (( code == 0 )); then
        __rankwise_list && __rankwise_exports >"$RANKWISE_FOLDER/exports" || code=1
    fi
    return "$code"
}
__rankwise_list
for __rankwise_name in "${__rankwise_names[@]}"; do
    __rankwise_before[$__rankwise_name]=${!__rankwise_name}
done
trap '__rankwise_end; exit' EXIT
. "$RANKWISE_FOLDER/run.sh"
__rankwise_end
__rankwise_code=$?
# A trap of the lines' own, which may have taken the place of ours, is still to come.
trap -p EXIT >"$RANKWISE_FOLDER/.trap"
mapfile -t __rankwise_trap <"$RANKWISE_FOLDER/.trap"
if [[ ${__rankwise_trap[*]-} == *__rankwise_end* ]]; then
    trap - EXIT
fi
exit "$__rankwise_code"
"""


def script_files(text: str) -> dict[str, str]:
    """Return the files that a stage's own lines need."""
    return {RUN: text if text.endswith("\n") else f"{text}\n", STAGE: _STAGE.lstrip("\n")}


def script_command(name: str = STAGE) -> tuple[str, ...]:
    """Give the command that runs one of the files."""
    return (*_BASH, f"{later('folder')}/{name}")


def around(before: Sequence[Sequence[str]], after: Sequence[Sequence[str]]) -> str:
    """Write what is done before and after a stage's own lines, if those succeed."""
    lines = [*map(shlex.join, before), shlex.join(script_command()), *map(shlex.join, after)]
    return "".join(f"{line}\n" for line in lines)


Line = tuple[str, ...]


def program(name: str, *arguments: str) -> Line:
    """Return the line that runs a program, whatever Python a stage has for itself."""
    return (sys.executable, "-I", "-m", "rankwise.steps", name, *arguments)


def step_line(stage: Stage) -> Line:
    """Return the line of a stage that is a step of rankwise's own."""
    lines = (
        _checkout(stage),
        _runtime(stage),
        _deploy(stage),
        _report(stage),
        _notify(stage),
        _wait(stage),
    )
    return next(line for line in lines if line)


def keep_line(stage: str, cell: str, patterns: Sequence[str]) -> Line:
    """Return the line that keeps artifacts."""
    into = f"{later(f'artifacts:{stage}')}{f'/{cell}' if cell else ''}"
    objects = f"{later('store')}/objects"
    return program("artifacts", "--into", into, "--objects", objects, *patterns)


def cache_lines(cache: Cache, command: str) -> tuple[Line, Line]:
    """Return the lines that put back what was kept, and that keep it."""
    common = ["--store", f"{later('store')}/cache", "--command", command]
    common += [word for name in cache.key for word in ("--key", name)]
    return (
        program("cache", "restore", *common, *cache.paths),
        program("cache", "save", *common, *cache.paths),
    )


def detach_line(source: str, stage: str, *, is_forced: bool) -> Line:
    """Return the line that has a stage run by itself."""
    line = program("detach", source, stage, "--store", later("store"), "--run", later("run"))
    return (*line, "--force") if is_forced else line


def _checkout(stage: Stage) -> Line:
    if (step := stage.checkout) is None:
        return ()
    line = [step.repository, *_option("--ref", step.ref), *_option("--into", step.into)]
    return program("checkout", *line, *_flag("--clean", is_set=step.clean))


def _runtime(stage: Stage) -> Line:
    if (step := stage.runtime) is None:
        return ()
    line = [step.into, *_option("--python", step.python)]
    line += [word for name in step.requirements for word in ("--requirements", name)]
    line += [word for name in step.packages for word in ("--package", name)]
    return program("runtime", *line, *_flag("--site-packages", is_set=step.site_packages))


def _deploy(stage: Stage) -> Line:
    if (step := stage.deploy) is None:
        return ()
    name = step.name or later("run")
    return program("deploy", step.source, step.to, "--name", name, "--keep", str(step.keep))


def _report(stage: Stage) -> Line:
    if (step := stage.report) is None:
        return ()
    return program("report", step.to, "--store", later("store"), "--run", later("run"))


def _notify(stage: Stage) -> Line:
    if (step := stage.notify) is None:
        return ()
    line = [*_option("--command", step.run), *_option("--file", step.file)]
    line += [word for name in step.to for word in ("--to", name)]
    return program("notify", *line, "--store", later("store"), "--run", later("run"))


def _wait(stage: Stage) -> Line:
    if (step := stage.wait) is None:
        return ()
    line = ["--submit", step.submit, "--state", step.state, "--job", step.job, "--done", step.done]
    line += [*_option("--failed", step.failed), *_option("--cancel", step.cancel)]
    line += ["--interval", f"{step.interval:g}", *_flag("--gone", is_set=step.gone)]
    return program("wait", *line)


def _option(name: str, value: str) -> list[str]:
    return [name, value] if value else []


def _flag(name: str, *, is_set: bool) -> list[str]:
    return [name] if is_set else []
