"""What is measured, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.environment import BENCH, VirtualEnvironment, pytest
from bench.peers import Peer

SCHEDULERS = ("sequential", "static", "dynamic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A command, the folder it runs in, and how it must end."""

    name: str
    command: Sequence[str]
    folder: Path
    shows: str
    """What its output must hold."""
    code: int = 0
    target: float | None = None
    """What the ratio to the first contestant should not exceed."""
    peer: Peer | None = None
    """Whose it is; None: ours. A peer may fail, and the others are measured all the same."""
    most_rounds: int | None = None
    """For a slow one: it rests after so many rounds."""
    most_seconds: float = 300.0
    """When it is killed."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What it has in its environment, besides what all have."""
    prepare: Callable[[], object] | None = None
    """What is done before each run and takes no part in its time."""
    own_environment: VirtualEnvironment = BENCH
    """Where one of ours runs."""

    @property
    def environment(self) -> VirtualEnvironment:
        return self.own_environment if self.peer is None else self.peer.environment


def each_scheduler(
    folder: Path, shows: str, *, target: float, environment: VirtualEnvironment = BENCH
) -> list[Contestant]:
    """Let every scheduler run a suite on two ranks that mpirun starts."""
    return [
        Contestant(
            name=f"mpirun -n 2 pytest --scheduler={scheduler}",
            command=pytest(f"--scheduler={scheduler}", ranks=2, environment=environment),
            folder=folder,
            shows=shows,
            target=target,
            own_environment=environment,
        )
        for scheduler in SCHEDULERS
    ]


def pool(
    folder: Path, shows: str, *, target: float, environment: VirtualEnvironment = BENCH
) -> Contestant:
    """Let pytest start two ranks itself, and run a suite on them."""
    return Contestant(
        name="pytest --n-workers=2",
        command=pytest("--n-workers=2", environment=environment),
        folder=folder,
        shows=shows,
        target=target,
        own_environment=environment,
    )
