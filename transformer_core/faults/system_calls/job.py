"""Let calls of the system fail inside jobs, one after the other:

    python -m transformer_core.faults.system_calls.job --results results --output system_calls.json

Jobs that make data and records run in this process on a copy of a study's results. At each of their
calls, one run fails with each error. The job must say which file, why, and what to do, and leave no
result or the right one; without the fault the same job must then make the right one.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from errno import errorcode
from pathlib import Path

from schemas.config.run_spec import RunSpec
from schemas.results.faults import FaultRecord, Verdict
from transformer_core.common.endings import program
from transformer_core.common.records import read_record
from transformer_core.common.seals import seal_file, write_sealed
from transformer_core.data.sharding import job as sharding
from transformer_core.data.sharding import verify
from transformer_core.data.tokenizing import job as tokenizing
from transformer_core.decide.comparisons import combine, compare
from transformer_core.faults.system_calls.failing import ERRORS, Calls, failing
from transformer_core.faults.tally import Tally


@dataclass(frozen=True)
class Job:
    """A job that runs in this process."""

    name: str
    main: Callable[[list[str]], int]
    options: list[str]
    output: Path
    """What it makes, last of all."""
    varying: tuple[str, ...] = ()
    """Fields of the output that depend on the clock."""

    def made(self) -> str | None:
        """What it has made; None if there is nothing."""
        if not self.output.exists():
            return None
        text = self.output.read_text()
        record = json.loads(text)
        if isinstance(record, dict):
            record = {k: v for k, v in record.items() if k not in self.varying}
        return json.dumps(record)


def jobs(results: Path, output: Path) -> list[Job]:
    """The jobs, on a study's ``results``, that write below ``output``."""
    (data,) = (path.parent for path in results.glob("data/*/tokenizer.json"))
    spec = next(results.glob("runs/*/spec.json"))
    settings = read_record(spec, RunSpec)
    runs, pairs = spec.parent, data / "pairs/test.arrow"
    repeats = sorted(map(str, runs.glob("repeat-*/metrics.json")))
    shards = ["--tokenizer", str(data / "tokenizer.json"), "--pairs", str(pairs)]
    shards += ["--filter", settings.filter.canonical_json(), "--threads", "1"]
    tokens = ["--tokenizer", settings.tokenizer.canonical_json(), "--pairs", str(pairs)]
    tokens += ["--report", str(output / "report.json"), "--output", str(output / "tokenizer.json")]
    combined = ["--variant", runs.name, "--spec", str(spec), "--repeats", *repeats]
    combined += ["--evaluation", str(runs / "evaluation.json")]
    combined += ["--train-manifest", str(data / "shards/train/manifest.json")]
    compared = ["--margin", "0.02", "--pairs", *sorted(map(str, results.glob("pairs/*/*.json")))]
    compared += ["--results", *sorted(map(str, results.glob("runs/*/metrics.json")))]
    compared += ["--certificates", *sorted(map(str, results.glob("equivalence/*.json")))]
    manifests = sorted(map(str, data.glob("shards/*/manifest.json")))
    to = {name: output / f"{name}.json" for name in ("combine", "compare", "verify")}
    return [
        Job("shards", sharding.main, [*shards, "--output", str(output / "shards")],
            output / "shards/manifest.json", ("seconds",)),
        Job("tokenizer", tokenizing.main, tokens, output / "report.json", ("seconds",)),
        Job("verify", verify.main, [*manifests, "--output", str(to["verify"])],
            to["verify"], ("seconds",)),
        Job("combine", combine.main, [*combined, "--output", str(to["combine"])], to["combine"]),
        Job("compare", compare.main, [*compared, "--output", str(to["compare"])], to["compare"]),
    ]  # fmt: skip


def run(most: int, seed: int, results: Path) -> FaultRecord:
    """The verdicts on at most ``most`` failing calls of each job."""
    tally = Tally("system_calls", seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(
            results,
            folder / "results",
            ignore=shutil.ignore_patterns("faults", "logs", "downloads"),
        )
        for job in jobs(folder / "results", folder / "made"):
            calls = Calls(folder)
            with failing(calls):
                _started(job)
            right = job.made()
            places = [(place, error) for place in range(calls.count) for error in ERRORS]
            chance = random.Random(f"{seed}/{job.name}")
            for place, error in sorted(chance.sample(places, min(most, len(places)))):
                shutil.rmtree(folder / "made", ignore_errors=True)
                verdict, said = judge(job, Calls(folder, place, error), right)
                case = f"{job.name}, call {place} of {calls.count}, {errorcode[error]}: {said}"
                tally.add(f"{job.name}_{errorcode[error].lower()}", place, verdict, case)
    return tally.record()


def judge(job: Job, calls: Calls, right: str | None) -> tuple[Verdict, str]:
    """How a job takes it that a call fails."""
    try:
        with failing(calls):
            code, said = _started(job)
    except BaseException:
        return "traceback", traceback.format_exc()
    left = job.made()
    if left is not None and left != right:
        return "silent", f"it left another result; it said: {said}"
    if code == 0:
        return ("same" if left == right else "silent"), said
    with contextlib.suppress(FileNotFoundError):
        seal_file(job.output).unlink()
    if _started(job)[0] or job.made() != right:
        return "silent", f"the next attempt makes another result; it said: {said}"
    clear = "remedy" in said.lower() and calls.folder in said
    return ("refused" if clear else "unclear"), said


def _started(job: Job) -> tuple[int, str]:
    """Run a job: its exit code, and what it said."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = job.main(job.options)
        except SystemExit as end:
            code = int(end.code or 0) if not isinstance(end.code, str) else 1
    return code, said.getvalue()


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.faults.system_calls.job",
        description="Let calls of the system fail inside jobs, and count what they say.",
    )
    parser.add_argument("--results", type=Path, required=True, help="results of a finished study")
    parser.add_argument(
        "--most", type=int, default=60, help="failing calls of a job (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of them (default: %(default)s)")
    parser.add_argument("--output", type=Path, required=True, help="the record to write")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    os.environ["TQDM_DISABLE"] = "1"
    record = run(options.most, options.seed, options.results)
    write_sealed(options.output, record.model_dump_json(indent=1) + "\n")
    for count in record.counts:
        print(count.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
