"""A command made ready to start: read once, mended, its ranks wrapped, its words filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankwise.launch.command import Launch, Reading
from rankwise.launch.compatibility import fixes_for, notes_for
from rankwise.launch.exceptions import NOTE, ending_all
from rankwise.launch.mpiexec import Family
from rankwise.launch.ranks import OUTPUT_VARIABLE, wrapping
from rankwise.launch.shell import Edit, apply, in_short
from rankwise.launch.words import edits_for, names_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A line with the changes that are the same for all processes that it is the command of."""

    line: str
    launch: Launch | None = None
    edits: tuple[Edit, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that belong to the changes."""
    notes: tuple[str, ...] = ()

    def for_process(self, variables: Mapping[str, str]) -> str:
        """Give the command of a process that has these variables."""
        return apply(self.line, [*self.edits, *edits_for(self.line, variables)])

    def word_notes(self, variables: Mapping[str, str]) -> list[str]:
        """Tell which variables' names stand for their values."""
        names = ", ".join(f"`{name}`" for name in names_in(self.line, variables))
        return [f"words: {names} in the command replaced by the value"] if names else []


def prepare(
    line: str, reading: Reading, family: Family, *, wrap: bool = True, has_mpi4py: bool = False
) -> Prepared:
    """Mend a line for the launcher that is here, and wrap the ranks that it starts.

    A line that is not understood stays as it is, and a note says what follows from that.
    """
    launch = reading.launch
    if launch is None:
        why = f"ranks: `{in_short(line)}`: {reading.reason}"
        note = f"{why}: the exit code will be that of the command as a whole"
        return Prepared(line=line, notes=(note,))
    fixes = fixes_for(line, launch, family)
    notes = notes_for(fixes, launch, family)
    edits = [fix.edit for fix in fixes]
    if has_mpi4py and (aborting := ending_all(launch)):
        edits += aborting
        notes.append(NOTE)
    wrapped = wrapping(line, launch) if wrap else "another launcher numbers the ranks of this job"
    if isinstance(wrapped, str):
        notes.append(f"ranks: {launch.launcher}: {wrapped}: the exit code will be the launcher's")
        return Prepared(line=line, launch=launch, edits=tuple(edits), notes=tuple(notes))
    return Prepared(
        line=line,
        launch=launch,
        edits=(*edits, *wrapped),
        environment={OUTPUT_VARIABLE: "own"} if launch.keeps_output else {},
        notes=tuple(notes),
    )
