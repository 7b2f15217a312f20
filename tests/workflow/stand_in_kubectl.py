#!/usr/bin/env python3
"""Stands in for kubectl: the pods of Jobs are processes on this machine.

Understands only the calls of workflow/profiles/kubernetes. It keeps its Jobs in the folder
STAND_IN_KUBECTL: <name>.json, the manifest; <name>.pid; and <name>.code, once the Job has ended.
"""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

FOLDER = Path(os.environ.get("STAND_IN_KUBECTL", "."))
QUERY = '--output=jsonpath={range .status.conditions[?(@.status=="True")]}{.type} {end}'
IMAGE = ("PATH", "HOME", "PYTHONPATH", "LANG")
"""The environment of a pod: only the variables that its image sets."""


def create() -> None:
    job = json.load(sys.stdin)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    name = job["metadata"]["generateName"] + uuid.uuid4().hex[:5]
    (FOLDER / f"{name}.json").write_text(json.dumps(job))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    code = FOLDER / f"{name}.code"
    pod = subprocess.Popen(
        ["/bin/sh", "-c", '"$@"; echo $? > "$0"', str(code), *container["command"]],
        cwd=container["workingDir"],
        env={key: os.environ[key] for key in IMAGE if key in os.environ},
        stdin=subprocess.DEVNULL,
        stdout=(FOLDER / f"{name}.log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    (FOLDER / f"{name}.pid").write_text(str(pod.pid))
    print(f"job.batch/{name}")


def get(name: str) -> None:
    if not (FOLDER / f"{name}.json").exists():
        sys.exit(f'Error from server (NotFound): jobs.batch "{name}" not found')
    code = FOLDER / f"{name}.code"
    if code.exists() and (text := code.read_text()):
        # A cluster first says how the Job will end, and then that it has ended.
        print("SuccessCriteriaMet Complete " if int(text) == 0 else "FailureTarget Failed ", end="")


def evict(name: str) -> None:
    """Ends a pod, as a cluster does if it needs the pod's host."""
    os.killpg(int((FOLDER / f"{name}.pid").read_text()), signal.SIGKILL)
    (FOLDER / f"{name}.code").write_text("137")


def main() -> None:
    match sys.argv[1:]:
        case ["create", "--filename=-", "--output=name"]:
            create()
        case ["get", "job", name, query] if query == QUERY:
            get(name)
        case ["delete", "job", *names, "--wait=false"]:
            for name in names:
                evict(name)
        case other:
            sys.exit(f"the stand-in for kubectl does not understand {other}")


if __name__ == "__main__":
    main()
