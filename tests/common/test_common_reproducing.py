"""The commands that results and errors name."""

from transformer_core.common.endings import remake


def test_the_remedy_names_target_study_and_the_damaged_file(monkeypatch):
    monkeypatch.setenv("STUDY_OPTIONS", "--configfile=my.yaml")
    command = "snakemake --cores all a.json --forcerun b.arrow --configfile=my.yaml"
    assert remake("a.json", "b.arrow") == f"make it again: {command}"
