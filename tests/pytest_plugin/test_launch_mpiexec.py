"""Which mpiexec is taken, and how it is called, without starting MPI."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rankwise.errors import MpiMissing
from rankwise.launch import mpiexec
from rankwise.launch.mpi import without_job
from rankwise.launch.mpiexec import Family, Mpiexec, find_mpiexec, loaded_library

MPICH = "MPICH Version:      5.0.2\nMPICH Release date: …"
OPEN_MPI_5 = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"
OPEN_MPI_4 = "Open MPI v4.1.8, package: Debian OpenMPI, ident: 4.1.8\0"
INTEL = "Intel(R) MPI Library 2021.18.1 for Linux* OS"
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.27.26 (ANL base 3.4a2)"

SAYS_HYDRA = "HYDRA build details:\n    Version:                                 5.0.2\n"
SAYS_HYDRA_4 = SAYS_HYDRA.replace("5.0.2", "4.0.2")
SAYS_OPEN_MPI_5 = "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/\n"
SAYS_OPEN_MPI_4 = "mpiexec (OpenRTE) 4.1.8\n\nReport bugs to http://www.open-mpi.org/\n"
SAYS_INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n"

# One that is asked although it need not be.
MUST_NOT_BE_ASKED = "echo asked >&2; kill -9 $$"


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the mpiexecs of this machine be out of sight."""
    monkeypatch.delenv(mpiexec.OVERRIDE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python" / "bin" / "python"))


def install(path: Path, says: str, *, script: str = "") -> str:
    """Make a command that gives a version of itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.with_name(f"{path.name}.says")
    text.write_text(says)
    # Without PATH there is no cat.
    script = script or f"while read -r line; do echo \"$line\"; done < '{text}'"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


# Which one


@pytest.mark.parametrize(
    ("library", "says", "family"),
    [
        (MPICH, SAYS_HYDRA, "mpich"),
        (OPEN_MPI_5, SAYS_OPEN_MPI_5, "openmpi5"),
        (OPEN_MPI_4, SAYS_OPEN_MPI_4, "openmpi4"),
        (INTEL, SAYS_INTEL, "intel"),
    ],
)
@pytest.mark.parametrize("name", ["mpiexec", "mpirun", "mpiexec.openmpi", "mpiexec.hydra"])
def test_the_one_on_path_that_is_of_the_librarys_mpi_is_taken(
    library: str, says: str, family: Family, name: str, tmp_path: Path
) -> None:
    path = install(tmp_path / "path" / name, says)
    assert find_mpiexec(library, None) == Mpiexec(path=path, family=family)


def test_what_it_writes_to_stderr_does_not_hide_its_version(tmp_path: Path) -> None:
    says = SAYS_HYDRA.replace("\n", "\\n")
    advice = f"echo '{SAYS_OPEN_MPI_4.splitlines()[0]} is here, too' >&2; printf '{says}'"
    path = install(tmp_path / "path" / "mpiexec", "", script=advice)
    assert find_mpiexec(MPICH, None) == Mpiexec(path=path, family="mpich")


def test_those_of_other_mpis_and_versions_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in "abcde"]
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
    install(folders[0] / "mpiexec", SAYS_OPEN_MPI_4)
    install(folders[1] / "mpiexec", SAYS_HYDRA_4)
    install(folders[2] / "mpiexec", "something else\n")
    install(folders[3] / "mpiexec", SAYS_INTEL)
    install(folders[4] / "mpiexec", SAYS_OPEN_MPI_5)
    path = install(folders[4] / "mpiexec.mpich", SAYS_HYDRA)
    assert find_mpiexec(MPICH, None).path == path


def test_the_one_beside_python_goes_before_path(tmp_path: Path) -> None:
    install(tmp_path / "path" / "mpiexec", SAYS_HYDRA)
    path = install(tmp_path / "python" / "bin" / "mpiexec", SAYS_HYDRA)
    assert find_mpiexec(MPICH, None).path == path


@pytest.mark.parametrize("lib", ["lib", "lib64"])
def test_the_one_beside_the_library_is_taken_without_a_question(tmp_path: Path, lib: str) -> None:
    install(tmp_path / "path" / "mpiexec", SAYS_INTEL)
    path = install(tmp_path / "mpi" / "bin" / "mpiexec", "", script=MUST_NOT_BE_ASKED)
    found = find_mpiexec(INTEL, str(tmp_path / "mpi" / lib / "libmpi.so.12"))
    assert found == Mpiexec(path=path, family="intel")


def test_where_two_mpis_are_in_one_place_it_is_asked(tmp_path: Path) -> None:
    library = tmp_path / "mpi" / "lib" / "libmpi.so.12"
    library.parent.mkdir(parents=True)
    library.touch()
    library.with_name("libmpi.so.40").touch()
    install(tmp_path / "mpi" / "bin" / "mpiexec", SAYS_OPEN_MPI_5)
    path = install(tmp_path / "mpi" / "bin" / "mpiexec.hydra", SAYS_HYDRA)
    assert find_mpiexec(MPICH, str(library)).path == path


def test_one_further_up_from_the_library_is_asked(tmp_path: Path) -> None:
    library = str(tmp_path / "usr" / "lib" / "x86_64-linux-gnu" / "libmpi.so.40.30.4")
    install(tmp_path / "usr" / "bin" / "mpiexec", SAYS_HYDRA)
    path = install(tmp_path / "usr" / "bin" / "mpiexec.openmpi", SAYS_OPEN_MPI_4)
    assert find_mpiexec(OPEN_MPI_4, library).path == path


@pytest.mark.parametrize("place", ["/usr/lib/libmpi.so.12", "/usr/local/lib64/libmpi.so.12"])
def test_a_place_that_mpis_share_proves_nothing(place: str) -> None:
    assert mpiexec._own_prefix(place) is None
    assert mpiexec._own_prefix(f"/opt{place}") is not None


def test_a_file_that_cannot_be_run_is_not_taken(tmp_path: Path) -> None:
    Path(install(tmp_path / "path" / "mpiexec", SAYS_HYDRA)).chmod(0o644)
    path = install(tmp_path / "path" / "mpirun", SAYS_HYDRA)
    assert find_mpiexec(MPICH, None).path == path


def test_a_library_that_is_not_known_is_started_by_the_first_there_is(tmp_path: Path) -> None:
    path = install(tmp_path / "path" / "mpiexec", "", script=MUST_NOT_BE_ASKED)
    found = find_mpiexec(CRAY, None)
    assert found == Mpiexec(path=path, family="unknown")
    assert found.command(3) == [path, "-n", "3"]
    assert found.environment({}) == {}


def test_the_users_own_choice_goes_before_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "path" / "mpiexec", SAYS_HYDRA)
    path = install(tmp_path / "elsewhere" / "my-mpiexec", SAYS_OPEN_MPI_5)
    monkeypatch.setenv("RANKWISE_MPIEXEC", path)
    assert find_mpiexec(MPICH, None) == Mpiexec(path=path, family="openmpi5")


def test_the_users_own_choice_may_be_a_wrapper_that_does_not_say_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install(tmp_path / "path" / "wrapped", "usage: wrapped\n")
    monkeypatch.setenv("RANKWISE_MPIEXEC", "wrapped")
    assert find_mpiexec(INTEL, None) == Mpiexec(path=path, family="intel")


def test_a_choice_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWISE_MPIEXEC", "/nowhere/mpiexec")
    with pytest.raises(MpiMissing, match=r"RANKWISE_MPIEXEC is '/nowhere/mpiexec'"):
        find_mpiexec(MPICH, None)


def test_without_a_fitting_one_the_message_names_what_was_looked_at(tmp_path: Path) -> None:
    other = install(tmp_path / "path" / "mpiexec", SAYS_OPEN_MPI_4)
    odd = install(tmp_path / "path" / "mpirun", "")
    with pytest.raises(MpiMissing) as raised:
        find_mpiexec(MPICH, "/opt/mpich/lib/libmpi.so.12")
    message = str(raised.value)
    assert "mpi4py uses MPICH 5.0.2 (/opt/mpich/lib/libmpi.so.12)" in message
    assert f"{other}: of Open MPI 4\n" in message
    assert f"{odd}: of an unknown MPI\n" in message
    assert "RANKWISE_MPIEXEC=" in message
    assert "pip install mpich" in message


def test_without_any_the_message_says_so() -> None:
    with pytest.raises(MpiMissing, match="there is none at all"):
        find_mpiexec(OPEN_MPI_5, None)


# How it is called


@pytest.mark.parametrize("family", ["mpich", "openmpi4", "openmpi5", "intel", "unknown"])
def test_the_number_of_ranks_is_the_last_word_before_the_program(family: Family) -> None:
    command = Mpiexec(path="/x/mpiexec", family=family).command(7)
    assert command[0] == "/x/mpiexec"
    assert command[-2:] == ["-n", "7"]


@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
def test_open_mpi_has_room_for_all_ranks_on_this_machine_and_binds_none(family: Family) -> None:
    command = " ".join(Mpiexec(path="mpiexec", family=family).command(64))
    assert "--host localhost:64" in command
    assert "--bind-to none" in command


@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
def test_what_only_makes_jobs_faster_leaves_the_users_settings_alone(family: Family) -> None:
    launcher = Mpiexec(path="mpiexec", family=family)
    assert launcher.environment({})["OMPI_MCA_btl"] == "^ofi"
    assert launcher.environment({})["OMPI_MCA_pml"] == "ob1"
    mine = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_mpi_yield_when_idle": "0", "OMPI_MCA_pml": ""}
    assert not launcher.environment(mine).keys() & mine.keys()


@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
@pytest.mark.parametrize(("starves", "value"), [(True, "0"), (False, "1")])
def test_waiting_ranks_give_way_only_where_others_are_not_starved_by_it(
    family: Family, starves: bool, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwise.launch.mpiexec.does_yielding_starve", lambda: starves)
    launcher = Mpiexec(path="mpiexec", family=family)
    assert launcher.environment({})["OMPI_MCA_mpi_yield_when_idle"] == value


def test_intel_mpi_binds_no_rank_whatever_the_user_has_set() -> None:
    launcher = Mpiexec(path="mpiexec", family="intel")
    assert launcher.environment({"I_MPI_PIN": "1"})["I_MPI_PIN"] == "0"


# The surroundings


@pytest.mark.parametrize(
    "name",
    [
        *("PMI_RANK", "PMI_FD", "PMIX_NAMESPACE", "PMIX_SERVER_URI2", "HYDI_CONTROL_FD"),
        *("HYDRA_BSTRAP_UPSTREAM_FD", "MPI_LOCALRANKID", "PRTE_LAUNCHED", "PRTE_SHARED_FS"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_UNIVERSE_SIZE"),
        *("OMPI_MCA_ess", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_pmix"),
        *("PALS_RANKID", "PALS_APID", "MV2_COMM_WORLD_RANK", "I_MPI_HYDRA_UUID"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_GTIDS"),
    ],
)
def test_what_tells_of_a_job_is_left_out(name: str) -> None:
    assert without_job({name: "1", "HOME": "/root"}) == {"HOME": "/root"}


def test_what_the_user_sets_stays() -> None:
    mine = {
        "OMPI_MCA_btl": "tcp",
        "OMPI_MCA_pml": "ucx",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": "core",
        "OPAL_PREFIX": "/opt/openmpi",
        "FI_PROVIDER": "tcp",
        "UCX_TLS": "sm",
        "I_MPI_FABRICS": "shm",
        "I_MPI_PIN": "1",
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "SLURM_JOB_ID": "77",
        "SLURM_NTASKS": "4",
        "PATH": "/usr/bin",
    }
    assert without_job(mine) == mine


def test_the_given_environment_is_not_changed() -> None:
    given = {"PMI_RANK": "0"}
    assert without_job(given) == {}
    assert given == {"PMI_RANK": "0"}


def test_open_mpis_place_is_forgotten_only_within_a_job_of_its() -> None:
    place = {"OPAL_PREFIX": "/opt/openmpi"}
    assert without_job(place | {"OMPI_COMM_WORLD_RANK": "0"}) == {}
    assert without_job(place | {"PMI_RANK": "0"}) == place


# The library


def test_a_process_without_mpi_has_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    give_maps(
        monkeypatch, "7f00-7f01 r-xp 00000000 08:01 12   /usr/lib/libc.so.6\n7f02-7f03 rw-p\n"
    )
    assert loaded_library() is None


@pytest.mark.parametrize(
    "path",
    [
        "/work/main/.venv/lib/libmpi.so.12",
        "/usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4",
        "/usr/lib/x86_64-linux-gnu/libmpich.so.12.3.0",
        "/a folder/of mine/lib/libmpi.so",
        "/opt/cray/pe/mpich/8.1.27/ofi/gnu/9.1/lib/libmpi_gnu_91.so.12.0.0",
        "/home/me/libmpifoo/lib/libmpi_abi.so.1",
    ],
)
def test_the_library_is_read_from_the_map_of_the_process(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_maps(
        monkeypatch,
        "7f00-7f01 r-xp 00000000 08:01 12                         /usr/lib/libmpi_mpifh.so.40\n"
        "7f00-7f01 r-xp 00000000 08:01 12                         /x/libmpi.d/python.so\n"
        f"7f02-7f03 r-xp 00001000 08:01 13                         {path}\n",
    )
    assert loaded_library() == path


def give_maps(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def read_text(path: Path, **_: str) -> str:
        assert str(path) == "/proc/self/maps"
        return text

    monkeypatch.setattr(Path, "read_text", read_text)
