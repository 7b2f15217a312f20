"""The profiles for clusters cover every rule that needs settings."""

import re

import pytest
import yaml
from project import ROOT

PROFILES = ROOT / "workflow/profiles"
SLURM = PROFILES / "slurm/config.yaml"


def rules() -> dict[str, str]:
    """The text of every rule, by name."""
    found: dict[str, str] = {}
    for file in (ROOT / "workflow/rules").glob("*.smk"):
        text = file.read_text()
        starts = [*re.finditer(r"^(?:    )?(?:use )?rule (?:\w+ as )?(\w+)", text, re.M)]
        ends = [*(start.start() for start in starts), len(text)][1:]
        found |= {m[1]: text[m.start() : end] for m, end in zip(starts, ends, strict=True)}
    return found


def timed_rules() -> set[str]:
    found = rules()
    timed = {name for name, text in found.items() if "timed=1" in text}
    inherited = {
        name
        for name, text in found.items()
        if (base := re.match(r"use rule (\w+) as", text)) and base[1] in timed
    }
    return timed | inherited


def test_every_timed_rule_has_its_hosts_to_itself_on_slurm():
    resources = yaml.safe_load(SLURM.read_text())["set-resources"]
    exclusive = {name for name, of in resources.items() if "--exclusive" in of["slurm_extra"]}
    assert exclusive == timed_rules() > {"train", "train_again", "turns", "roofline"}


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_a_job_that_ended_early_is_retried(name):
    profile = yaml.safe_load((PROFILES / name / "config.yaml").read_text())
    assert profile["retries"] > 0
    assert profile["rerun-incomplete"]


def test_every_profile_states_the_option_that_selects_it():
    for file in PROFILES.glob("*/config.yaml"):
        command = f"--workflow-profile {file.parent.relative_to(ROOT)}"
        assert command in file.read_text(), file


@pytest.mark.parametrize(
    "file", [*PROFILES.glob("*/config.yaml"), ROOT / "profiles/default/config.yaml"]
)
def test_after_a_kill_the_same_command_goes_on_with_every_profile(file):
    # --workflow-profile replaces profiles/default.
    profile = yaml.safe_load(file.read_text())
    assert profile["nolock"]
    assert profile["rerun-incomplete"]
