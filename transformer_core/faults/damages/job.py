"""Damage the results of a study in a copy, and see whether their readers notice:

    python -m transformer_core.faults.damages.job --results results --output damages.json

Each case damages one file, with its time stamps kept, and lets the job read it that does so in a
study. It must say which file is wrong and what to do, or come to the same to the last bit.
"""

import argparse
import contextlib
import io
import logging
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import ConfigError
from schemas.results.faults import FaultRecord, Verdict
from transformer_core.common.endings import program
from transformer_core.common.seals import seal_file, write_sealed
from transformer_core.data.corpus.corpus_error import CorpusError
from transformer_core.faults.damages.consumers import READERS, Reader, RefusedError, digest_of
from transformer_core.faults.damages.kinds import KINDS
from transformer_core.faults.tally import Tally

_LARGEST = 20_000_000
"""Bytes of a file that is damaged: larger ones only take longer."""


def run(count: int, seed: int, results: Path) -> FaultRecord:
    """The verdicts on ``count`` damages to a copy of ``results``."""
    tally = Tally("damages", seed)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "results")
        shutil.copytree(results, copy, ignore=shutil.ignore_patterns("faults", "logs", "downloads"))
        groups = {pattern: _files(copy, pattern) for pattern in READERS}
        groups = {pattern: files for pattern, files in groups.items() if files}
        right: dict[Path, str] = {}
        for number in range(count):
            chance = random.Random(f"{seed}/{number}")
            kind = list(KINDS)[number % len(KINDS)]
            pattern = chance.choice(list(groups))
            file = chance.choice(groups[pattern])
            reader = READERS[pattern]
            if file not in right:
                right[file] = digest_of(reader(copy, file))
            others = [other for other in groups[pattern] if other != file]
            with _restored(file):
                KINDS[kind](file, others, chance)
                verdict, said = judge(reader, copy, file, right[file])
            tally.add(kind, number, verdict, f"{file.relative_to(copy)}: {said}")
    return tally.record()


def judge(reader: Reader, results: Path, file: Path, right: str) -> tuple[Verdict, str]:
    """How a reader takes a damaged file, of which it should have got ``right``."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
            found = digest_of(reader(results, file))
    except (ConfigError, CorpusError) as error:
        return _clear(str(error), file)
    except RefusedError:
        return _clear(printed.getvalue(), file)
    except Exception:
        return "traceback", traceback.format_exc()
    return ("same", "") if found == right else ("silent", "another result, and nothing said")


def _clear(said: str, file: Path) -> tuple[Verdict, str]:
    """An error must name the file, or its manifest or record, and a remedy."""
    named = str(file) in said or str(file.parent) in said
    return ("refused" if named and "remedy" in said else "unclear"), said


@contextlib.contextmanager
def _restored(file: Path):  # type: ignore[no-untyped-def]
    """Puts a file and its seal back as they were."""
    kept = {
        path: (path.read_bytes(), path.stat()) for path in (file, seal_file(file)) if path.exists()
    }
    try:
        yield
    finally:
        for path, (content, stat) in kept.items():
            path.write_bytes(content)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _files(results: Path, pattern: str) -> list[Path]:
    return sorted(
        path
        for path in results.glob(pattern)
        if path.is_file() and not path.name.startswith(".") and path.stat().st_size <= _LARGEST
    )


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.faults.damages.job",
        description="Damage the results of a study in a copy, and count who notices.",
    )
    parser.add_argument("--results", type=Path, required=True, help="results of a finished study")
    parser.add_argument("--cases", type=int, default=1_000, help="damages (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of them (default: %(default)s)")
    parser.add_argument("--output", type=Path, required=True, help="results/faults/damages.json")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    record = run(options.cases, options.seed, options.results)
    write_sealed(options.output, record.model_dump_json(indent=1) + "\n")
    for count in record.counts:
        print(count.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
