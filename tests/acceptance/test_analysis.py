"""The analysis of a sweep: what it gets, what becomes of what it writes, and when it fails."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import PYTHON

from rankwise.reports.html import html_report
from rankwise.reports.model import ReportData
from rankwise.reports.pdf import pdf_report
from rankwise.store import Store
from tests.acceptance.jobs import Shop, opened, wait_for
from tests.notify.mailboxes import mail_server
from tests.seeds.sentences import sentence

PAGE = "theta-ci-performance"
# One size fails until it is mended; the others measure themselves.
SWEEP = """\
type: Sweep
name: speed
command: test ${{size}} != 3 -o -e mended && echo "took ${{size}}.${{trial}} s"
parameters: {size: [1, 2, 3]}
trials: 2
warmup: 1
metrics: [{name: time, unit: s, better: lower, pattern: 'took (?P<value>[0-9.]+) s'}]
analysis: python3 summary.py
report: when-complete
"""
SUMMARY = """\
import csv, os
rows = list(csv.DictReader(open(os.environ["RANKWISE_SAMPLES"])))
values = [float(row["value"]) for row in rows if row["value"]]
if not os.path.exists("told"):
    with open(os.environ["RANKWISE_ANALYSIS"] + "/summary.md", "w") as page:
        page.write(f"# In short\\n\\nThe greatest is **{max(values)} s** of {len(rows)} trials.\\n")
    with open(os.environ["RANKWISE_ANALYSIS"] + "/plot.svg", "w") as plot:
        plot.write('<svg xmlns="http://www.w3.org/2000/svg" width="20" height="9"></svg>')
print("printed:", len(values))
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path / "a place's") as shop:
        shop.write("sweep.yaml", SWEEP)
        shop.write("summary.py", SUMMARY)
        yield shop
        shop.wait_until_empty()


def states(shop: Shop, run: str) -> dict[str, str]:
    with Store.open(shop.folder / ".rankwise", read_only=True) as store:
        return {row.key: str(row.state) for row in store.task_rows(run)}


def samples(shop: Shop, run: str) -> list[dict[str, str]]:
    """Return the rows that the analysis of a run got."""
    folder = shop.folder / ".rankwise" / "runs" / run / "analysis" / "1" / "analysis"
    with (folder / "samples.csv").open() as file:
        return list(csv.DictReader(file))


def reports(shop: Shop, run: str) -> tuple[str, bytes]:
    """Return the reports that were written when the run was over."""
    folder = shop.folder / ".rankwise" / "runs" / run
    return (folder / "report.html").read_text(), (folder / "report.pdf").read_bytes()


@sentence(
    PAGE,
    ran="rankwise run sweep.yaml: `analysis: python3 summary.py`, `report: when-complete`",
    said='An analysis job as a final "summary" stage organizes the data in a readable format.',
)
@sentence(
    PAGE,
    ran="rankwise run sweep.yaml, and with --failed what failed, again and alone",
    said="Balsam defines a big parameter sweep, and lets the ensemble execute automatically.",
)
def test_an_analysis_has_the_samples_and_its_plots_and_text_are_in_the_reports(shop: Shop) -> None:
    said = shop.rankwise("run", "sweep.yaml")
    assert said.exit_code == 1, said
    assert states(shop, "speed-1")["analysis"] == "passed", said
    rows = samples(shop, "speed-1")
    # The warm-up is not among them; a trial that failed is there, without a value.
    assert [(row["case"], row["value"]) for row in rows] == [
        *(("size-1.t1", "1.1"), ("size-2.t1", "2.1"), ("size-3.t1", "")),
        *(("size-1.t2", "1.2"), ("size-2.t2", "2.2"), ("size-3.t2", "")),
    ]
    page, pdf = reports(shop, "speed-1")
    assert "<h3>In short</h3><p>The greatest is <strong>2.2 s</strong> of 6 trials.</p>" in page
    assert 'alt="plot.svg" src="data:image/svg+xml;base64,' in page
    assert "printed: 4" not in page[: page.index('id="failed"')]
    assert pdf.startswith(b"%PDF-")
    # What failed is measured again, alone, and the analysis has all.
    (shop.folder / "mended").touch()
    said = shop.rankwise("run", "sweep.yaml", "--failed")
    assert said.exit_code == 0, said
    assert set(states(shop, "speed-2")) == {"size-3.w1", "size-3.t1", "size-3.t2", "analysis"}
    rows = samples(shop, "speed-2")
    assert sorted((row["run"], row["value"]) for row in rows) == [
        *(("speed-1", value) for value in ("1.1", "1.2", "2.1", "2.2")),
        *(("speed-2", value) for value in ("3.1", "3.2")),
    ]
    assert "<strong>3.2 s</strong> of 6 trials" in reports(shop, "speed-2")[0]
    # Alone, it has the same; without a page, what it prints is its text.
    (shop.folder / "told").touch()
    said = shop.rankwise("run", "sweep.yaml", "--only", "analysis")
    assert said.exit_code == 0, said
    assert states(shop, "speed-3") == {"analysis": "passed"}
    assert len(samples(shop, "speed-3")) == 6
    assert '<pre tabindex="0">printed: 6</pre>' in reports(shop, "speed-3")[0]


def test_an_analysis_that_fails_has_its_own_verdict_and_the_samples_stay(shop: Shop) -> None:
    (shop.folder / "mended").touch()
    shop.write("summary.py", f"{SUMMARY}\nraise SystemExit('no such column')\n")
    said = shop.rankwise("run", "sweep.yaml")
    assert said.exit_code == 1, said
    assert "analysis failed: analysis exited with code 1" in said.output, said
    found = states(shop, "speed-1")
    assert found.pop("analysis") == "failed"
    assert set(found.values()) == {"passed"}
    with Store.open(shop.folder / ".rankwise", read_only=True) as store:
        assert len(store.samples_of_run("speed-1")) == 6
    page, pdf = reports(shop, "speed-1")
    # What it had written before is shown, below the word that it failed.
    part = page[page.index('id="analysis"') : page.index('id="failed"')]
    assert "analysis failed</strong> analysis exited with code 1" in part
    assert "<h3>In short</h3>" in part
    assert pdf.startswith(b"%PDF-")
    # The trials are not measured again for it.
    shop.write("summary.py", SUMMARY)
    said = shop.rankwise("run", "sweep.yaml", "--failed")
    assert (said.exit_code, states(shop, "speed-2")) == (0, {"analysis": "passed"}), said


def test_where_nothing_was_measured_the_analysis_says_so(shop: Shop) -> None:
    shop.write("sweep.yaml", SWEEP.replace("[1, 2, 3]", "[3]"))
    said = shop.rankwise("run", "sweep.yaml")
    assert said.exit_code == 1, said
    assert "no trial has passed: there is nothing to analyse" in said.output + said.errors, said


def test_a_notebook_is_an_analysis_too(shop: Shop) -> None:
    (shop.folder / "mended").touch()
    cells: list[dict[str, object]] = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["# Of *all*\n"]},
        {
            "cell_type": "code",
            "id": "b",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": [
                "import csv, os\n",
                "from IPython.display import SVG, Markdown, display\n",
                "rows = list(csv.DictReader(open(os.environ['RANKWISE_SAMPLES'])))\n",
                "print('rows:', len(rows))\n",
                "display(Markdown('| value |\\n| --- |\\n| **' + rows[0]['value'] + '** |'))\n",
                'SVG(\'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>\')\n',
            ],
        },
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    shop.write("of it.ipynb", json.dumps(notebook))
    shop.write("sweep.yaml", SWEEP.replace("python3 summary.py", "of it.ipynb"))
    path = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"
    said = shop.rankwise("run", "sweep.yaml", variables={"PATH": path})
    assert said.exit_code == 0, said
    page, _ = reports(shop, "speed-1")
    part = page[page.index('id="analysis"') : page.index('id="figures"')]
    assert "<h3>Of <em>all</em></h3>" in part
    assert "rows: 6</pre>" in part
    assert "<th>value</th></tr><tr><td><strong>1.1</strong></td>" in part
    assert part.count("<img ") == 1


@sentence(
    PAGE,
    ran="rankwise run pipeline.yaml --notify team, kill -9 of it while the benchmarks run",
    said="Ideally, the full set of performance results is mailed to us automatically.",
)
def test_the_mail_of_a_detached_sweep_comes_though_the_client_was_killed(shop: Shop) -> None:
    (shop.folder / "mended").touch()
    waiting = SWEEP.replace("command: ", "command: while [ ! -e go ]; do sleep 0.05; done; ")
    shop.write("sweep.yaml", waiting)
    shop.write(
        "pipeline.yaml",
        """\
        type: Pipeline
        name: nightly
        stages:
          benchmark: {sweep: sweep.yaml, detach: true}
          wait: touch submitted; echo yes > submitted; sleep 600
        """,
    )
    with mail_server() as mailbox:
        shop.write(
            "rankwise.toml",
            f"""\
            [notify.team]
            host = "127.0.0.1"
            port = {mailbox.port}
            security = "none"
            from = "robot@example.org"
            to = ["team@example.org"]
            """,
        )
        client = shop.start("run", "pipeline.yaml", "--notify", "team")
        wait_for(shop.folder / "submitted")
        assert states(shop, "nightly-benchmark-1")["benchmark.size-1.w1"] in ("queued", "running")
        os.kill(client.pid, signal.SIGKILL)
        client.communicate(timeout=60)
        for process in shop.processes():
            if "sleep 600" in " ".join(process.cmdline()):
                process.kill()
        (shop.folder / "go").touch()
        deadline = time.monotonic() + 120
        while not mailbox.letters:
            assert time.monotonic() < deadline, states(shop, "nightly-benchmark-1")
            time.sleep(0.1)
    [letter] = mailbox.letters
    assert str(letter["Subject"]).startswith("nightly-benchmark-1 passed"), letter["Subject"]
    pdf, table = letter.iter_attachments()
    assert pdf.get_filename() == "nightly-benchmark-1.pdf"
    content = pdf.get_content()
    assert content.startswith(b"%PDF-")
    # Also the full set of results.
    assert table.get_filename() == "nightly-benchmark-1.csv"
    rows = list(csv.DictReader(table.get_content().splitlines()))
    assert sorted(row["value"] for row in rows if row["value"]) == [
        *("1.1", "1.2", "2.1", "2.2", "3.1", "3.2")
    ]
    # The PDF of the mail is that of the run, with what its analysis has made.
    with Store.open(shop.folder / ".rankwise", read_only=True) as store:
        data = ReportData(store=store, run=store.run("nightly-benchmark-1"), now=time.time())
        assert [task.key for task, _ in data.analyses] == ["benchmark.analysis"]
        assert "In short" in html_report(data)
        assert abs(len(pdf_report(data)) - len(content)) < 0.2 * len(content)
