"""Runs a job that a rule orders: ``python -m transformer_core.run.job --order JSON``.

An order names its ``kind`` and the fields of that kind, which ``--describe KIND`` lists: its
settings, and the files that the job reads and writes. ``--order`` also accepts a file, or - for
standard input.
"""

import argparse
import gc
import os
import re
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from pydantic_core import PydanticUndefined

from schemas.errors import Refusal
from transformer_core.common.endings import in_words, program
from transformer_core.common.job import Job
from transformer_core.common.progress import log_to
from transformer_core.common.quick_end import to_the_end
from transformer_core.study.kinds import JOBS, class_of, parse

_OF_A_CLUSTER = re.compile(r"(LOCAL_)?(RANK|WORLD_SIZE)|(PET|TORCHELASTIC)_\w+")
"""Ranks, and options of torchrun, that some clusters set for every command: no job is one of the ranks."""


def read_job(text: str) -> Job:
    """The order in ``text``, which is JSON, the name of a JSON file or - for standard input; ConfigError
    if it is none."""
    if text == "-":
        text = sys.stdin.read()
    if text.lstrip().startswith("{"):
        return parse(text, JOBS, "--order")
    return parse(Path(text).read_text(encoding="utf-8"), JOBS, text)


def describe(kind: str) -> str:
    """The fields of an order, with their meanings and defaults."""
    from schemas.generate import field_texts  # slow, and only users ask for it

    model = class_of(kind, JOBS, "--describe")
    meanings = field_texts(model)
    lines = [f"{kind}: {(model.__doc__ or '').strip()}"]
    for name, field in model.model_fields.items():
        default = "" if field.default is PydanticUndefined else f" (default: {field.default})"
        lines.append(f"  {name}: {' '.join(meanings.get(name, '').split())}{default}")
    return "\n".join(lines)


def note(log_file: Path, error: Exception) -> None:
    """Adds an error to the log of its job. On a terminal, much is printed below the error itself."""
    told = isinstance(error, Refusal | OSError)
    text = in_words(error) + "\n" if told else "".join(traceback.format_exception(error))
    with suppress(OSError), log_file.open("a", encoding="utf-8", errors="backslashreplace") as log:
        log.write(text)


@program
def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.run.job",
        description="Run one order of a workflow rule.",
        epilog=f"Kinds: {', '.join(JOBS)}. A rule's order is its parameter `order`, which "
        "snakemake --printshellcmds shows.",
    )
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--order", help="the order as JSON, a file that holds it, or -")
    asked.add_argument("--describe", metavar="KIND", help="list the fields of a kind of order")
    parser.add_argument(
        "--gpus", type=int, default=0, help="lease this many GPUs: no other leased job sees them"
    )
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    given = parser.parse_args()
    if given.describe is not None:
        print(describe(given.describe))
        return 0
    log_to(given.log_file)
    for name in filter(_OF_A_CLUSTER.fullmatch, [*os.environ]):
        del os.environ[name]
    # CUDA would number GPUs by speed; NVML, nvidia-smi and leases number them by bus position.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if given.gpus:
        from transformer_core.run.gpu_leases import lease_here  # slow for short jobs

        lease_here(given.gpus)
    # Imports leave no garbage.
    gc.disable()
    job = read_job(given.order)
    gc.freeze()
    gc.enable()
    try:
        return job.run(given.log_file) or 0
    except Exception as error:
        if given.log_file is not None:
            note(given.log_file, error)
        raise


if __name__ == "__main__":
    to_the_end(main)
