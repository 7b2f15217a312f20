"""The commands that results and errors name."""

from pathlib import Path

from transformer_core.common.endings import remake, reproducing_command


def test_the_command_names_target_and_study(monkeypatch):
    monkeypatch.setenv("STUDY_OPTIONS", "--configfile=my.yaml")
    command = reproducing_command(Path("results/runs/v/repeat-1/metrics.json"))
    assert command == (
        "snakemake --cores all results/runs/v/repeat-1/metrics.json --configfile=my.yaml"
    )


def test_the_remedy_forces_the_damaged_file(monkeypatch):
    monkeypatch.delenv("STUDY_OPTIONS", raising=False)
    assert remake("a.json") == "make it again: snakemake --cores all a.json --forcerun a.json"
    assert remake("a.json", "b.arrow").endswith("a.json --forcerun b.arrow")
