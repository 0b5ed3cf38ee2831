"""Become the controller of a pool; or, in copies of this process, something else of it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rankwise.launch.mpi import forget_job
from rankwise.testing import wire
from rankwise.testing.crew.forkserver import ForkServer
from rankwise.testing.crew.keeper import Keeper, prevent_start, usual_environment
from rankwise.testing.crew.member import (
    INVITATION,
    KEEPER,
    Invitation,
    MemberSession,
    Membership,
    name_on_node,
    node_name,
)
from rankwise.testing.crew.wishes import Wishes
from rankwise.testing.crew.witness import Witness

if TYPE_CHECKING:
    from rankwise.testing.crew.slurm_site import SlurmSite


def start_controller(config: pytest.Config, wishes: Wishes, *, collects_garbage: bool) -> None:
    """Make this process the controller of a pool.

    Comes back in other processes too: in the template and in ranks, which are copies of this one.
    They go on as members.
    """
    forget_job()
    folder = Path(tempfile.mkdtemp(prefix="rankwise-"))
    secret = secrets.token_hex(32)
    listener, address = _listen(wishes, folder)
    doors = {name: wire.listen_on_file(folder / name) for name in ("warm", "cold")}
    own, theirs = socket.socketpair()
    template, template_end = socket.socketpair()
    invitation = Invitation(
        address=address,
        secret=secret,
        folder=str(folder),
        width=wishes.width,
        settings=MemberSession.settle(config),
    )
    if wishes.binds:
        # Libraries that are loaded for all ranks must not start more threads than a rank has cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.stdout.flush()
    sys.stderr.flush()
    keeper_pid = os.fork()
    if not keeper_pid:
        own.close()
        template.close()
        listener.close()
        os.setsid()
        line, template_line = wire.Channel(theirs), template_end
        _keep(
            config,
            wishes,
            invitation,
            doors=doors,
            line=line,
            template_line=template_line,
            collects_garbage=collects_garbage,
        )
        return
    theirs.close()
    template_end.close()
    for door, _ in doors.values():
        door.close()
    paths = {name: door_address.path for name, (_, door_address) in doors.items()}
    # The other processes are at work meanwhile.
    from rankwise.testing.crew.controller import ControllerSession
    from rankwise.testing.crew.outside import stand_in_for_mpi

    session = ControllerSession(
        config,
        wishes,
        invitation,
        folder,
        site=_make_site(config, wishes, invitation),
        listener=listener,
        keeper=own,
        template=template,
        keeper_pid=keeper_pid,
        doors=paths,
    )
    config.pluginmanager.register(session, "rankwise-controller")
    stand_in_for_mpi()


def _listen(wishes: Wishes, folder: Path) -> tuple[socket.socket, wire.Address]:
    """Listen where all ranks can reach us, and nowhere else."""
    if wishes.slurm is None:
        return wire.listen_on_file(folder / "controller")
    from rankwise.testing.crew.allocation import reachable_address

    return wire.listen_on_host(reachable_address(wishes.slurm))


def _make_site(config: pytest.Config, wishes: Wishes, invitation: Invitation) -> SlurmSite | None:
    if wishes.slurm is None:
        return None
    from rankwise.testing.crew.slurm_site import SlurmSite

    return SlurmSite(wishes, invitation, clean_command(config))


def keep_on_node(config: pytest.Config, invitation: Invitation, *, collects_garbage: bool) -> None:
    """Be the keeper of one node; comes back in its copies, the template and ranks."""
    forget_job()
    wishes = Wishes(config, width=invitation.width)
    folder = invitation.own_folder
    folder.mkdir(mode=0o700)
    doors = {name: wire.listen_on_file(folder / name) for name in ("warm", "cold")}
    name = name_on_node(KEEPER, node_name())
    line = wire.Channel.open(invitation.address, invitation.secret, name)
    line.send({"kind": "here", "pid": os.getpid(), "node": node_name()})
    _keep(
        config,
        wishes,
        invitation,
        doors=doors,
        line=line,
        template_line=None,
        collects_garbage=collects_garbage,
    )


def _keep(
    config: pytest.Config,
    wishes: Wishes,
    invitation: Invitation,
    *,
    doors: dict[str, tuple[socket.socket, wire.Address]],
    line: wire.Channel,
    template_line: socket.socket | None,
    collects_garbage: bool,
) -> None:
    """Be a keeper; comes back in its copies, the template and ranks without one."""
    folder = invitation.own_folder
    witness = Witness(folder) if invitation.is_distant else None
    usual = usual_environment()
    command: Sequence[str] = ()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not wishes.warm:
        command = clean_command(config)
        os.environ[INVITATION] = invitation.to_text()
    try:
        keeper = Keeper(
            line,
            invitation.secret,
            warm=doors["warm"][0],
            cold=doors["cold"][0],
            quiet=wishes.quiet,
            folder=folder,
            command=command,
        )
        keeper.witness = witness
        if invitation.is_distant:
            # Slurm ends it so when the job is over, and there is a folder to remove.
            signal.signal(signal.SIGTERM, lambda _number, _frame: keeper.end())
        prevent_start()
        errand = None
        # The template is what everybody waits for: it does not wait for MPI to be loaded here.
        # In an allocation that is there, those on the nodes are as soon at it.
        is_needed = wishes.slurm is None or not wishes.slurm.job
        is_template = wishes.warm and is_needed and keeper.start_template()
        if not is_template:
            if template_line is not None:
                template_line.close()
            if invitation.is_distant and wishes.uses_srun:
                keeper.name_mpi()
            elif wishes.slurm is None:
                keeper.prepare_mpi()
            errand = keeper.serve()
    except BaseException:  # a copy of pytest must not go on as pytest
        import traceback

        traceback.print_exc()
        os._exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    membership = Membership(invitation)
    server = None
    if errand is None:
        if wishes.quiet:
            _write_to(folder / "template.log")
        membership.join_as_template(template_line if is_template else None)
        server = ForkServer(membership.channel, invitation.secret)
        server.witness = witness
        server.open_door(doors["warm"][0])
        doors["cold"][0].close()
    else:
        errand.take_place(usual)
        membership.join_world()
    MemberSession.enrol(
        config, membership, collects_garbage=collects_garbage, server=server, usual=usual
    )


def clean_command(config: pytest.Config) -> list[str]:
    """Give the command that starts the same pytest again."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"import pytest; sys.exit(pytest.main({arguments!r}))"
    )
    return [sys.executable, "-c", code]


def _write_to(path: Path) -> None:
    """Let what this process prints go to a file."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target in (1, 2):
        os.dup2(number, target)
    os.close(number)
