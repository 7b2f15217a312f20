"""Traces that a user brings are targets like those of the study."""

import gzip
import json

import pytest
from project import TINY, Project
from traces import kineto, on_device


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path, TINY)


def test_a_trace_of_another_program(project):
    kernels = [on_device("kernel", "sgemm", 0, 5, 1), on_device("kernel", "relu", 5, 2, 2)]
    kineto(project.folder / "mine.json.gz", kernels)
    files = json.dumps({"other": ["mine.json.gz"]})
    code, output = project.snakemake(
        *("results/profiles/other/breakdown.json", "results/profiles/other/perfetto.json.gz"),
        *("--config", f"traces={files}"),
    )
    assert code == 0, output
    found = json.loads((project.folder / "results/profiles/other/breakdown.json").read_text())
    assert (found["name"], found["status"]) == ("other", "ok")
    assert found["devices"][0]["span"]["compute_ns"] == 7000
    assert (project.folder / "results/profiles/other/events.parquet").exists()
    drawn = gzip.decompress(
        (project.folder / "results/profiles/other/perfetto.json.gz").read_bytes()
    )
    named = [event["name"] for event in json.loads(drawn)["traceEvents"] if event["ph"] == "X"]
    assert named[:2] == ["sgemm", "relu"]
