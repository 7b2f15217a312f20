"""Techniques of variants.yaml on language models: each keeps its certificate."""

from pathlib import Path
from typing import Any

from project import TINY, Project

from schemas.results import Certificate

STUDY: dict[str, Any] = {
    name: TINY[name] for name in TINY if name not in ("corpus", "filter", "model")
} | {
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
    "memory": None,
    "projection": None,
}
MODEL = {"kind": "decoder_only", "layers": 2, "d_model": 32, "d_ff": 64, "heads": 4, "kv_heads": 2}
TRIED = ["amp_bf16", "amp_fp16", "ddp_powersgd", "accum4_no_sync", "checkpoint_layers"]
# Its messages are in bfloat16, weights of normalizations too.
TRIED += ["fsdp_bf16"]


def test_techniques_have_certificates(tmp_path: Path) -> None:
    project = Project(tmp_path, STUDY | {"model": MODEL, "variants": ["single", *TRIED]})
    files = [f"results/equivalence/{variant}.json" for variant in TRIED]
    code, output = project.snakemake(*files)
    assert code == 0, output
    for file in files:
        found = Certificate.model_validate_json((tmp_path / file).read_text())
        assert found.status == "equivalent", f"{found.variant}: {found.reason}"
