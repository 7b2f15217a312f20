"""Orders of rules: files come from inputs and outputs, settings count as parameters."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.shell import shell

from schemas.config.measurement import Comparing
from transformer_core.study import orders
from transformer_core.study.orders import order_params, shell_prefix


class Names(list[Any]):
    """Files of a job, some of them named, like Snakemake's."""

    def __init__(self, *files: Any, **named: Any) -> None:
        super().__init__([*files, *named.values()])
        self.named = named

    def items(self) -> Any:
        return self.named.items()


SHARDS = [f"results/data/mine/shards/{split}/manifest.json" for split in ("train", "validation")]
WILDCARDS = SimpleNamespace(variant="ddp", items=lambda: [("variant", "ddp")])


def test_named_files_are_fields_and_settings_are_parameters():
    params = order_params(
        "turns",
        "digest",
        comparing=Comparing(),
        variant=lambda wildcards: wildcards.variant,
        folder=lambda wildcards, output: output[0].removesuffix(".json"),
        processes=lambda wildcards, threads: threads,
        missing=None,
    )
    files = Names("not/a/field", spec="spec.json", shards=SHARDS, reference=[])
    order = json.loads(params["order"](WILDCARDS, files, Names("out.json", report="r.json"), 4))
    assert order == {
        "kind": "turns",
        "spec": "spec.json",
        "data": "results/data/mine",
        "output": "out.json",
        "report": "r.json",
        "comparing": Comparing().model_dump(mode="json"),
        "variant": "ddp",
        "folder": "out",
        "processes": 4,
    }
    asked = json.loads(params["asked"](WILDCARDS))
    assert asked.keys() == {"comparing", "variant", "missing"}
    assert params["code"] == "digest"
    assert not {"own", "again"} & params.keys()
    # A named output is not the field output.
    params = order_params("read", "digest", output=None)
    order = json.loads(params["order"](WILDCARDS, Names(), Names(pairs="p.arrow"), 1))
    assert order == {"kind": "read", "pairs": "p.arrow"}
    assert "asked" in params


def test_models_and_failures_make_results_stale(monkeypatch):
    monkeypatch.setattr(orders, "failures", lambda result: f"failures of {result}")
    monkeypatch.setattr(orders, "own_models", lambda specs: [f"model of {spec}" for spec in specs])
    params = order_params(
        "train", "digest", of=lambda wildcards: [wildcards.variant], again="runs/{variant}/x.json"
    )
    assert params["own"](WILDCARDS) == ["model of ddp"]
    assert params["again"](WILDCARDS) == "failures of runs/ddp/x.json"


def test_jobs_find_their_python_in_a_folder_of_any_name(tmp_path: Path) -> None:
    python = tmp_path / "my project's {new} $HOME" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho started\n")
    python.chmod(0o700)
    # Snakemake formats the start of a command.
    command = f"{shell_prefix(str(python)).format()}python"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


@pytest.mark.parametrize("name", ["WRITE_SPEC", "JOB"])
def test_an_order_may_be_longer_than_a_word_of_a_command_line(tmp_path, monkeypatch, name):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    missing = [f"results/runs/it's_number_{number}/metrics.json" for number in range(5_000)]
    text = json.dumps({"kind": "certificates", "certificates": missing, "output": "é.md"})
    (command,) = re.findall(
        rf'^{name} = "(.*)"$', Path("workflow/rules/common.smk").read_text(), re.M
    )
    output, log = tmp_path / "order.json", tmp_path / "log"
    params = SimpleNamespace(order=text, spec=text)
    if name == "JOB":
        with pytest.raises(subprocess.CalledProcessError):
            shell(command, params=params, log=log)
        assert missing[0] in log.read_text()
    else:
        shell(command, params=params, output=output, log=log)
        assert output.read_text() == f"{text}\n"


def test_rules_give_only_names_of_files_as_words():
    for file in Path("workflow/rules").glob("*.smk"):
        given = re.findall(r"(\S+) {params\.(\w+):q}", file.read_text())
        assert {name for before, name in given if before != "<<<"} <= {"files"}, file
