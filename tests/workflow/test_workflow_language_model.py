"""A tiny study of a language model, from texts to the report."""

import json

import pytest
from project import TINY, Project

from schemas.results import (
    Breakdown,
    Certificate,
    EvaluationResult,
    PairedRun,
    ShardManifest,
    VariantResult,
)

REPORT = "results/report.html"
STUDY = {name: TINY[name] for name in TINY if name not in ("corpus", "filter", "model")} | {
    "name": "tiny_texts",
    "task": {"kind": "language_model", "context": 32, "prompt": 4, "continuation": 8},
    "corpus": {
        "kind": "grammar_documents",
        "train_texts": 300,
        "validation_texts": 12,
        "test_texts": 12,
        "sentences": 4,
    },
    "batching": {"kind": "token_budget", "tokens": 1024},
    "model": {
        "kind": "decoder_only",
        "layers": 2,
        "d_model": 32,
        "d_ff": 64,
        "heads": 4,
        "kv_heads": 2,
    },
    "memory": None,
    "projection": None,
    "variants": ["single", "memory_together"],
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    made = Project(tmp_path_factory.mktemp("project"), STUDY)
    made.make(REPORT)
    return made


@pytest.fixture(scope="module")
def folder(project):
    return project.folder / "results"


def test_rows_are_full_and_every_byte_is_counted(project):
    file = "results/data/grammar_documents/shards/test/manifest.json"
    manifest = project.read(file, ShardManifest)
    assert manifest.texts.texts == 12
    assert manifest.source_tokens == 0
    assert manifest.pairs == -(-manifest.target_tokens // 32)


def test_a_variant_is_measured_judged_and_certified(project):
    result = project.read("results/runs/single/metrics.json", VariantResult)
    assert result.status == "ok", result.reason
    evaluation = project.read("results/runs/single/evaluation.json", EvaluationResult)
    assert evaluation.texts.bits_per_byte > 0
    assert len(evaluation.continuations) == 2
    certificate = project.read("results/equivalence/single.json", Certificate)
    assert certificate.status == "equivalent", certificate.reason


def test_no_collective_operation_is_measured_for_one_rank(folder):
    assert (folder / "machine/roofline.json").exists()
    assert not (folder / "machine/collectives.parquet").exists()


def test_the_report_does_not_mention_translations(folder):
    page = (folder / "report.html").read_text()
    assert "Continuations" in page
    assert "Bits per byte" in page
    for word in ("BLEU", "sentence pair", "Translations"):
        assert word not in page, word
    answer = json.loads((folder / "summary.json").read_text())
    by_name = {variant["variant"]: variant for variant in answer["variants"]}
    assert by_name["single"]["bits_per_byte"]


def test_an_inapplicable_variant_is_unsupported_and_the_study_continues(folder):
    for kind, file in (
        (VariantResult, "runs/memory_together/metrics.json"),
        (Certificate, "equivalence/memory_together.json"),
        (Breakdown, "profiles/memory_together/breakdown.json"),
        (PairedRun, "turns/single/*/memory_together/single.json"),
    ):
        found = kind.model_validate_json(next(folder.glob(file)).read_text())
        assert found.status == "unsupported", file
        assert "model.memory_products = together" in str(found.reason), file
    assert "no model.memory_products = together" in (folder / "report.html").read_text()
