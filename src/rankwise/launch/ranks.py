"""The wrapper around each rank that a launcher starts, so that its own exit code is known.

mpirun, torchrun and their like have exit codes of their own, which tell little about the ranks.
"""

from __future__ import annotations

from rankwise.launch.command import Launch, Segment
from rankwise.launch.launchers import is_python
from rankwise.launch.shell import Edit, remove
from rankwise.launch.words import in_shell
from rankwise.plan import later

RANK_PROGRAM = later("folder") + "/bin/rankwise-rank"
OUTPUT_VARIABLE = "RANKWISE_RANK_OUTPUT"
"""Set to `own`, each rank has a log of its own; else its output goes to the launcher."""


def needs_no_python(segment: Segment) -> bool:
    """Tell whether torch is to run a program that is Python itself, but takes it for a script."""
    others = segment.options_named("no-python", "m", "module", "run-path")
    return is_python(segment.program[0]) and not others


def wrapping(line: str, launch: Launch) -> list[Edit] | str:
    """Give the changes that put the wrapper before every program; or why that cannot be done."""
    if not launch.is_torch:
        wrapper = f"{in_shell(RANK_PROGRAM)} "
        return [_insertion(segment, wrapper) for segment in launch.segments]
    segment = launch.segments[0]
    if segment.options_named("run-path"):
        return "--run-path runs the script within the launcher"
    is_legacy = launch.dialect == "torch.distributed.launch"
    if is_legacy and not segment.options_named("use-env") and not needs_no_python(segment):
        return (
            "without --use_env it hands the rank to the script as an argument (add --use_env if "
            "the script takes it from LOCAL_RANK)"
        )
    return _torch_wrapping(line, launch, segment)


def _torch_wrapping(line: str, launch: Launch, segment: Segment) -> list[Edit]:
    """Have torch run the wrapper instead of Python, and the wrapper run Python as torch would."""
    has_program = bool(segment.options_named("no-python")) or needs_no_python(segment)
    wrapper = [in_shell(RANK_PROGRAM)]
    edits: list[Edit] = []
    if not has_program:
        modules = segment.options_named("m", "module")
        wrapper += [_python_of(launch), "-u", *(["-m"] if modules else [])]
        edits = [remove(line, option.start, option.end) for option in modules]
        edits.append(Edit(segment.options_end, segment.options_end, "--no_python "))
    return [*edits, _insertion(segment, " ".join(wrapper) + " ")]


def _python_of(launch: Launch) -> str:
    # torchrun itself runs in the Python beside which it is installed.
    folder = launch.path.removesuffix("torchrun")
    return launch.python or in_shell(f"{folder}python")


def _insertion(segment: Segment, text: str) -> Edit:
    return Edit(segment.program[0].start, segment.program[0].start, text)
