from __future__ import annotations

import pytest

from rankwise.launch.commandline import read_command
from rankwise.launch.mpiexec import Family
from rankwise.launch.rewriting import fixes_for, notes_for
from rankwise.launch.shell import apply
from tests.launch.samples import MPIRUN, MPIRUN_OF_KUBERNETES, TORCH_LAUNCH


def mended(line: str, family: Family) -> tuple[str, list[str]]:
    launch = read_command(line, family).launch
    assert launch is not None
    fixes = fixes_for(line, launch, family)
    return apply(line, [fix.edit for fix in fixes]), notes_for(fixes, launch, family)


@pytest.mark.parametrize(
    ("line", "family", "expected"),
    [
        ("mpirun -mca pml ob1 --mca btl ^openib ./a", "mpich", "mpirun ./a"),
        ("mpirun -gmca a b -n 2 ./a", "intel", "mpirun -n 2 ./a"),
        ("mpirun -x A -x B=c ./a", "mpich", "mpirun -genv B=c ./a"),
        ("mpirun -x 'B=c d' ./a", "mpich", "mpirun -genv 'B=c d' ./a"),
        (
            "mpirun -n 1 -x A=b ./a : -n 1 -x A=c ./b",
            "mpich",
            "mpirun -n 1 -env A=b ./a : -n 1 -env A=c ./b",
        ),
        ("mpirun --allow-run-as-root --oversubscribe ./a", "mpich", "mpirun ./a"),
        ("mpirun -bind-to none -map-by slot ./a", "mpich", "mpirun -bind-to none ./a"),
        ("mpirun -bind-to none -map-by slot ./a", "intel", "mpirun -bind-to none -map-by slot ./a"),
        ("mpirun --map-by core ./a", "mpich", "mpirun --map-by core ./a"),
        ("mpirun --map-by core:2 ./a", "mpich", "mpirun --map-by core:2 ./a"),
        ("mpirun --map-by ppr:2:node ./a", "mpich", "mpirun -ppn 2 ./a"),
        ("mpirun --map-by node ./a", "mpich", "mpirun -ppn 1 ./a"),
        ("mpirun -c 4 -wd /x -H h ./a", "mpich", "mpirun -n 4 -wdir /x -hosts h ./a"),
        ("mpirun -npernode 2 ./a", "mpich", "mpirun -ppn 2 ./a"),
        ("mpirun --npernode=2 ./a", "mpich", "mpirun -ppn 2 ./a"),
        ("mpirun --pernode ./a", "mpich", "mpirun -ppn 1 ./a"),
        ("mpirun --report-bindings ./a", "mpich", "mpirun --report-bindings ./a"),
        ("mpirun --report-bindings ./a", "intel", "mpirun ./a"),
        ("mpirun --hostfile h -np 2 ./a -x A", "mpich", "mpirun --hostfile h -np 2 ./a -x A"),
        ("mpirun --rankfile h ./a", "mpich", "mpirun --rankfile h ./a"),
        (
            "mpirun -bind-to none -map-by slot ./a",
            "openmpi4",
            "mpirun -bind-to none -map-by slot ./a",
        ),
        (
            "mpirun -bind-to none --map-by slot ./a",
            "openmpi5",
            "mpirun --bind-to none --map-by slot ./a",
        ),
        ("mpirun -genv A b -env C=d ./a", "openmpi4", "mpirun -x A=b -x C=d ./a"),
        ("mpirun -genv A 'b c' ./a", "openmpi4", "mpirun -x A='b c' ./a"),
        ("mpirun -genvlist A,B -genvall ./a", "openmpi5", "mpirun -x A -x B ./a"),
        (
            "mpirun -f h -ppn 2 -l ./a",
            "openmpi4",
            "mpirun --hostfile h --npernode 2 --tag-output ./a",
        ),
        ("mpirun -mca a b -genv A b ./a", "unknown", "mpirun -mca a b -genv A b ./a"),
        ("mpiexec.hydra -x A ./a", "unknown", "mpiexec.hydra -x A ./a"),
        ("orterun -mca a b ./a", "mpich", "orterun -mca a b ./a"),
        ("torchrun python a.py", "mpich", "torchrun --no_python python a.py"),
        ("torchrun -- python3 a.py", "mpich", "torchrun --no_python -- python3 a.py"),
        ("torchrun --no-python python a.py", "mpich", "torchrun --no-python python a.py"),
        ("torchrun a.py", "mpich", "torchrun a.py"),
        ("torchrun -m python", "mpich", "torchrun -m python"),
        (
            "python -m torch.distributed.launch /x/python3.9 a.py",
            "mpich",
            "python -m torch.distributed.launch --use_env --no_python /x/python3.9 a.py",
        ),
    ],
)
def test_a_line_is_mended_for_the_launcher_that_is_here(
    line: str, family: Family, expected: str
) -> None:
    assert mended(line, family)[0] == expected


def test_every_change_is_named_once_with_what_stood_there() -> None:
    line, notes = mended(MPIRUN_OF_KUBERNETES, "mpich")
    assert line == "mpirun -np 16 -bind-to none python train.py"
    assert notes == [
        "compatibility: run-as-root: `--allow-run-as-root` left out: mpirun is of MPICH, which always allows it",
        "compatibility: map-by: `-map-by slot` left out: mpirun is of MPICH, which places ranks otherwise",
        "compatibility: export: `-x LD_LIBRARY_PATH`, `-x PATH` left out: mpirun is of MPICH, which passes on all variables",
        "compatibility: mca: `-mca pml ob1`, `-mca btl ^openib` left out: mpirun is of MPICH, which has no such parameters",
    ]


def test_open_mpi_5_needs_two_dashes_where_4_did_with_one() -> None:
    _, notes = mended(MPIRUN, "openmpi5")
    assert notes == [
        (
            "compatibility: two-dashes: `-bind-to none` became `--bind-to none`, `-map-by slot` became "
            "`--map-by slot`: mpirun is of Open MPI 5, which needs two dashes"
        )
    ]


def test_open_mpi_4_takes_its_own_options_as_they_are() -> None:
    assert mended(MPIRUN, "openmpi4") == (MPIRUN, [])


def test_a_program_that_torch_takes_for_a_script_is_told() -> None:
    line, notes = mended(TORCH_LAUNCH, "mpich")
    assert line == TORCH_LAUNCH.replace("--use_env ", "--use_env --no_python ")
    assert notes == [
        (
            "compatibility: no-python: `python train.py` names a program, which torch.distributed.launch "
            "takes for a script: --no_python added"
        )
    ]
