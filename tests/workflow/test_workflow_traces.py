"""A user's traces are targets like those of the study."""

import gzip
import json

from project import TINY, Project
from traces import kineto, on_device


def test_a_trace_of_another_program(tmp_path):
    project = Project(tmp_path, TINY)
    kernels = [on_device("kernel", "sgemm", 0, 5, 1), on_device("kernel", "relu", 5, 2, 2)]
    kineto(project.folder / "mine.json.gz", kernels)
    files = json.dumps({"other": ["mine.json.gz"]})
    targets = [f"results/profiles/other/{name}" for name in ("breakdown.json", "perfetto.json.gz")]
    project.make(*targets, "--config", f"traces={files}")
    breakdown, viewer = (project.folder / target for target in targets)
    found = json.loads(breakdown.read_text())
    assert (found["name"], found["status"]) == ("other", "ok")
    assert found["devices"][0]["span"]["compute_ns"] == 7000
    assert breakdown.with_name("events.parquet").exists()
    drawn = gzip.decompress(viewer.read_bytes())
    named = [event["name"] for event in json.loads(drawn)["traceEvents"] if event["ph"] == "X"]
    assert named[:2] == ["sgemm", "relu"]
