"""What reads which results: the readers of the jobs themselves, each as a digest of what it got.

A reader is called with the folder of the results and the file that may be damaged.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from schemas.config.run_spec import RunSpec
from schemas.results import Certificate
from transformer_core.certify.certificates import certify
from transformer_core.common.records import read_record
from transformer_core.common.tables import read_table
from transformer_core.data.corpus.pair_file import PairFile
from transformer_core.data.sharding.shard_store import open_shards, read_manifest
from transformer_core.data.tokenizing.job import load_tokenizer
from transformer_core.decide.comparisons import combine, compare
from transformer_core.decide.data_frames import training_loss_frame
from transformer_core.decide.study_results import StudyResults
from transformer_core.models.registry import build_model
from transformer_core.report.kit import svg
from transformer_core.training.translate import load_weights

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
    """The certificate of the first variant that the short run is compared for."""
    found = [
        record
        for path in sorted((results / "equivalence").glob("*.json"))
        if (record := read_record(path, Certificate)).reference is not None
        and file.parent.name in (path.stem, record.reference)
    ]
    record, runs = found[0], results / "equivalence/trajectories"
    options = ["--variant", record.variant, "--equivalence", record.equivalence.model_dump_json()]
    options += [
        "--run",
        str(runs / record.variant),
        "--reference",
        str(runs / str(record.reference)),
    ]
    return _made(certify.main, options, results)


def _combine(results: Path, file: Path) -> str:
    relative = file.relative_to(results).parts
    folder = results / relative[0] / relative[1]
    (manifest,) = results.glob("data/*/shards/train/manifest.json")
    repeats = sorted(map(str, folder.glob("repeat-*/metrics.json")))
    options = ["--variant", folder.name, "--spec", str(folder / "spec.json"), "--repeats", *repeats]
    options += ["--evaluation", str(folder / "evaluation.json"), "--train-manifest", str(manifest)]
    return _made(combine.main, options, results)


def _compare(results: Path, file: Path) -> str:
    options = ["--margin", "0.02", "--pairs", *sorted(map(str, results.glob("pairs/*/*.json")))]
    options += ["--results", *sorted(map(str, results.glob("runs/*/metrics.json")))]
    options += ["--certificates", *sorted(map(str, results.glob("equivalence/*.json")))]
    return _made(compare.main, options, results)


def _made(main: Callable[[list[str]], int], options: list[str], results: Path) -> str:
    """What a job writes; RefusedError if it says what is wrong instead."""
    output = results / OUTPUT
    output.unlink(missing_ok=True)
    if main([*options, "--output", str(output)]):
        raise RefusedError
    return output.read_text()


class RefusedError(Exception):
    """A job has ended with an error, which it has printed."""


def _attribute(name: str) -> Reader:
    return lambda results, file: getattr(StudyResults(results), name)


def _losses(results: Path, file: Path) -> str:
    return str(training_loss_frame({"variant": file}).to_csv())


def _picture(results: Path, file: Path) -> str:
    return str(svg.read(file).markup)


def _table(results: Path, file: Path) -> dict[str, Any]:
    return dict(read_table(file).to_pydict())


def _collectives(results: Path, file: Path) -> list[Any]:
    found = StudyResults(results).collectives
    return [found[0], found[1].to_csv()] if found else []


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
    "runs/*/repeat-*/steps.parquet": _losses,
    "runs/*/repeat-*/metrics.json": _combine,
    "runs/*/evaluation.json": _combine,
    "runs/*/spec.json": _combine,
    "runs/*/metrics.json": _compare,
    "pairs/*/*.json": _compare,
    "study.json": _attribute("study"),
    "variants.json": _attribute("definitions"),
    "comparisons.json": _attribute("all_comparisons"),
    "families.json": _attribute("curves"),
    "claims.json": _attribute("claims"),
    "search.json": _attribute("search"),
    "utilisation.json": _attribute("utilisation"),
    "machine/hardware.json": _attribute("hardware"),
    "machine/roofline.json": _attribute("roofline"),
    "machine/collectives.parquet": _collectives,
    "memory/*.json": _attribute("memory"),
    "profiles/*/breakdown.json": _attribute("breakdowns"),
    "profiles/*/events.parquet": _table,
    "figures/*.svg": _picture,
}
"""Readers of files, by pattern below results/."""


def digest_of(read: Any) -> str:
    """A digest of what a reader got."""
    return hashlib.sha256(repr(read).encode()).hexdigest()
