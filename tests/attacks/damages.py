"""Damages the results of a study in a copy: do their readers notice?

Each case damages one file, keeps its time stamps, and runs the job that reads the file in a study.
The job must name the file and the remedy, or give the same result to the last bit.
"""

import contextlib
import hashlib
import io
import os
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from schemas.config.run_spec import RunSpec
from schemas.errors import ConfigError
from schemas.results import Certificate
from tests.attacks.tally import Tally, Verdict
from tests.orders import combining, comparing, run_job
from transformer_core.common.digests import NAME, forget_all
from transformer_core.common.records import read_record
from transformer_core.common.tables import read_table
from transformer_core.data.corpus.pairs import PairFile
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.sharding.shard_store import open_shards, read_manifest
from transformer_core.data.tokenizing.job import load_tokenizer
from transformer_core.decide.study_results import StudyResults
from transformer_core.models.registry import build_model
from transformer_core.report.kit import svg
from transformer_core.report.sections.equivalence import recorded
from transformer_core.training.translate import load_weights

Damage = Callable[[Path, Sequence[Path], random.Random], None]
"""Damages a file; the others are of the same kind."""


def _edit(change: Callable[[bytearray, random.Random], bytearray]) -> Damage:
    def damage(path: Path, others: Sequence[Path], chance: random.Random) -> None:
        _put(path, bytes(change(bytearray(path.read_bytes()), chance)))

    return damage


def _put(path: Path, content: bytes) -> None:
    stat = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _flip(content: bytearray, chance: random.Random) -> bytearray:
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return content


def _scatter(content: bytearray, chance: random.Random) -> bytearray:
    for _ in range(chance.randint(2, 20)):
        content = _flip(content, chance)
    return content


def _cut(content: bytearray, chance: random.Random) -> bytearray:
    return content[: chance.randrange(max(1, len(content)))]


def _zeros(content: bytearray, chance: random.Random) -> bytearray:
    """Zeros, like a block of the file system that was never written."""
    start = chance.randrange(max(1, len(content))) // 512 * 512
    size = min(chance.choice((512, 4096, len(content))), len(content) - start)
    content[start : start + size] = bytes(size)
    return content


def _grow(content: bytearray, chance: random.Random) -> bytearray:
    return content + chance.randbytes(chance.randint(1, 64))


def _digit(content: bytearray, chance: random.Random) -> bytearray:
    """Changes a digit, as an edit of the file would."""
    digits = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if digits:
        place = chance.choice(digits)
        content[place] = 48 + (content[place] - 48 + chance.randint(1, 9)) % 10
    return content


def _swap(path: Path, others: Sequence[Path], chance: random.Random) -> None:
    if others:
        _put(path, chance.choice(others).read_bytes())


def _swap_with_digests(path: Path, others: Sequence[Path], chance: random.Random) -> None:
    """Copies the file and the digests of another run."""
    others = [other for other in others if other.parent != path.parent]
    if others:
        other = chance.choice(others)
        _put(path, other.read_bytes())
        if other.with_name(NAME).exists():
            _put(path.with_name(NAME), other.with_name(NAME).read_bytes())


def _flip_digests(path: Path, others: Sequence[Path], chance: random.Random) -> None:
    file = path.with_name(NAME)
    if file.exists():
        _put(file, bytes(_flip(bytearray(file.read_bytes()), chance)))


KINDS: dict[str, Damage] = {
    "bit_flipped": _edit(_flip),
    "bits_flipped": _edit(_scatter),
    "cut_off": _edit(_cut),
    "zeros": _edit(_zeros),
    "grown": _edit(_grow),
    "digit_changed": _edit(_digit),
    "of_another_run": _swap,
    "of_another_run_with_digests": _swap_with_digests,
    "digests_flipped": _flip_digests,
}


Reader = Callable[[Path, Path], Any]
OUTPUT = "faults-output.json"


def _shards(results: Path, file: Path) -> list[bytes]:
    store = open_shards(file.parent / "manifest.json")
    rows = np.arange(len(store))
    return [side.gather(rows).flat().tobytes() for side in (store.source, store.target)]


def _pairs(results: Path, file: Path) -> list[Any]:
    pairs = PairFile(file.with_suffix(".arrow"))
    return [pairs.description(), *(batch.to_pydict() for batch in pairs)]


def _tokenizer(results: Path, file: Path) -> str:
    manifest = read_manifest(file.parent / "shards/test/manifest.json")
    return load_tokenizer(file, manifest.tokenizer_sha256).to_str()


def _weights(results: Path, file: Path) -> list[bytes]:
    spec = read_record(file.parents[1] / "spec.json", RunSpec)
    (manifest,) = results.glob("data/*/shards/test/manifest.json")
    model = build_model(spec.model, read_manifest(manifest).vocabulary)
    load_weights(model, file)
    state = model.state_dict()
    return [name.encode() + state[name].numpy().tobytes() for name in sorted(state)]


def _certify(results: Path, file: Path) -> str:
    """The certificate of the first variant whose comparison uses this short run."""
    found = [
        record
        for path in _files(results, "equivalence/*.json")
        if (record := read_record(path, Certificate)).reference is not None
        and file.parent.name in (path.stem, record.reference)
    ]
    record, runs = found[0], results / "equivalence/trajectories"
    return _ran(
        results,
        "certify",
        variant=record.variant,
        equivalence=record.equivalence,
        short_run=runs / record.variant / "trajectory.json",
        reference=runs / str(record.reference) / "trajectory.json",
    )


def _combine(results: Path, file: Path) -> str:
    variant = file.relative_to(results).parts[1]
    return _ran(results, "combine", **combining(results, results / "runs" / variant))


def _compare(results: Path, file: Path) -> str:
    return _ran(results, "compare", **comparing(results))


def _ran(results: Path, kind: str, /, **fields: Any) -> str:
    """The output of a job; RefusedError if it ended with an error."""
    output = results / OUTPUT
    output.unlink(missing_ok=True)
    if run_job(kind, **fields, output=output):
        raise RefusedError
    return output.read_text()


class RefusedError(Exception):
    """A job printed an error and ended."""


def _attribute(name: str) -> Reader:
    return lambda results, file: getattr(StudyResults(results), name)


def _collectives(results: Path, file: Path) -> list[Any]:
    found = StudyResults(results).collectives
    return [found[0], found[1].to_csv()] if found else []


def _memory(results: Path, file: Path) -> list[Any]:
    found = StudyResults(results)
    return [found.memory, found.predicted_memory]


READERS: dict[str, Reader] = {
    "data/*/shards/*/*": _shards,
    "data/*/pairs/*.arrow": _pairs,
    "data/*/pairs/*.json": _pairs,
    "data/*/tokenizer.json": _tokenizer,
    "data/*/tokenizer.report.json": _attribute("tokenizer"),
    "equivalence/trajectories/*/trajectory.json": _certify,
    "equivalence/trajectories/*/final.safetensors": _certify,
    "equivalence/*.json": _compare,
    "runs/*/repeat-*/model.safetensors": _weights,
    "runs/*/repeat-*/steps.parquet": lambda _, file: recorded(file).to_csv(),
    "runs/*/repeat-*/metrics.json": _combine,
    "runs/*/evaluation.json": _attribute("evaluations"),
    "runs/*/spec.json": _combine,
    "runs/*/metrics.json": _compare,
    "turns/*/*/*/*.json": _compare,
    "study.json": _attribute("study"),
    "variants.json": _attribute("definitions"),
    "comparisons.json": _attribute("all_comparisons"),
    "families.json": _attribute("curves"),
    "claims.json": _attribute("claims"),
    "search.json": _attribute("search"),
    "utilisation.json": _attribute("utilisation"),
    "quality.json": _attribute("quality"),
    "projection/projection.json": _attribute("projection"),
    "links/error.json": _attribute("link_error"),
    "machine/hardware.json": _attribute("hardware"),
    "machine/roofline.json": _attribute("roofline"),
    "machine/collectives.parquet": _collectives,
    "memory/*.json": _memory,
    "memory/largest_batch/*.json": _attribute("largest_batches"),
    "profiles/*/breakdown.json": _attribute("breakdowns"),
    "profiles/*/events.parquet": lambda _, file: read_table(file).to_pydict(),
    "figures/*.svg": lambda _, file: svg.read(file).markup,
}
"""Readers of files, by pattern below results/."""


def digest_of(read: Any) -> str:
    return hashlib.sha256(repr(read).encode()).hexdigest()


_LARGEST = 20_000_000
"""Most bytes of a file that is damaged; larger files only take longer."""


def run(count: int, seed: int, results: Path) -> Tally:
    """The verdicts on ``count`` damages to a copy of ``results``."""
    tally = Tally("damages", seed)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "results")
        copy_results(results, copy)
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
    return tally


def copy_results(results: Path, to: Path) -> None:
    """Copies the results, except folders that no attack needs."""
    shutil.copytree(results, to, ignore=shutil.ignore_patterns("faults", "logs", "downloads"))


def judge(reader: Reader, results: Path, file: Path, right: str) -> tuple[Verdict, str]:
    """How a reader reacts to a damaged file, from which it should read ``right``."""
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
    return ("same", "") if found == right else ("silent", "another result without an error")


def _clear(said: str, file: Path) -> tuple[Verdict, str]:
    """Whether an error names the file, or its manifest or record, and a remedy."""
    named = str(file) in said or str(file.parent) in said
    return ("refused" if named and "remedy" in said else "unclear"), said


@contextlib.contextmanager
def _restored(file: Path):
    """Restores a file and the digests of its folder after the block."""
    files = [path for path in (file, file.with_name(NAME)) if path.exists()]
    kept = {path: (path.read_bytes(), path.stat()) for path in files}
    forget_all()
    try:
        yield
    finally:
        forget_all()
        for path, (content, stat) in kept.items():
            path.write_bytes(content)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _files(results: Path, pattern: str) -> list[Path]:
    return sorted(
        path
        for path in results.glob(pattern)
        if path.is_file() and not path.name.startswith(".") and path.stat().st_size <= _LARGEST
    )
