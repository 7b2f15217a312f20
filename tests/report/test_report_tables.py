import pytest
from report_builders import changed

from schemas.errors import ConfigError
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import TABLES
from transformer_core.report.tables import read_rows, to_csv, write_tables


def test_variants_are_in_the_order_of_the_study(table):
    variants = table("variants")
    names = [row["variant"] for row in variants]
    assert names == ["single", "amp_bf16", "qkv_separate", "ddp", "accum4_sync", "sgd", "forgetful"]
    amp = variants[1]
    assert amp["status"] == "ok"
    assert float(amp["alone_tokens_per_second_median"]) > 15_000
    speeds = [float(row["tokens_per_second_median"]) for row in variants[:2]]
    assert speeds[1] / speeds[0] == pytest.approx(float(amp["speedup_median"]))
    assert float(amp["speedup_low"]) <= float(amp["speedup_median"]) <= float(amp["speedup_high"])
    assert amp["peak_memory_bytes"] == str(345 << 20)
    assert amp["alone_tokens_per_second_samples"] == "24"
    assert variants[0]["speedup_median"] == ""


def test_missing_values_are_empty_and_never_zero(table):
    ddp = table("variants")[3]
    assert ddp["status"] == "unsupported"
    assert "needs 2 GPUs" in ddp["reason"]
    measured = ["tokens_per_second_median", "speedup_median", "bleu", "epoch_seconds"]
    assert [ddp[name] for name in [*measured, "padding_share", "peak_memory_bytes"]] == [""] * 6


def test_variants_have_certificates(table):
    found = {row["variant"]: row for row in table("variants")}
    assert found["amp_bf16"]["certificate"] == "equivalent"
    assert found["amp_bf16"]["speedup_counts"] == "True"
    for name, status in (("sgd", "different"), ("forgetful", "not_equivalent")):
        assert found[name]["certificate"] == status
        assert found[name]["speedup_counts"] == "False"
        assert float(found[name]["speedup_median"]) > 1, "the timing stays"


def test_a_row_for_every_deviation(table):
    deviations = table("equivalence")
    ours = [row for row in deviations if row["variant"] == "forgetful"]
    quantities = [row["quantity"] for row in ours]
    assert quantities[:4] == ["loss", "grad_norm", "weights", "replicas"]
    assert {"gradient", "update", "point_loss"} <= set(quantities[4:])
    assert (ours[0]["where"], ours[0]["certificate"]) == ("step 2", "not_equivalent")
    assert float(ours[0]["measured"]) == pytest.approx(0.1 / 7.5)
    (sgd,) = [row for row in deviations if row["variant"] == "sgd"]
    assert (sgd["measured"], sgd["compared_with"], sgd["equivalence"]) == ("", "", "different")
    assert "Another update rule" in sgd["reason"]


def test_corpus_and_machine(table):
    train, *others = table("corpus")
    assert train["pairs_read"] == "20003"
    assert train["pairs"] == "20000"
    assert (train["skipped_empty"], train["skipped_invalid"]) == ("1", "0")
    assert train["skipped_too_many_characters"] == "2"
    assert [row["split"] for row in others] == ["validation", "test"]
    found = {(row["device"], row["property"]): row["value"] for row in table("machine")}
    assert found["host", "cores"] == "2"
    assert "<script>" in found["host", "cpu"]
    assert found["host", "cpu_features"] == "avx512f amx_bf16"
    assert found["gpu 0", "memory_bytes"] == str(80 << 30)


def test_a_table_without_rows_has_its_columns(results, empty_report, tmp_path):
    found = {name: to_csv(read_rows(name, results)) for name in TABLES}
    study = results.study.model_copy(update={"memory": None})
    for few in (changed(results, claims=[], curves=[], study=study), StudyResults(empty_report)):
        write_tables(few, tmp_path)
        for name, text in found.items():
            columns = (tmp_path / f"{name}.csv").read_text().splitlines()[0]
            assert columns == text.splitlines()[0], name
    assert (tmp_path / "layers.csv").read_text().count("\n") == 1


def test_missing_result_is_named(copied):
    (copied / "runs/amp_bf16/metrics.json").unlink()
    with pytest.raises(ConfigError, match=r"snakemake .*amp_bf16/metrics\.json"):
        write_tables(StudyResults(copied), copied / "tables")
    assert not (copied / "tables").exists()
