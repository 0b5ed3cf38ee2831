"""Pilots: jobs that many tasks share. Orders are put into the inbox of one, as files."""

from __future__ import annotations

import contextlib
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.compute.contract import Attempt
from rankwise.compute.order import write_beside
from rankwise.compute.slurm.sending import SENT, Parcel, Sending, Sent, hand_over
from rankwise.errors import ComputeFailure
from rankwise.slurm import commands

PILOT = "pilot"
"""The key in SENT that names the pilot's folder."""
OVER, CLOSED, INBOX, TAKEN = "over", "closed", "inbox", "taken"


@dataclass(slots=True, kw_only=True)
class _Pilot:
    attempt: Attempt
    nodes: int
    job_id: str = ""
    is_over: bool = False
    parcels: list[Parcel] = field(default_factory=list)
    """Those whose number is not known yet."""

    @property
    def folder(self) -> Path:
        return self.attempt.folder

    def is_open(self) -> bool:
        return not self.is_over and not (self.folder / CLOSED).exists()


class PilotSending:
    """Sends attempts to a pilot, and pilots to Slurm; what is not begun can be taken back."""

    def __init__(self, sending: Sending, *, nodes: int) -> None:
        self._sending = sending
        self._nodes = nodes
        self._waiting: dict[str, Parcel] = {}
        self._pilots: dict[str, _Pilot] = {}
        self._count = 0

    @property
    def trouble(self) -> str:
        """Tell why no pilot can be sent for now; empty: all is well."""
        return self._sending.trouble

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, parcel: Parcel) -> None:
        """Have it wait until it can be sent."""
        self._waiting[parcel.attempt.marker] = parcel

    def drop(self, attempt: Attempt) -> bool:
        """Take it back; False: it may have begun."""
        return self._waiting.pop(attempt.marker, None) is not None or take_back(attempt)

    def send(self, in_flight: int) -> list[Sent]:
        """Put what waits into the inbox of a pilot, and tell which job that is."""
        del in_flight  # However many they are, there is one job.
        done: list[Sent] = []
        for parcel in self._waiting.values():
            pilot = self._pilot_for(parcel)
            self._put(parcel, pilot)
            pilot.parcels.append(parcel)
        self._waiting.clear()
        sent = self._sending.send(sum(not pilot.is_over for pilot in self._pilots.values()))
        for one in sent:
            pilot = self._pilots[one.parcel.attempt.marker]
            pilot.job_id, pilot.is_over = one.job_id, bool(one.refusal)
            if one.refusal:
                done += [Sent(parcel=parcel, refusal=one.refusal) for parcel in pilot.parcels]
                pilot.parcels.clear()
        for pilot in self._pilots.values():
            if pilot.job_id:
                done += [Sent(parcel=parcel, job_id=pilot.job_id) for parcel in pilot.parcels]
                pilot.parcels.clear()
        return done

    def note_over(self, job_id: str) -> None:
        """Put nothing more into a pilot that has ended."""
        for pilot in self._pilots.values():
            pilot.is_over |= pilot.job_id == job_id

    def close(self) -> None:
        """Have pilots end: there is nothing more to do."""
        for pilot in self._pilots.values():
            if pilot.is_open():
                with contextlib.suppress(OSError, ComputeFailure):
                    (pilot.folder / INBOX / OVER).touch()
                    commands.cancel(pilot.job_id, "--state=PENDING")

    def _pilot_for(self, parcel: Parcel) -> _Pilot:
        for pilot in self._pilots.values():
            if pilot.is_open() and pilot.nodes >= parcel.nodes:
                return pilot
        name = f"rw-{secrets.token_hex(8)}"
        # Beside the folders of the tasks, in that of the run.
        folder = parcel.attempt.folder.parent.parent / ".pilots" / name
        for inner in (INBOX, TAKEN):
            (folder / inner).mkdir(parents=True)
        pilot = _Pilot(
            attempt=Attempt(label=name, marker=name, folder=folder),
            nodes=max(self._nodes, parcel.nodes),
        )
        self._pilots[name] = pilot
        self._sending.add(
            Parcel(
                attempt=pilot.attempt,
                options=parcel.pilot_options,
                script=parcel.pilot_script,
            )
        )
        return pilot

    def _put(self, parcel: Parcel, pilot: _Pilot) -> None:
        self._count += 1
        marker, folder = parcel.attempt.marker, parcel.attempt.folder
        name = f"{self._count:08}-{marker}"
        said = {"name": pilot.attempt.marker, "index": None}
        said |= {PILOT: str(pilot.folder), "order": name}
        write_beside(folder / SENT, json.dumps(said))
        hand_over(parcel)
        order = {"folder": str(folder), "nodes": parcel.nodes, "cores": parcel.cores}
        write_beside(pilot.folder / INBOX / name, json.dumps(order))


def pilot_of(attempt: Attempt) -> tuple[Path, str] | None:
    """Give the folder of the pilot that an attempt was given to, and its name there."""
    try:
        said = json.loads((attempt.folder / SENT).read_text())
        return Path(said[PILOT]), str(said["order"])
    except (OSError, ValueError, LookupError):
        return None


def take_back(attempt: Attempt) -> bool:
    """Take an order out of the inbox that it is in; False: it is not there any more."""
    if (found := pilot_of(attempt)) is None:
        return False
    folder, name = found
    try:
        (folder / INBOX / name).unlink()
    except OSError:
        return False
    return True


def is_with_pilot(attempt: Attempt) -> bool:
    """Tell whether a pilot has it, or will have it."""
    if (found := pilot_of(attempt)) is None:
        return False
    folder, name = found
    return any((folder / place / name).exists() for place in (TAKEN, INBOX))


def ask_to_end(attempt: Attempt) -> None:
    """Have a pilot end one order and nothing else."""
    if (found := pilot_of(attempt)) is not None:
        with contextlib.suppress(OSError):
            (found[0] / INBOX / f"{attempt.marker}.end").touch()
