"""The programs that each rule starts: what its results depend on among the sources."""

from pathlib import Path
from types import MappingProxyType

_JOB = "transformer_core.run.job"


def _modules(folder: str) -> tuple[str, ...]:
    """Modules of a folder of the package, which programs find by looking into it."""
    root = Path(__file__).parents[2]
    files = sorted(root.glob(f"transformer_core/{folder}/[a-z]*.py"))
    return tuple(".".join(path.relative_to(root).with_suffix("").parts) for path in files)


PROGRAMS = MappingProxyType(
    {
        "read_corpus": (_JOB, "transformer_core.data.corpus.job"),
        "tokenizer": (_JOB, "transformer_core.data.tokenizing.job"),
        "shards": (_JOB, "transformer_core.data.sharding.job"),
        "shards_part": (_JOB, "transformer_core.data.sharding.job"),
        "gather_shards": (_JOB, "transformer_core.data.sharding.finished"),
        "verify_data": (_JOB, "transformer_core.data.sharding.finished"),
        "export_parquet": (_JOB, "transformer_core.data.sharding.finished"),
        "hardware": (_JOB, "transformer_core.machine.hardware"),
        "roofline": (_JOB, "transformer_core.measure.roofline"),
        "collectives": (_JOB, "transformer_core.measure.collectives"),
        "utilisation": (_JOB, "transformer_core.decide.utilisation"),
        "predict_memory": (_JOB, "transformer_core.measure.predicted_memory"),
        "memory": (_JOB, "transformer_core.measure.memory_anatomy"),
        "largest_batch": (_JOB, "transformer_core.measure.largest_batch"),
        "train": (_JOB, "transformer_core.measure.timed_run"),
        "train_again": (_JOB, "transformer_core.measure.timed_run"),
        "evaluate": (_JOB, "transformer_core.measure.evaluation"),
        "combine": (_JOB, "transformer_core.decide.combine"),
        "short_run": (_JOB, "transformer_core.certify.short_run"),
        "audit": (
            *(_JOB, "transformer_core.audit.job", "transformer_core.audit.side"),
            "transformer_core.training.__main__",
        ),
        "certificates": (_JOB, "transformer_core.certify.certificate_table"),
        "certify": (_JOB, "transformer_core.certify.judge"),
        "profile": (_JOB, "transformer_core.observe.profile_job"),
        "breakdown": (_JOB, "transformer_core.observe.breakdown"),
        "breakdown_of_traces": ("transformer_core.trace",),
        "perfetto": ("transformer_core.trace",),
        "turns": (_JOB, "transformer_core.measure.turns"),
        "refine": (_JOB, "transformer_core.decide.refine"),
        "compare": (_JOB, "transformer_core.decide.compare"),
        "self_test_sessions": (_JOB, "transformer_core.measure.self_test"),
        "self_test": (_JOB, "transformer_core.decide.self_test_report"),
        "families": (_JOB, "transformer_core.decide.family_curves"),
        "claims": (_JOB, "transformer_core.decide.claims"),
        "search": (_JOB, "transformer_core.decide.search"),
        "quality": (_JOB, "transformer_core.measure.quality"),
        "tune": (
            *(_JOB, "transformer_core.tune.job", "transformer_core.tune.side"),
            "transformer_core.tune.factory",
            *_modules("tune/techniques"),
        ),
        "tune_page": (_JOB, "transformer_core.report.tune_page", *_modules("tune/techniques")),
        "link_trial": (_JOB, "transformer_core.measure.turns"),
        "link_error": (_JOB, "transformer_core.decide.link_error"),
        "compute_times": (_JOB, "transformer_core.measure.compute"),
        "projection": (_JOB, "transformer_core.decide.projection"),
        "page": (_JOB, "transformer_core.report.page", *_modules("report/sections")),
        "gpu_tests": (_JOB, "transformer_core.measure.gpu_check.device_tests"),
        "device_facts": (_JOB, "transformer_core.measure.gpu_check.device_facts"),
        "attention_truth": (_JOB, "transformer_core.measure.gpu_check.attention_truth"),
        "gpu_checks": (_JOB, "transformer_core.decide.gpu_check"),
        "gpu_check_page": (_JOB, "transformer_core.report.gpu_check_page"),
        "gpu_check_so_far": (_JOB, "transformer_core.report.gpu_check_page"),
        "against": (_JOB, "transformer_core.decide.against"),
        "compare_page": (_JOB, "transformer_core.report.compare_page"),
    }
)
"""Modules by rule, as the commands of the rules name them; after the program of orders, the module of
the order's kind."""
