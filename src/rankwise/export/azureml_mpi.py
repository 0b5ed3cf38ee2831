"""Commands for `mpirun`, without it: the program of a rank, and what can be said by variables."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.launch.command import Launch, Option

# Who else says so: Azure ML counts processes, names hosts, and runs as root.
_ELSEWHERE = frozenset(
    {
        *("np", "n", "c", "num-proc", "npernode", "N", "ppn", "perhost", "slots-per-host"),
        *("hostfile", "machinefile", "default-hostfile", "f", "allow-run-as-root"),
    }
)
_PARAMETERS = {"mca": "OMPI_MCA_", "gmca": "OMPI_MCA_", "omca": "OMPI_MCA_", "prtemca": "PRTE_MCA_"}


def without_launcher(line: str, launch: Launch) -> tuple[str, dict[str, str], list[str]] | None:
    """Give the line of a rank, variables that stand for options, and the options that are lost.

    None: the launcher starts several programs, or it is not clear where it begins.
    """
    if len(launch.segments) != 1:
        return None
    (segment,) = launch.segments
    program = segment.program[0].start
    first = segment.options[0].start if segment.options else program
    before = line[:first].rstrip().removesuffix("--").rstrip()
    if launch.python or not before.endswith(launch.path):
        return None
    variables: dict[str, str] = {}
    lost: list[str] = []
    for option in segment.options:
        said = _as_variable(option)
        if said is not None:
            variables |= said
        elif option.name not in _ELSEWHERE:
            lost.append(line[option.start : option.end])
    return before.removesuffix(launch.path) + line[program:], variables, lost


def _as_variable(option: Option) -> dict[str, str] | None:
    """Give the variable that says the same as an option; None: there is none."""
    values: Sequence[str | None] = option.values
    match option.name, values:
        case (("x" | "genv" | "env"), [str(text)]):
            name, has_value, value = text.partition("=")
            # Without a value it passes on a variable, which Azure ML does with all.
            return {name: value} if has_value else {}
        case (("genv" | "env"), [str(name), str(value)]):
            return {name: value}
        case name, [str(parameter), str(value)] if name in _PARAMETERS:
            return {_PARAMETERS[name] + parameter: value}
    return None
