"""A small but complete study on disk; its texts contain hostile markup."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from analysis_builders import seed_trajectory, trajectory
from claim_inputs import write_claims
from hostile import EVIL, EVIL_LANGUAGE, write
from machine_builders import write_limits
from memory_builders import write_memory
from pair_builders import ended, paired, side
from profile_builders import write_profile
from scaling_builders import write_scaling
from search_builders import write_quality, write_search

from schemas.config.measurement import Different
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.results import (
    Certificate,
    CorpusSplit,
    EvaluationResult,
    Gpu,
    Hardware,
    LengthHistogram,
    PairedRun,
    RankMemory,
    Repeat,
    Shard,
    SkippedPair,
    TokenizerReport,
    Trajectory,
    Translation,
    Validation,
    VariantResult,
    Window,
)
from schemas.results.certificates import CheckedPoint, Checks, TensorDistance
from tests.orders import combining, comparing, run_job
from tests.records import SHA, manifest, provenance, record, topology
from transformer_core.certify.bounds import Weights
from transformer_core.certify.judge import certify, different
from transformer_core.common.digests import NAME
from transformer_core.decide.study_results import StudyResults
from transformer_core.study.resolve import resolve_all

SPEED = {
    "single": 10_000.0,
    "amp_bf16": 16_200.0,
    "accum4_sync": 7_300.0,
    "qkv_separate": 10_000.0,
    "sgd": 11_000.0,
    "forgetful": 21_000.0,
}


def variant(summary: str, change: Any = None, **fields: Any) -> Variant:
    """A change of the baseline, with other ``fields`` if given."""
    usual = {"parent": "single", "change": change or {}, "equivalence": "tolerance"}
    return Variant(**(usual | {"summary": summary} | fields))


VARIANTS = {
    "single": variant("The reference.", parent=None),
    "amp_bf16": variant(
        f"bfloat16 autocast over 32-bit weights. {EVIL}",
        {"training": {"precision": {"kind": "bf16"}}},
        equivalence="statistical",
        tests=["A6", "C1"],
    ),
    "qkv_separate": variant("Three matrix products.", {"model": {"qkv": {"kind": "separate"}}}),
    "ddp": variant("One process per device.", {"parallel": {"kind": "ddp"}}, parent=None),
    "accum4_sync": variant(
        "All-reduces after each micro-batch.",
        {"training": {"accumulation": {"micro_batches": 4, "synchronise": "every"}}},
        parent="ddp",
    ),
    "sgd": variant(
        "Stochastic gradient descent.",
        {"training": {"optimizer": {"kind": "sgd"}}},
        equivalence={"kind": "different", "reason": f"Another update rule. {EVIL}"},
    ),
    "forgetful": variant("It does not train the same model.", {"training": {"seed": 2}}),
}


def hardware() -> Hardware:
    """A host with a GPU."""
    gpu = record(Gpu, index=0, name="Example GPU", memory_bytes=80 << 30, driver="550.1")
    found = {"cpu": f"Example CPU {EVIL}", "cores": 2, "gpus": [gpu], "gpu_note": None}
    found["cpu_features"] = ["avx512f", "amx_bf16"]
    return provenance().hardware.model_copy(update=found)


def windows(rate: float, repeat: int, count: int = 12) -> list[Window]:
    """Windows with a wave and a difference between repeats, but without randomness."""

    def window(index: int) -> Window:
        tokens, first = 30_000 + 400 * (index % 3), 21 + 10 * index
        noise = 1 + 0.02 * math.sin(1.7 * index + repeat) + 0.005 * (repeat - 1)
        counts = {"pairs": 1_500, "tokens": tokens, "padded_tokens": tokens + 900}
        times = {"seconds": tokens / rate * noise, "input_wait_seconds": 0.01}
        return Window(first_step=first, last_step=first + 9, **counts, **times)

    return [window(index) for index in range(count)]


def repeat_of(spec: RunSpec, number: int, rate: float, **changes: Any) -> Repeat:
    ranks = spec.world_size
    times = {"startup_seconds": 3.21, "warmup_seconds": 12.3, "total_seconds": 75.0}
    values: dict[str, Any] = {
        "variant": spec.variant,
        "repeat": number,
        "status": "ok",
        "steps": 140,
        **times,
        "topology": topology(
            ranks, backend="gloo" if ranks > 1 else None, threads_per_rank=2 // ranks
        ),
        "parameters": 1_234_567,
        "windows": windows(rate, number),
        "validations": [
            Validation(step=step, loss=2 + 60 / (step + 20)) for step in (40, 80, 120, 140)
        ],
        "memory": [
            record(RankMemory, rank=rank, device="cpu", rss_bytes=(345 + 10 * rank) << 20)
            for rank in range(ranks)
        ],
        "communication": {"bucket_bytes": [1 << 20, 2 << 20]} if ranks > 1 else None,
        "provenance": provenance(
            spec_sha256=spec.digest(),
            command=f"python -m example --variant {spec.variant}",
            commit="abc1234",
            packages={"torch": "2.13.0", "numpy": "2.1.0"},
            hardware=hardware(),
        ),
    }
    return record(Repeat, **(values | changes))


def unsupported(spec: RunSpec, number: int) -> Repeat:
    ended = {"status": "unsupported", "reason": f"needs 2 GPUs, found 1 {EVIL}", "steps": 0}
    unknown = ("topology", "parameters", "startup_seconds", "warmup_seconds", "communication")
    nothing = {"windows": [], "validations": [], "memory": []}
    return repeat_of(spec, number, 1.0, **ended, **dict.fromkeys(unknown), **nothing)


def evaluation_of(repeat: Repeat) -> EvaluationResult:
    old = "" if repeat.variant == "amp_bf16" else "alte "
    samples = [
        Translation(source=f"A dog & {EVIL}", reference="Ein Hund.", hypothesis="Ein Hund ."),
        Translation(
            source="The old teacher sees a green house.",
            reference="Der alte Lehrer sieht ein grünes Haus.",
            hypothesis=f"Der {old}Lehrer sieht ein Haus.",
        ),
    ]
    ended = {"variant": repeat.variant, "status": repeat.status, "reason": repeat.reason}
    if repeat.status != "ok":
        return record(EvaluationResult, pairs=0, **ended)
    scores = {"bleu": 31.415926, "chrf": 55.5, "pairs": 500, "seconds": 12.0}
    scores["signature"] = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
    return EvaluationResult(**scores, samples=samples, **ended)


def histogram(unit: Any, shift: int) -> LengthHistogram:
    counts = {length: 200 - (length - 30) ** 2 // 5 for length in range(5, 56, 2)}
    return LengthHistogram(
        unit=unit, source=counts, target={k + shift: v for k, v in counts.items()}
    )


_EXACT = TensorDistance(
    tensor="output.weight", step=1, error=0.0, ratio=1.0, cosine=1.0, size=2.0, rounding=1e-8
)
_POINT = CheckedPoint(
    step=1, loss=8.0, expected_loss=8.0, rounding=1e-8, norm=2.0, expected_norm=2.0
)
CHECKS = Checks(points=[_POINT], gradients=[_EXACT], updates=[_EXACT])
"""A training with exact gradients and updates."""


def certificate_of(run: Repeat) -> Certificate:
    """The certificate of a run: equal if it is ok, but the loss of forgetful differs."""
    name = run.variant
    equivalence = VARIANTS[name].equivalence
    checked = {"grad_norms": [2.0, 1.5, None], "replica_differences": [0.0] * 3, "checks": CHECKS}
    ended = {"status": run.status, "reason": run.reason, "provenance": run.provenance}

    def short_run(own: str, loss: float) -> Trajectory:
        seeds = [seed_trajectory(n, [8.0, loss, 7.0], **checked) for n in (1, 2, 3)]
        return trajectory(own, seeds if run.status == "ok" else [], **ended)

    if isinstance(equivalence, Different):
        return different(name, equivalence)
    weights = {"key.bias": np.zeros(2), "output.weight": np.ones(2)}
    before = {tensor: value - 1 for tensor, value in weights.items()}
    return certify(
        equivalence,
        short_run(name, 7.6 if name == "forgetful" else 7.5),
        short_run("reference", 7.5),
        Weights(run=weights, reference=weights, initial=before),
    )


def paired_run_of(run: Repeat, baseline: str) -> PairedRun:
    """Two sessions whose ratios are within a thousandth of the ratio of the speeds."""
    if run.status != "ok":
        return ended(run.status, str(run.reason), run.variant, baseline)
    ratio = SPEED[run.variant] / SPEED[baseline]
    changes = {"sides": [side(baseline, 345 << 20), side(run.variant, 350 << 20)]}
    return paired(0.999 * ratio, 1.001 * ratio, reference=baseline, variant=run.variant, **changes)


def write_corpus(folder: Path, corpus: str) -> None:
    stored = {"bytes": 1 << 20, "sha256": SHA}
    for split, pairs in (("train", 20_000), ("validation", 500), ("test", 500)):
        own = {"corpus": corpus, "split": split}
        read = CorpusSplit(
            files=[f"data/{split}.en.gz"],
            pairs_read=pairs + 3,
            pairs_kept=pairs,
            skipped={"empty": 1, "too_long": 2},
            examples=[SkippedPair(reason="empty", where="data/train.en:7", text=EVIL)],
            lengths=histogram("characters", 4),
            **own,
            **stored,
        )
        write(folder / f"pairs/{split}.json", read)
        counts = {"pairs": pairs, "source_tokens": 10 * pairs, "target_tokens": 11 * pairs}
        own |= {"shards": [Shard(file="0.arrow", **stored, **counts)]}
        whole = manifest(vocabulary=2_000, lengths=histogram("tokens", 1), **own, **counts)
        write(folder / f"shards/{split}/manifest.json", whole)
    made = {"vocabulary": 2_000, "sample_pairs": 20_000, "seconds": 0.8, "sha256": SHA}
    write(folder / "tokenizer.report.json", record(TokenizerReport, **made))


def write_steps(path: Path, floor: float) -> None:
    steps = list(range(1, 141))
    loss = [floor + 80 / (step + 15) if step % 10 == 0 else None for step in steps]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"step": steps, "loss": pa.array(loss, pa.float64())}), path)


def build(folder: Path, make_repeat: Callable[[RunSpec, int], Repeat]) -> Path:
    """Write the results of a study, combined and compared by the jobs of the analysis."""
    study = Study(
        name="example",
        title=f"Transformers, measured {EVIL}",
        corpus={"kind": "grammar", "source_language": "en", "target_language": EVIL_LANGUAGE},
        training={"steps": 140, "schedule": {"kind": "noam", "warmup": 40}},
        repeats=2,
        variants=list(VARIANTS),
        link_check={},
        quality={"bleu": 50},
        memory={"largest_batch": {"variants": ["single"]}},
    )
    specs = resolve_all(study, VARIANTS)
    written = {name: variant.model_dump(mode="json") for name, variant in VARIANTS.items()}
    write(folder / "study.json", study)
    write(folder / "variants.json", json.dumps(written))
    write(folder / "machine" / "hardware.json", hardware())
    write_corpus(folder / "data" / study.corpus.name, study.corpus.name)
    results = {}
    for position, (name, spec) in enumerate(specs.items()):
        run = folder / "runs" / name
        first, second = (make_repeat(spec, number) for number in (1, 2))
        write(run / "spec.json", spec.canonical_json())
        write(run / "repeat-1" / "metrics.json", first)
        write(run / "repeat-2" / "metrics.json", second)
        if first.status == "ok":
            write_steps(run / "repeat-1" / "steps.parquet", 1.8 + 0.1 * position)
        write_profile(folder / "profiles" / name, first, spec.world_size)
        write(run / "evaluation.json", evaluation_of(first))
        combined = run / "metrics.json"
        assert run_job("combine", output=combined, **combining(folder, run)) == 0
        results[name] = VariantResult.model_validate_json(combined.read_text())
        write(folder / "equivalence" / f"{name}.json", certificate_of(first))
        if name != study.baseline:
            pair = paired_run_of(first, study.baseline)
            write(folder / f"turns/{study.baseline}/1/{pair.pair}.json", pair)
    assert run_job("compare", output=folder / "comparisons.json", **comparing(folder)) == 0
    write_limits(folder, results)
    write_claims(folder)
    write_memory(folder, specs, results)
    write_scaling(folder, specs, results)
    baseline = specs[study.baseline]
    example = certificate_of(repeat_of(baseline, 1, 1.0))
    write_search(folder, baseline, example)
    write_quality(folder, baseline.variant, raced=make_repeat is not unsupported)
    # Tests change these files.
    for digests in folder.rglob(NAME):
        digests.unlink()
    return folder


def changed(results: StudyResults, **parts: Any) -> StudyResults:
    """The same results, but with these parts in place of those in the files."""
    other = StudyResults(results.folder)
    other.__dict__ |= parts
    return other


def ask(folder: Path, **sections: Any) -> StudyResults:
    """The results in a folder, as if the study had these sections."""
    study = json.loads((folder / "study.json").read_text()) | sections
    return changed(StudyResults(folder), study=Study.model_validate(study))


def mixed(spec: RunSpec, number: int) -> Repeat:
    """A faster run, a slower one, one like the baseline, and an unsupported one."""
    if spec.variant == "ddp":
        return unsupported(spec, number)
    return repeat_of(spec, number, SPEED[spec.variant])
