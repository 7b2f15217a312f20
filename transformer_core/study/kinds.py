"""Maps the ``kind`` in an order's JSON to its class.

Classes are given by name, so that an order imports only its own.
"""

import importlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem, from_validation, nearest

CHANGES_NO_RESULT = True  # the programs of each rule are listed separately

JOBS = MappingProxyType(
    {
        "against": "transformer_core.decide.against.AgainstJob",
        "attention_truth": "transformer_core.measure.gpu_check.attention_truth.AttentionTruthJob",
        "audit": "transformer_core.audit.job.AuditJob",
        "breakdown": "transformer_core.observe.breakdown.BreakdownJob",
        "certificates": "transformer_core.certify.judge.CertificatesJob",
        "certify": "transformer_core.certify.judge.CertifyJob",
        "claims": "transformer_core.decide.claims.ClaimsJob",
        "collectives": "transformer_core.measure.collectives.Collectives",
        "combine": "transformer_core.decide.combine.CombineJob",
        "compare": "transformer_core.decide.compare.CompareJob",
        "compare_page": "transformer_core.report.compare_page.ComparePageJob",
        "compute_times": "transformer_core.measure.compute.ComputeTimesJob",
        "device_facts": "transformer_core.measure.gpu_check.device_facts.DeviceFactsJob",
        "evaluation": "transformer_core.measure.evaluation.Evaluation",
        "export_parquet": "transformer_core.data.sharding.finished.ExportParquet",
        "families": "transformer_core.decide.family_curves.FamiliesJob",
        "gather_shards": "transformer_core.data.sharding.finished.GatherShards",
        "gpu_check_page": "transformer_core.report.gpu_check_page.GpuCheckPageJob",
        "gpu_checks": "transformer_core.decide.gpu_check.GpuChecksJob",
        "gpu_tests": "transformer_core.measure.gpu_check.device_tests.GpuTestsJob",
        "hardware": "transformer_core.machine.hardware.HardwareJob",
        "largest_batch": "transformer_core.measure.largest_batch.LargestBatchJob",
        "link_error": "transformer_core.decide.link_error.LinkErrorJob",
        "memory": "transformer_core.measure.memory_anatomy.MemoryAnatomy",
        "predict_memory": "transformer_core.measure.predicted_memory.PredictMemory",
        "profile": "transformer_core.observe.profile_job.ProfileJob",
        "projection": "transformer_core.decide.projection.ProjectionJob",
        "quality": "transformer_core.measure.quality.QualityJob",
        "read_corpus": "transformer_core.data.corpus.job.ReadCorpus",
        "refine": "transformer_core.decide.refine.RefineJob",
        "report": "transformer_core.report.page.ReportJob",
        "roofline": "transformer_core.measure.roofline.RooflineJob",
        "search": "transformer_core.decide.search.SearchJob",
        "self_test": "transformer_core.measure.self_test.SelfTestJob",
        "self_test_report": "transformer_core.decide.self_test_report.SelfTestReportJob",
        "shards": "transformer_core.data.sharding.job.Shards",
        "short_run": "transformer_core.certify.short_run.ShortRun",
        "timed_run": "transformer_core.measure.timed_run.TimedRun",
        "tokenizer": "transformer_core.data.tokenizing.job.TrainTokenizer",
        "tune": "transformer_core.tune.job.TuneJob",
        "tune_page": "transformer_core.report.tune_page.TunePageJob",
        "turns": "transformer_core.measure.turns.TurnsJob",
        "utilisation": "transformer_core.decide.utilisation.UtilisationJob",
        "verify_data": "transformer_core.data.sharding.finished.VerifyData",
    }
)
"""Orders that rules write."""


def class_of(kind: str, kinds: Mapping[str, str], where: str) -> Any:
    """The class of a kind; ConfigError with the nearest names for an unknown one. ``where`` names the
    source of the order."""
    if kind not in kinds:
        remedy = nearest(kind, kinds)
        raise ConfigError([ConfigProblem(where, "kind", kind, "is not known", remedy)])
    module, _, name = kinds[kind].rpartition(".")
    return getattr(importlib.import_module(module), name)


def parse(text: str, kinds: Mapping[str, str], where: str) -> Any:
    """The order in a JSON text; ConfigError, naming its source ``where``, if it is invalid."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        fields = str(error)
    if not isinstance(fields, dict):
        message, remedy = "is not a JSON object", "give an order"
        raise ConfigError([ConfigProblem(where, WHOLE_FILE, text[:80], message, remedy)])
    model = class_of(str(fields.pop("kind", "")), kinds, where)
    try:
        return model.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise from_validation(error, model, where) from None
