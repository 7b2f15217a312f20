"""The profile for a workstation: simultaneous jobs see different GPUs, timed ones run alone."""

import json

import pytest
from project import TINY, Project

PROFILE = "--workflow-profile=workflow/profiles/workstation"
GPUS = ["GPU-11111111-a", "GPU-22222222-b"]

# Every Python process of a job records its module (a job that runs an order: its log), its visible GPUs,
# and its beginning and end.
WATCH = """
import atexit, json, os, sys, time
began = time.time()
process = os.getpid()
leave = os._exit
def note():
    words = sys.orig_argv
    if "-m" in words and os.getpid() == process:
        started = words[words.index("-m") + 1:]
        if started[0].endswith(".quick_start"):
            started = started[1:]
            while started[0].startswith("--"):
                started = started[1:]
        if started[0].endswith(".run.job"):
            started = [started[started.index("--log-file") + 1]]
        line = [started[0], os.environ.get("CUDA_VISIBLE_DEVICES"), began,
                time.time()]
        file = os.open(os.environ["WATCHED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, (json.dumps(line) + "\\n").encode())
def note_and_leave(code):
    note()
    leave(code)
# quick_start ends its process without exit handlers.
os._exit = note_and_leave
atexit.register(note)
"""

Line = tuple[str, str | None, float, float]


def watched(project: Project, *arguments: str) -> list[Line]:
    """Runs Snakemake with the profile: module, visible GPUs, beginning and end of each process."""
    file = project.folder / "watched"
    file.unlink(missing_ok=True)
    project.make(*arguments, PROFILE)
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()]


def at_the_same_time(first: Line, second: Line) -> bool:
    return first[2] < second[3] and second[2] < first[3]


@pytest.mark.slow
def test_each_job_has_its_own_gpu_and_timed_jobs_run_alone(tmp_path, monkeypatch):
    study = TINY | {"variants": ["single", "log_every_1"]}
    project = Project.with_data(tmp_path / "project", study)
    profile = project.folder / "workflow/profiles/workstation/config.yaml"
    profile.write_text(profile.read_text().replace("evaluate=4", "evaluate=1"))
    (project.folder / "sitecustomize.py").write_text(WATCH)
    monkeypatch.setenv("WATCHED", str(project.folder / "watched"))
    # In place of the driver's list of GPUs.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(GPUS))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")

    runs = [f"results/runs/{name}/repeat-1/metrics.json" for name in study["variants"]]
    lines = watched(project, *runs)
    timed = [line for line in lines if line[0].endswith("/run.log")]
    jobs = [line for line in lines if line[0].startswith("transformer_core.") or line in timed]
    assert len(timed) == 2, lines
    for one in timed:
        others = [job for job in jobs if job is not one and job[0] != "transformer_core.run.worker"]
        assert not [job for job in others if at_the_same_time(one, job)], lines

    # A forked job leases its GPU after its start, when this could no longer tell.
    monkeypatch.setenv("WARM_STARTS", "off")
    evaluations = [f"results/runs/{name}/evaluation.json" for name in study["variants"]]
    lines = watched(project, *evaluations)
    seen = [line for line in lines if line[0].startswith("results/logs/evaluate-")]
    assert at_the_same_time(*seen), lines
    assert sorted(str(line[1]) for line in seen) == GPUS
