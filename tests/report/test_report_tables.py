import csv
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.tables import write_tables


@pytest.fixture(scope="module")
def tables(study_folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("tables")
    write_tables(StudyResults(study_folder), output)
    return output


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_variants_are_in_the_order_of_the_study(tables):
    table = rows(tables / "variants.csv")
    names = [row["variant"] for row in table]
    assert names == ["single", "amp_bf16", "qkv_separate", "ddp", "accum4_sync", "sgd", "forgetful"]
    amp = table[1]
    assert amp["status"] == "ok"
    assert float(amp["alone_tokens_per_second_median"]) > 15_000
    speeds = [float(row["tokens_per_second_median"]) for row in table[:2]]
    assert speeds[1] / speeds[0] == pytest.approx(float(amp["speedup_median"]))
    assert float(amp["speedup_low"]) <= float(amp["speedup_median"]) <= float(amp["speedup_high"])
    assert amp["peak_memory_bytes"] == str(345 << 20)
    assert amp["alone_tokens_per_second_samples"] == "24"
    assert table[0]["speedup_median"] == ""


def test_what_was_not_measured_is_empty_and_never_zero(tables):
    ddp = rows(tables / "variants.csv")[3]
    assert ddp["status"] == "unsupported"
    assert "needs 2 GPUs" in ddp["reason"]
    measured = ["tokens_per_second_median", "speedup_median", "bleu", "epoch_seconds"]
    assert [ddp[name] for name in [*measured, "padding_share", "peak_memory_bytes"]] == [""] * 6


def test_certificates_stand_beside_the_speed(tables):
    table = {row["variant"]: row for row in rows(tables / "variants.csv")}
    assert table["amp_bf16"]["certificate"] == "equivalent"
    assert table["amp_bf16"]["speedup_counts"] == "True"
    for name, status in (("sgd", "different"), ("forgetful", "not_equivalent")):
        assert table[name]["certificate"] == status
        assert table[name]["speedup_counts"] == "False"
        assert float(table[name]["speedup_median"]) > 1, "the timing stays"


def test_a_row_for_every_deviation(tables):
    table = rows(tables / "equivalence.csv")
    ours = [row for row in table if row["variant"] == "forgetful"]
    quantities = [row["quantity"] for row in ours]
    assert quantities[:4] == ["loss", "grad_norm", "weights", "replicas"]
    assert {"gradient", "update", "point_loss"} <= set(quantities[4:])
    assert (ours[0]["where"], ours[0]["certificate"]) == ("step 2", "not_equivalent")
    assert float(ours[0]["measured"]) == pytest.approx(0.1 / 7.5)
    (sgd,) = [row for row in table if row["variant"] == "sgd"]
    assert (sgd["measured"], sgd["compared_with"], sgd["equivalence"]) == ("", "", "different")
    assert "Another update rule" in sgd["reason"]


def test_corpus_counts(tables):
    train, *others = rows(tables / "corpus.csv")
    assert train["pairs_read"] == "20003"
    assert train["pairs"] == "20000"
    assert (train["skipped_empty"], train["skipped_invalid"]) == ("1", "0")
    assert train["skipped_too_many_characters"] == "2"
    assert [row["split"] for row in others] == ["validation", "test"]


def test_machine_lists_host_and_gpus(tables):
    table = {(row["device"], row["property"]): row["value"] for row in rows(tables / "machine.csv")}
    assert table["host", "cores"] == "2"
    assert "<script>" in table["host", "cpu"]
    assert table["host", "cpu_features"] == "avx512f amx_bf16"
    assert table["gpu 0", "memory_bytes"] == str(80 << 30)


def test_missing_result_is_named(copied):
    (copied / "runs/amp_bf16/metrics.json").unlink()
    with pytest.raises(ConfigError, match=r"snakemake .*amp_bf16/metrics\.json"):
        write_tables(StudyResults(copied), copied / "tables")
    assert not (copied / "tables").exists()
