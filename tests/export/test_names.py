"""Whatever a job is called, what is written has names that Kubernetes takes."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types of its own
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.export.base import TARGETS, name_for, to_yaml
from tests.export.exporting import read_back, templates_in, written
from tests.lengths import part

LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
# As documents may have them, and what they may say of variables and tags.
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,90}", fullmatch=True)


@given(NAMES, NAMES)
def test_names_are_of_dns_and_never_the_same(first: str, second: str) -> None:
    taken: set[str] = set()
    names = [name_for(one, taken) for one in (first, second, first)]
    assert len(set(names)) == len(names)
    for name in names:
        assert LABEL.fullmatch(f"{name}-worker-1023")


@settings(max_examples=part(8, 200), deadline=None)
@given(
    name=NAMES,
    value=TEXT,
    line=st.text("ab $(){}'\"\\;|&#~:-\n", min_size=1, max_size=30).filter(str.strip),
    target=st.sampled_from([name for name in TARGETS if name != "azureml"]),
)
def test_hostile_jobs_are_written_and_read_back(
    name: str, value: str, line: str, target: str
) -> None:
    document = {
        "type": "MpiJob",
        "name": name,
        "experiment_name": f"x{value}",
        "tags": {f"t{value}": value},
        "environment_variables": {"A": value},
        "launcher": {"spec": {"command": f"mpirun -np 2 {line}", "code": "src"}},
        "compute": {"instance_count": 2},
    }
    with TemporaryDirectory() as folder:
        made = written(Path(folder), to_yaml([document]), target)
    found = read_back(to_yaml(made.objects))
    assert found == list(made.objects)
    for one in found:
        metadata = one["metadata"]
        assert LABEL.fullmatch(metadata["name"])
        assert all(VALUE.fullmatch(label) for label in metadata["labels"].values())
        for template in templates_in(one):
            if "image" in template["spec"]["containers"][0]:
                wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
                kubernetes_validate.validate(wrapped, "1.36", strict=True)
