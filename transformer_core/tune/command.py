"""``tune-training train.py [its arguments]``: what makes a training script faster?

Writes a study into a new folder, runs Snakemake on it, and prints the answer. If it is stopped, the
same command continues.
"""

import argparse
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

from schemas.config.run_spec import FactoryTechnique
from schemas.errors import ConfigError, nearest
from transformer_core.common.files import write_text
from transformer_core.common.yaml_files import as_yaml
from transformer_core.study.ownership import check_free
from transformer_core.study.resolve import check_study
from transformer_core.study.study_files import cache_of_snakemake
from transformer_core.tune import driver
from transformer_core.tune.answer import FAILED, Answer, markdown, text, useful
from transformer_core.tune.driver import parser, with_script
from transformer_core.tune.order import BEGAN

DISTRIBUTION = "transformer-training-study"
USAGE = """examples:
  tune-training train.py --batch-size 8
  tune-training --time 10min -m my_package.train
  tune-training torchrun --nproc-per-node 2 train.py
"""


def snakefile() -> Path:
    """The workflow of this checkout, or the one installed with the package."""
    here = Path(__file__).resolve().parents[2] / "Snakefile"
    if here.is_file():
        return here
    for file in importlib.metadata.files(DISTRIBUTION) or []:
        if file.name == "Snakefile":
            return Path(str(file.locate())).resolve()
    raise FileNotFoundError(f"the package {DISTRIBUTION} has no Snakefile: install it again")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    made = parser(
        "tune-training",
        "Find out what makes a training script faster on this machine, by how much, and\nwhether it "
        "still trains the same model. The script is not edited; the current folder\ngets one new "
        "folder, tuned-<script>, and nothing else.",
        "5min",
        USAGE,
    )
    about = "techniques to try, separated by commas (default: all)"
    made.add_argument("--only", type=_techniques, metavar="NAMES", help=about)
    about = "folder of the study (default: tuned-<script>)"
    made.add_argument("--folder", type=Path, metavar="DIR", help=about)
    about = "do not run the changed script against the original"
    made.add_argument("--no-verify", action="store_true", help=about)
    about = "apply the diff to the script if the changed script trains the same model"
    made.add_argument("--apply", action="store_true", help=about)
    return with_script(made, arguments)


def _techniques(text: str) -> list[str]:
    """The names of techniques in ``text``; argparse prints the error."""
    names, known = re.findall(r"[^\s,]+", text), get_args(FactoryTechnique)
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name}: no such technique; {nearest(name, known)}")
    if not names:
        raise argparse.ArgumentTypeError(f"names no technique; choose from {', '.join(known)}")
    return names


def study_of(given: argparse.Namespace, script: str, folder: Path) -> dict[str, Any]:
    """The study that a command line asks for, of a ``script``. Raises ConfigError with a remedy."""
    task: dict[str, Any] = {
        "kind": "script",
        "command": given.command,
        "directory": str(Path.cwd()),
        "verify": not given.no_verify,
    }
    if given.only:
        task["techniques"] = given.only
    name = re.sub(r"[^a-z0-9]", "_", folder.name.lower()).strip("_")
    study = {
        "name": (name if name[:1].isalpha() else f"tuned_{name}")[:64],  # as long as names may be
        "title": f"What makes {script} faster?"[:200],
        "time": given.time,
        "task": task,
        "variants": ["single"],
        "baseline": "single",
        "search": None,
    }
    check_study(study, driver.COMMAND_LINE)
    return study


def run(folder: Path, quiet: bool) -> int:
    """Run the workflow in ``folder``; its exit code. It runs in a separate process group, so that an
    interruption of any process reaches it and its jobs exactly once. ``quiet`` leaves standard output
    to the answer; progress goes to standard error."""
    start = [sys.executable, "-m", "snakemake", "results/report.html"]
    start += ["--snakefile", str(snakefile())]
    start += ["--directory", str(folder), "--configfile", str(folder / "study.yaml")]
    start += ["--cores", "all", "--quiet", "all"]
    # The settings of profiles/default, without its message about the profile.
    start += ["--workflow-profile", "none", "--rerun-incomplete", "--nolock"]
    start += ["--max-jobs-per-timespan", "1000/60s"]
    out = subprocess.DEVNULL if quiet else None
    now = time.time()
    environment = os.environ | {BEGAN: f"{os.environ.get(BEGAN, now)} {now}"}
    environment |= cache_of_snakemake(folder)
    child = subprocess.Popen(start, stdout=out, cwd=folder, env=environment, process_group=0)
    try:
        return child.wait()
    except KeyboardInterrupt:
        os.killpg(child.pid, signal.SIGTERM)  # Shells let background commands ignore SIGINT.
        child.wait()
        raise


def age() -> float:
    """Seconds since this process was started, so that its imports count; 0 where Linux does not tell."""
    try:
        ticks = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return 0.0
    since = int(ticks) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since)


def main(arguments: list[str] | None = None) -> int:
    """Tune a script; the exit status, 0 if there is an answer."""
    given = parse(arguments)
    if arguments is None:
        os.environ[BEGAN] = str(time.time() - age())
    try:
        script = driver.program_given(given.command).name
        folder = (given.folder or Path(f"tuned-{script.removesuffix('.py')}")).resolve()
        study = study_of(given, script, folder)
    except ConfigError as error:
        return driver.refused(error)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_free(folder / ".snakemake/at-work")
        write_text(folder / "study.yaml", as_yaml(study))
    except OSError as error:
        why = f"{folder} cannot hold the study ({error.strerror}): name another with --folder"
        return driver.refused(why)
    except ConfigError as error:
        return driver.refused(f"{error}, or name another folder with --folder")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    driver.end_like_ctrl_c()
    try:
        code = run(folder, quiet=given.json)
    except KeyboardInterrupt:
        driver.shown("\nStopped. The same command continues from here.")
        return 130
    file, failed = (folder / "results/tune" / name for name in ("answer.json", FAILED))
    if code and failed.is_file():
        file = failed
    elif code or not file.is_file():
        logs = f"{folder}/results/logs and {folder}/.snakemake/log"
        driver.shown(f"The workflow failed with exit code {code}: see {logs}")
        return code or 1
    return show(file, folder, given)


def show(file: Path, folder: Path, given: argparse.Namespace) -> int:
    """Print the answer and, with --apply, apply its diff; the exit status."""
    found = Answer.read(file)
    page, diff = (folder / "results" / name for name in ("report.html", "tune/changes.diff"))
    said = text(found, os.path.relpath(page), os.path.relpath(diff))
    driver.answer(given, found.to_json(), said, markdown(found))
    if found.status != "ok":
        return 1
    if given.apply:
        if not found.diff or found.patched is None or not useful(found.patched):
            driver.shown(
                "Nothing was applied: there is no diff that was shown to train the same model."
            )
            return 1
        try:
            apply = ["git", "apply", str(diff)]
            return subprocess.run(apply, cwd=found.base or None, check=False).returncode
        except FileNotFoundError:
            driver.shown(f"Nothing was applied, because git is not installed. The diff: {diff}")
            return 1
    return 0
