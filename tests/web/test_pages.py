"""What pages show, as a browser without scripts sees it."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from bench import served_runs
from rankwise.reports.failures import RunExplanation, explain_run
from rankwise.store import State, Store
from rankwise.store.queries import TaskNode
from rankwise.web import pages, runs
from rankwise.web.app import PAGES
from rankwise.web.graph import draw_graph, lay_out
from tests.web.conftest import KEYS, client

ADDRESSES = (
    "/",
    "/runs/nightly-1",
    "/runs/checks-1/task?task=halo",
    "/runs/checks-1/tests",
    "/runs/checks-1/failures",
    "/runs/release-1/graph",
    "/runs/everywhere-1/matrix",
    "/runs/checks-1/timeline",
    "/runs/checks-1/logs?task=halo",
    "/runs/checks-1/document",
    "/trends",
    "/trends?metric=latency",
    "/compare?a=osu-1&b=osu-12",
)
HOSTILE_ADDRESSES = (
    "/",
    *(f"/runs/hostile-1{part}" for part in ("", "/failures", "/timeline", "/logs", "/document")),
    "/runs/hostile-1?words=%3Cscript%3Ealert(1)%3C/script%3E&state=%22onload=x",
    "/?tag=%22%3E%3Cscript%3E&kind='",
    "/trends",
    "/compare?a=%3Cscript%3E&b=hostile-1",
)


class Elements(HTMLParser):
    """Collects the elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def attributes(self, name: str) -> list[str]:
        return [value for _, attrs in self.found if (value := attrs.get(name)) is not None]


def rows(text: str) -> list[str]:
    """Return the names in the first column of the table of tasks, tests or runs."""
    return re.findall(r'<th scope="row" class="k">(?:<a[^>]*>|<details.*?<summary>)?([^<]*)', text)


def test_every_page_is_looked_at_here() -> None:
    shapes = {re.sub(r"/runs/[^/?]+", "/runs/{run}", one.partition("?")[0]) for one in ADDRESSES}
    assert shapes == set(PAGES)


@pytest.mark.parametrize("path", ADDRESSES)
def test_pages_have_landmarks_and_one_head(visitor: TestClient, path: str) -> None:
    answer = visitor.get(path)
    assert answer.status_code == 200, path
    elements = Elements(answer.text)
    tags = [tag for tag, _ in elements.found]
    assert [tags.count(tag) for tag in ("main", "h1", "header", "footer")] == [1] * 4
    ids = elements.attributes("id")
    assert len(ids) == len(set(ids))
    assert ("a", {"href": "#content", "class": "skip"}) in elements.found
    assert "content" in ids
    # Each table says what it is, and each of its heads what it is the head of.
    # (The table of a timeline is in a fold that says so.)
    assert tags.count("table") == tags.count("caption") + path.endswith("timeline")
    assert all("scope" in attrs for tag, attrs in elements.found if tag == "th")
    assert not {name for _, attrs in elements.found for name in attrs if name.startswith("on")}
    assert [attrs for tag, attrs in elements.found if tag == "script" and "src" not in attrs] == []


@pytest.mark.parametrize("path", ADDRESSES)
def test_links_of_pages_lead_somewhere(visitor: TestClient, path: str) -> None:
    links = {
        link
        for link in Elements(visitor.get(path).text).attributes("href")
        if link.startswith("/") and "/log-stream" not in link
    }
    assert links
    # Tables have the same link for every row.
    kinds = {re.sub(r"\d+", "0", link): link for link in links}
    wrong = [link for link in sorted(kinds.values())[:25] if visitor.get(link).status_code != 200]
    assert wrong == []


def test_a_change_while_a_page_is_made_is_news_for_that_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path) as store:
        served_runs.add_many(store, tasks=3, done=1, at=1e9)
        [run] = store.runs()

        def explain_slowly(*given: Any, **more: Any) -> RunExplanation:
            found = explain_run(*given, **more)
            with Store.open(tmp_path) as other:
                other.want_cancel(run.id, now=2e9)
            return found

        monkeypatch.setattr(runs, "explain_run", explain_slowly)
        with client(tmp_path) as visitor:
            visitor.cookies.set(KEYS.name, KEYS.cookie)
            text = visitor.get(f"/runs/{run.id}/failures").text
        (seen,) = re.findall(r"data-changes=[^ ]*seen=(\d+)", text)
        assert int(seen) < store.last_event(run.id)


def test_runs_are_found_by_outcome_kind_name_and_tag(visitor: TestClient) -> None:
    def found(query: str) -> list[str]:
        return rows(visitor.get(f"/?{query}").text)

    assert found("state=open") == ["nightly-1", "release-1"]
    assert found("state=red") == ["checks-1", "everywhere-1", "hostile-1"]
    assert found("kind=Matrix") == ["everywhere-1"]
    assert found("words=OSU+1") == ["osu-12", "osu-11", "osu-10", "osu-1"]
    assert found("words=everywhere.yaml") == ["everywhere-1"]
    assert "osu-3" not in found("tag=git.commit%3D3f2a91c0d4e5")
    assert "checks-1" in found("tag=git.commit%3D3f2a91c0d4e5")
    assert found("tag=nothing") == found("words=nothing") == found("kind=none") == []
    assert len(found("state=nonsense")) == 17


def test_tasks_come_in_pages_filtered_and_sorted(visitor: TestClient) -> None:
    def found(query: str) -> list[str]:
        return rows(visitor.get(f"/runs/nightly-1?{query}").text)

    assert found("") == [f"case-{number:05}" for number in range(50)]
    assert found("page=3") == [f"case-{number:05}" for number in range(100, 130)]
    assert found("page=nonsense") == found("page=-1") == found("page=0") == found("")
    assert found("page=99999999") == []
    assert found("state=failed") == ["case-00041"]
    assert found("words=exit+code") == ["case-00041"]
    assert found("state=open") == [f"case-{number:05}" for number in range(101, 130)]
    assert found("order=nonsense") == found("order=plan")
    assert found("order=name&words=0000") == [f"case-{number:05}" for number in range(10)]
    longest, shortest = found("order=longest&state=passed"), found("order=shortest&state=passed")
    assert longest[:3] == list(reversed(found("order=shortest&state=passed&page=2")))[:3]
    assert longest[0] != shortest[0]
    text = visitor.get("/runs/nightly-1?order=shortest").text
    assert 'aria-sort="ascending"><a href="/runs/nightly-1?order=longest"' in text
    assert "101 of 130 done, 77%" in text
    assert "1 to 50 of 130 tasks" in text


def test_single_tests_are_shown_with_what_they_say(visitor: TestClient) -> None:
    text = visitor.get("/runs/checks-1/tests?state=failed").text
    assert rows(text) == ["tests/halo.py::test_reduce"]
    assert "E   assert 3 == 4" in text
    assert "36 tests: 1 failed, 35 passed" in text
    first = rows(visitor.get("/runs/checks-1/tests?order=longest").text)[0]
    assert first.endswith("::test_restart")


def test_a_task_shows_its_attempts_and_processes(visitor: TestClient) -> None:
    text = visitor.get("/runs/checks-1/task?task=halo").text
    assert "exit code 1 (to blame)" in text
    assert text.count("ended by rankwise") == 3
    assert "python solve.py" in text
    assert "rankwise run /home/me/solver/checks.yaml --only halo" in text
    assert "log of rank 3" in text


def test_the_page_of_failures_names_the_rank_and_the_reason(visitor: TestClient) -> None:
    text = visitor.get("/runs/checks-1/failures").text
    assert "halo: rank 0 exited with code 1" in text
    assert "MPI_ERR_TRUNCATE" in text
    assert '<span class="a1">' in text
    assert "3 tasks: needs mpi-tests, failed" in visitor.get("/runs/release-1/failures").text
    assert "Nothing is wrong." in visitor.get("/runs/osu-1/failures").text


def test_a_graph_has_every_task_and_says_the_same_in_words(visitor: TestClient) -> None:
    text = visitor.get("/runs/release-1/graph").text
    assert text.count('class="node ') == 10
    assert text.count('class="edge"') == 12
    assert "<td>unit-tests and mpi-tests</td>" in text
    assert ">Graph</a>" not in visitor.get("/runs/checks-1").text


def test_a_matrix_has_a_row_for_each_runtime(visitor: TestClient) -> None:
    text = visitor.get("/runs/everywhere-1/matrix").text
    assert text.count('<td class="cell ') == 9
    assert "No module named &#39;h5py&#39;" in text
    assert "9 cells: 7 passed, 1 failed, 1 " in text
    assert "no matrix" in visitor.get("/runs/checks-1/matrix").text


def test_trends_mark_changes(visitor: TestClient) -> None:
    text = visitor.get("/trends?metric=latency&name=osu").text
    assert text.count('class="change"') == 2
    assert "since <a" in text
    assert 'href="/runs/osu-9"' in text
    assert "regressed" in text
    one = visitor.get("/trends?metric=latency&words=size%3D8").text
    assert one.count("<figure") == 1


def test_trends_without_numpy_are_drawn_and_say_what_is_missing(
    visitor: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "numpy", None)
    text = visitor.get("/trends?metric=latency&name=osu&words=").text
    assert text.count("<figure") == 2
    assert "rankwise[measure]" in text


def test_two_runs_are_compared_in_outcomes_and_measures(visitor: TestClient) -> None:
    assert "2 regressed, of 2 series" in visitor.get("/compare?a=osu-1&b=osu-12").text
    text = visitor.get("/compare?a=checks-1&b=checks-1").text
    assert "What both have came out alike." in text
    for query in ("a=nothing&b=osu-1", "a=osu-1&b=osu-1", "a=checks-1&b=osu-1", "a=osu-1"):
        assert visitor.get(f"/compare?{query}").status_code == 200
    assert "there is no run" in visitor.get("/compare?a=nothing&b=osu-1").text


def test_tasks_that_came_out_otherwise_have_their_outcomes_and_times(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for state, took in ((State.PASSED, 2.0), (State.FAILED, 3.0)):
            run = served_runs.make_run(store, "job", "Suite", [served_runs.task("halo")], at=1e9)
            served_runs.begin(store, run, "halo", at=1e9, logs={})
            served_runs.end(store, run, "halo", at=1e9 + took, state=state)
    with client(tmp_path) as visitor:
        visitor.cookies.set(KEYS.name, KEYS.cookie)
        text = visitor.get("/compare?a=job-1&b=job-2").text
    assert row_widths(text) == {5}
    assert re.findall(r'<td class="(?:n|o [a-z]+)">([^<]*)', text) == [
        *("passed", "failed", "2.0 s", "3.0 s"),
    ]


def row_widths(text: str) -> set[int]:
    """Return how many cells rows have; AssertionError where they are not as many as the heads."""
    widths = set()
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        head, _, body = table.partition("<tbody>")
        heads = len(re.findall(r"<t[hd][ >]", head))
        found = {len(re.findall(r"<t[hd][ >]", row)) for row in re.findall("<tr>.*?</tr>", body)}
        assert found <= {heads}, table[:1000]
        widths |= found
    return widths


@pytest.mark.parametrize("path", ADDRESSES)
def test_rows_have_a_cell_below_each_head(visitor: TestClient, path: str) -> None:
    row_widths(visitor.get(path).text)


def test_what_is_not_there_is_said_in_words(visitor: TestClient) -> None:
    for path in ("/runs/nothing-1", "/runs/checks-1/task?task=halos", "/nothing", "/runs/"):
        answer = visitor.get(path)
        assert answer.status_code == 404
        assert "<h1>There is no such page</h1>" in answer.text
    assert "Did you mean halo?" in visitor.get("/runs/checks-1/task?task=halos").text


@pytest.mark.parametrize("path", HOSTILE_ADDRESSES)
def test_hostile_names_and_outputs_are_only_text(visitor: TestClient, path: str) -> None:
    text = visitor.get(path).text
    elements = Elements(text)
    assert [attrs for tag, attrs in elements.found if tag == "script" and "src" not in attrs] == []
    assert not {name for _, attrs in elements.found for name in attrs if name.startswith("on")}
    assert not any(link.lower().startswith("javascript") for link in elements.attributes("href"))
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "\u202e" not in text


def test_every_task_of_a_hostile_run_has_its_page_and_log(
    filled: Path, visitor: TestClient
) -> None:
    with Store.open(filled, read_only=True) as store:
        keys = [row.key for row in store.task_rows("hostile-1")]
    for key in keys:
        for part in ("task", "logs", "log-file"):
            answer = visitor.get(f"/runs/hostile-1/{part}", params={"task": key})
            # One of them has written nothing, so there is no file.
            known = (200, 404) if part == "log-file" else (200,)
            assert answer.status_code in known, (part, key)
            assert "<script>alert" not in answer.text or part == "log-file"


def test_a_log_is_a_file_that_browsers_do_not_open(visitor: TestClient) -> None:
    answer = visitor.get("/runs/checks-1/log-file?task=halo")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert "MPI_ERR_TRUNCATE" in answer.text


def test_what_is_new_is_on_the_next_page_at_once(tmp_path: Path) -> None:
    from bench import served_runs

    folder = tmp_path / ".rankwise"
    with Store.open(folder) as store, client(folder) as visitor:
        visitor.cookies.set(KEYS.name, KEYS.cookie)
        assert "There are no runs yet" in visitor.get("/").text
        run = served_runs.make_run(store, "job", "Suite", [served_runs.task("a")], at=1.0)
        assert rows(visitor.get("/").text) == [run]
        assert "0 of 1 done" in visitor.get(f"/runs/{run}").text
        served_runs.begin(store, run, "a", at=2.0, logs={"rank-0": "hello"})
        assert "1 running" in visitor.get(f"/runs/{run}").text
        # A line that has not ended is not torn in two.
        assert "hello" not in visitor.get(f"/runs/{run}/logs").text
        served_runs.end(store, run, "a", at=3.0)
        served_runs.finish(store, run, at=3.0)
        assert "hello" in visitor.get(f"/runs/{run}/logs").text
        assert "1 passed" in visitor.get(f"/runs/{run}").text
        assert "data-changes" not in visitor.get(f"/runs/{run}").text


def test_a_new_store_in_the_place_of_the_old_one_is_found(tmp_path: Path) -> None:
    from bench import served_runs

    folder = tmp_path / ".rankwise"
    with Store.open(folder) as store:
        served_runs.make_run(store, "old", "Suite", [served_runs.task("a")], at=1.0)
    with client(folder) as visitor:
        visitor.cookies.set(KEYS.name, KEYS.cookie)
        assert rows(visitor.get("/").text) == ["old-1"]
        folder.rename(tmp_path / "away")
        assert visitor.get("/?page=1").status_code == 503
        with Store.open(folder) as store:
            served_runs.make_run(store, "new", "Suite", [served_runs.task("a")], at=1.0)
        assert rows(visitor.get("/?page=2&x=1").text) == []
        assert rows(visitor.get("/").text) == ["new-1"]


def test_a_fault_of_ours_is_said_and_kept(
    visitor: TestClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*given: object, **named: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(Store, "open", broken)
    patient = TestClient(visitor.app, base_url=str(visitor.base_url), raise_server_exceptions=False)
    patient.cookies.set(KEYS.name, KEYS.cookie)
    answer = patient.post("/runs/nightly-1/cancel", data={"form": KEYS.form})
    assert answer.status_code == 500
    assert "Something is broken" in answer.text
    assert "ZeroDivisionError" not in answer.text
    assert "ZeroDivisionError: oh" in capsys.readouterr().err


def test_static_files_are_named_after_what_is_in_them(visitor: TestClient) -> None:
    for name in pages.FILES:
        data, kind, mark = pages.static_file(name)
        assert f"/static/{name}?v={mark}" in visitor.get("/").text
        answer = visitor.get(f"/static/{name}?v={mark}")
        assert answer.content == data
        assert answer.headers["content-type"].startswith(kind)
    script = pages.static_file("live.js")[0].decode()
    assert len(script.splitlines()) < 300
    assert "http:" not in script
    assert "eval(" not in script


@pytest.mark.parametrize("name", ["path", "run", "part", "self", "query"])
def test_a_parameter_may_have_any_name(visitor: TestClient, name: str) -> None:
    for path in ("/", "/runs/nightly-1", "/runs/nightly-1/tasks"):
        assert visitor.get(path, params={name: "x"}).status_code in (200, 404), path


def test_a_long_kind_leaves_the_list_of_runs_its_columns(visitor: TestClient) -> None:
    text = visitor.get("/").text
    kinds = re.findall(r'<option value="[^"]*">([^<]*)</option>', text)
    kinds += re.findall(r'<td class="p">([^<]*)</td>', text)
    assert kinds
    assert max(len(html.unescape(kind)) for kind in kinds) < 70


# Where the tasks of a graph are drawn

GRAPH_KEYS = st.sampled_from("abcdefgh")


def test_what_is_needed_is_to_the_left() -> None:
    found = lay_out({"a": (), "b": ("a",), "c": ("a", "b"), "d": ()})
    assert {key: place[0] for key, place in found.places.items()} == {
        "a": 0,
        "b": 1,
        "c": 2,
        "d": 0,
    }
    assert (found.layers, found.rows) == (3, 2)
    assert found.bends[("a", "c")] == [(1, found.bends[("a", "c")][0][1])]


def test_lines_do_not_cross_where_they_need_not() -> None:
    found = lay_out({"a": (), "b": (), "x": ("b",), "y": ("a",)})
    rows = {key: place[1] for key, place in found.places.items()}
    assert (rows["a"] < rows["b"]) == (rows["y"] < rows["x"])


def test_nothing_and_a_long_chain_are_laid_out() -> None:
    assert lay_out({}).layers == 0
    chain = {str(number): (str(number - 1),) if number else () for number in range(3000)}
    assert lay_out(chain).layers == 3000


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(GRAPH_KEYS, st.lists(GRAPH_KEYS, max_size=4), max_size=8))
def test_every_task_has_a_place_of_its_own_even_in_circles(needs: dict[str, list[str]]) -> None:
    found = lay_out(needs)
    taken = [*found.places.values(), *(one for bends in found.bends.values() for one in bends)]
    assert found.places.keys() == needs.keys()
    assert len(set(taken)) == len({*found.places.items()}) + sum(map(len, found.bends.values()))
    assert all(layer < found.layers and row < found.rows for layer, row in taken)
    nodes = [TaskNode(key, State.PASSED, tuple(wanted), 1.0) for key, wanted in needs.items()]
    assert draw_graph("run-1", nodes).count('class="node ') == len(needs)
