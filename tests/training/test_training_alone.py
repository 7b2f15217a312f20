"""Training without the rest of the program: ``python -m transformer_core.training``."""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_training import small_spec, small_store, small_texts

from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from transformer_core.common.folder_locks import exclusive
from transformer_core.parallel import lost_ranks
from transformer_core.training import __main__ as program
from transformer_core.training import checkpoint


def main(folder: Path, spec: RunSpec, *options: str) -> int:
    """The program on a small corpus in memory."""
    folder.mkdir(exist_ok=True)
    file = folder / "spec.json"
    file.write_text(spec.canonical_json())
    paths = ["--spec", str(file), "--data", str(folder), "--output", str(folder / "out")]
    return program.main([*paths, *options])


@pytest.fixture(autouse=True)
def _small_corpus(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    shards = small_store(), small_store(9, seed=1)
    monkeypatch.setattr(program, "open_training_shards", lambda data: shards)


def losses(folder: Path) -> list[float]:
    return pq.read_table(folder / "out/steps.parquet")["loss"].to_pylist()


def test_the_same_command_resumes_from_the_last_checkpoint(tmp_path, monkeypatch):
    spec = small_spec(training={"steps": 5, "log_every": 1})
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(whole, spec, "--checkpoint-every=2") == 0
    save = checkpoint.save

    def killed(*arguments: Any) -> None:
        save(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        main(cut, spec, "--checkpoint-every=2")
    monkeypatch.setattr(checkpoint, "save", save)
    assert not (cut / "out/model.safetensors").exists()
    # Another interval of checkpoints is no other training.
    assert main(cut, spec, "--checkpoint-every=3") == 0
    assert "resumes after step 2 of 5" in (cut / "out/train.log").read_text()
    assert losses(cut) == losses(whole)
    assert not (cut / "out/checkpoint").exists()
    first, second = (load_file(folder / "out/model.safetensors") for folder in (whole, cut))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_same_weights_are_the_same_bytes(tmp_path):
    """The library orders metadata at random: of eight files, some would differ."""
    weights, written = {"ä": torch.ones(2), "b": torch.zeros(3, dtype=torch.bfloat16)}, set()
    file = tmp_path / "model.safetensors"
    for _ in range(8):
        save_file(weights, file, {"format": "pt", program.SPEC: "0"})
        program.sort_header(file)
        written.add(file.read_bytes())
    assert len(written) == 1
    assert all(torch.equal(tensor, weights[name]) for name, tensor in load_file(file).items())


def test_a_training_is_validated_saved_and_not_repeated(tmp_path, monkeypatch):
    spec = small_spec(training={"steps": 4, "validate_every": 2, "log_every": 1})
    assert main(tmp_path, spec) == 0
    assert len(losses(tmp_path)) == 4
    validations = json.loads((tmp_path / "out/validations.json").read_text())
    assert [found["step"] for found in validations] == [2, 4]
    model, log, runs = tmp_path / "out/model.safetensors", tmp_path / "out/train.log", []
    assert all(tensor.isfinite().all() for tensor in load_file(model).values())
    assert model.stat().st_mode == log.stat().st_mode, "as the umask asks"
    assert "validation loss" in log.read_text()
    monkeypatch.setattr(program, "run", lambda spec, *_: runs.append(spec.training.steps))
    assert main(tmp_path, spec, "--checkpoint-every=1") == 0
    assert "is trained already" in log.read_text()
    assert main(tmp_path, small_spec(training={"steps": 3})) == 0
    model.write_bytes(model.read_bytes()[:100])
    assert main(tmp_path, spec) == 0
    assert runs == [3, 4], "another training, or a damaged model"


def test_a_folder_in_which_another_process_trains_is_refused(tmp_path, capsys):
    with exclusive(tmp_path / "out"):
        assert main(tmp_path, small_spec()) == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]
    said = capsys.readouterr().err
    assert f"--output {tmp_path}/out is in use by process {os.getpid()}\n    remedy: wait" in said


TORCHRUN = "torchrun --standalone --nproc-per-node={} -m transformer_core.training"
LINK = {"bandwidth": 1e9}


@pytest.mark.parametrize(
    ("machine", "started", "words"),
    [
        ({"devices_per_node": 2}, {}, TORCHRUN.format(2)),
        ({"devices_per_node": 2}, {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1}, "2 started, 1 on this"),
        ({"devices_per_node": 2, "link": LINK}, {}, "set machine.link to null"),
        ({"devices_per_node": 1}, {}, TORCHRUN.format(1)),
        (
            {"devices_per_node": 1, "nodes": 2},
            {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "a"},
            "torchrun --nnodes=2 --node-rank=NUMBER --master-addr=FIRST_HOST --nproc-per-node=1 -m",
        ),
    ],
)
def test_the_wrong_start_of_processes_is_refused_with_the_command(
    tmp_path, capsys, monkeypatch, machine, started, words
):
    for name, value in started.items():
        monkeypatch.setenv(name, str(value))
    spec = small_spec(parallel={"kind": "ddp"}, machine=machine)
    assert main(tmp_path, spec) == 1
    assert words in capsys.readouterr().err


def test_a_process_tells_what_only_it_may_lack(tmp_path, capsys, monkeypatch):
    spec = small_spec(parallel={"kind": "ddp"}, machine={"devices_per_node": 2})
    group = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "a"}
    for name, value in group.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(program, "this_process", Mock(side_effect=Unsupported("the GPU is busy")))
    assert main(tmp_path, spec) == 1
    assert capsys.readouterr().err == "rank 1: the GPU is busy\n"
    # The main process tells what all see.
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(tmp_path, spec) == 1
    assert capsys.readouterr().err == ""


def test_a_lost_peer_is_a_sentence_but_an_error_of_the_program_a_traceback(
    tmp_path, capsys, monkeypatch
):
    lost = RuntimeError("[gloo/pair.cc] Connection closed by peer. GLHF!")
    monkeypatch.setattr(program, "run", Mock(side_effect=[lost, RuntimeError("mine")]))
    monkeypatch.setattr(lost_ranks, "current", None)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    assert main(tmp_path, small_spec()) == 1
    said = "ranks cannot reach one another: [gloo/pair.cc] Connection closed by peer\n"
    assert capsys.readouterr().err == said
    with pytest.raises(RuntimeError, match="mine"):
        main(tmp_path, small_spec())


@pytest.mark.parametrize(("given", "machine", "threads"), [("1", 0, 4), ("3", 0, 3), ("1", 2, 2)])
def test_processes_of_torchrun_share_the_cores_as_in_a_study(
    tmp_path, monkeypatch, given, machine, threads
):
    """torchrun sets OMP_NUM_THREADS to 1 if the user does not set it."""
    counts, before = [], torch.get_num_threads()
    group = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
        "OMP_NUM_THREADS": given,
    }
    for name, value in group.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")
    del os.environ["CUDA_DEVICE_ORDER"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*range(9)})
    monkeypatch.setattr(program, "run", lambda *_: counts.append(torch.get_num_threads()))
    machine = {"devices_per_node": 2, "threads": machine}
    torch.set_num_threads(int(given))
    try:
        assert main(tmp_path, small_spec(parallel={"kind": "ddp"}, machine=machine)) == 0
    finally:
        torch.set_num_threads(before)
    assert counts == [threads]
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "GPUs have the same numbers, too"


def test_a_missing_spec_is_reported(tmp_path, capsys):
    options = ["--spec", str(tmp_path / "no.json"), "--data", "d", "--output", str(tmp_path)]
    assert program.main(options) == 1
    said = capsys.readouterr().err
    assert "no.json\n    problem: cannot be read: no such file or directory" in said
    assert "remedy:  check the path, or make it: snakemake" in said


def test_data_of_another_task_or_context_are_refused(tmp_path, capsys, monkeypatch):
    texts = small_spec(
        task={"kind": "language_model", "context": 20}, model={"kind": "decoder_only"}
    )
    assert main(tmp_path, texts) == 1
    assert "holds sentence pairs, but the spec learns from rows of 20" in capsys.readouterr().err
    shards = small_texts(), small_texts(9, seed=1)
    monkeypatch.setattr(program, "open_training_shards", lambda data: shards)
    for spec in (texts, small_spec()):
        assert main(tmp_path, spec) == 1
        assert "holds rows of 12 tokens of texts" in capsys.readouterr().err
    assert not (tmp_path / "out/model.safetensors").exists()


def test_data_of_another_corpus_are_refused(tmp_path, capsys):
    assert main(tmp_path, small_spec(corpus={"name": "mine"})) == 1
    said = capsys.readouterr().err
    assert "holds the corpus small, but the spec learns from the corpus mine (corpus.name)" in said


def test_an_impossible_option_is_named_with_the_remedy(tmp_path, capsys):
    assert main(tmp_path, small_spec(), "--checkpoint-every=-5") == 1
    said = capsys.readouterr().err
    assert said.startswith("command line: training.checkpoint_every = -5")
    assert "remedy:  give a number of at least 0" in said
