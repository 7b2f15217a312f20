"""Trains a run spec, without measuring anything:

    python -m transformer_core.training --spec spec.json --data results/data/<corpus> --output FOLDER

Use torchrun to start several processes, with ``-m transformer_core.training`` and the same options.
Run the same command again to resume from the last checkpoint. A finished training is not repeated.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from schemas.config.run_spec import LanguageModel, RunSpec
from schemas.errors import ConfigError, ConfigProblem, PeerLost, Unsupported, from_validation
from schemas.results import ShardManifest
from transformer_core.common.endings import program
from transformer_core.common.files import atomic_path, write_text
from transformer_core.common.folder_locks import FolderInUse, exclusive
from transformer_core.common.progress import RunProgress, log, log_to
from transformer_core.common.records import read_record
from transformer_core.data.sharding.shard_store import PairStore, open_training_shards
from transformer_core.parallel import lost_ranks
from transformer_core.parallel.settling import settle
from transformer_core.parallel.sharded_weights import whole_weights
from transformer_core.parallel.topology import Process, this_process
from transformer_core.training.assemble import assemble
from transformer_core.training.checkpoint import identity
from transformer_core.training.history import History
from transformer_core.training.loop import Diverged, train
from transformer_core.training.observer import Progress

MODEL = "model.safetensors"
SPEC = "spec"
"""Entry of the model's metadata: the identity of its run spec."""


def trained(spec: RunSpec, output: Path) -> bool:
    """Whether ``output`` holds the model of this run spec."""
    try:
        with safe_open(output / MODEL, "pt") as model:
            return (model.metadata() or {}).get(SPEC) == identity(spec)
    except (FileNotFoundError, SafetensorError):
        return False


def run(
    spec: RunSpec, process: Process, stores: tuple[PairStore, PairStore], output: Path
) -> History:
    """Trains ``spec``. The main rank writes model.safetensors, steps.parquet and validations.json
    into ``output``, then deletes its folder ``checkpoint``."""
    setup = assemble(spec, process, stores[0].manifest.vocabulary, *stores)
    progress = RunProgress(spec.variant, spec.training.steps, show=process.is_main)
    checkpoints = output / "checkpoint"
    try:
        history = train(setup, Progress(progress), checkpoints)
    finally:
        progress.close()
    weights = whole_weights(setup.model, keep=process.is_main)
    if process.is_main:
        history.write(output / "steps.parquet")
        lines = ",\n".join(found.model_dump_json() for found in history.validations)
        write_text(output / "validations.json", f"[{lines}]\n")
        # The last file: if it is there, the training is finished.
        with atomic_path(output / MODEL) as temporary:
            save_file(weights, temporary, {"format": "pt", SPEC: identity(spec)})
            sort_header(temporary)
        shutil.rmtree(checkpoints, ignore_errors=True)
        log.info("%s: %s", spec.variant, output / MODEL)
    setup.strategy.synchronise()
    setup.strategy.close()
    return history


def sort_header(file: Path) -> None:
    """Sorts the header of a safetensors file: the library writes metadata in any order, but the same
    training should give the same bytes."""
    with file.open("r+b") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
        text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        stream.seek(8)
        stream.write(text.encode().ljust(size))


def check_processes(spec: RunSpec) -> None:
    """Raises Unsupported unless torchrun has started the processes of ``spec``, on as many hosts."""
    if spec.machine.link is not None:
        raise Unsupported(
            f"{spec.variant} limits the link between its hosts (machine.link), which only a study "
            "can do: set machine.link to null in the run spec"
        )
    started = int(os.environ.get("WORLD_SIZE", "1"))
    on_host = int(os.environ.get("LOCAL_WORLD_SIZE", started))
    group = not spec.parallel.one_process  # it needs one even for one process
    right = (started, on_host) == (spec.world_size, spec.processes_per_node)
    if right and not (group and "MASTER_ADDR" not in os.environ):
        return
    raise Unsupported(
        f"{spec.variant} needs {spec.world_size} processes (parallel.kind, machine), "
        f"{spec.processes_per_node} on each host{', started by torchrun' if group else ''}, but "
        f"{started} started, {on_host} on this host: use {spec.launch} transformer_core.training ..."
    )


def check_data(spec: RunSpec, data: Path, manifest: ShardManifest) -> None:
    """Raises ConfigError unless the shards in ``data`` are those that ``spec`` learns from."""
    wanted = spec.task.context if isinstance(spec.task, LanguageModel) else None
    found = manifest.texts.context if manifest.texts else None
    rows = [
        f"rows of {size} tokens of texts" if size else "sentence pairs" for size in (found, wanted)
    ]
    corpora = [f"the corpus {name}" for name in (manifest.corpus, spec.corpus.name)]
    for (held, learned), field in ((rows, "task"), (corpora, "corpus.name")):
        if held != learned:
            problem = f"holds {held}, but the spec learns from {learned} ({field})"
            remedy = "name the data of the study that the spec is from"
            raise ConfigError([ConfigProblem("command line", "--data", str(data), problem, remedy)])


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.training",
        description="Train a run spec, validate, keep checkpoints, and save the model. Run the "
        "same command again to resume from the last checkpoint. A finished training is not repeated.",
    )
    option = partial(parser.add_argument, type=Path, required=True)
    about = "the run spec, such as results/recommended.yaml or results/runs/single/spec.json"
    option("--spec", metavar="FILE", help=about)
    about = "folder of the tokenized corpus: results/data/<corpus>"
    option("--data", metavar="DIR", help=about)
    option("--output", metavar="DIR", help="folder for the model and its checkpoints")
    about = "steps between checkpoints, 0 for none (default: training.checkpoint_every)"
    parser.add_argument("--checkpoint-every", type=int, metavar="STEPS", help=about)
    given = parser.parse_args(arguments)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the numbers of GPUs in a study
    tells = main_rank = int(os.environ.get("RANK", "0")) == 0
    try:
        spec = read_record(given.spec, RunSpec)
        if given.checkpoint_every is not None:
            changed = {"checkpoint_every": given.checkpoint_every}
            training = {"training": spec.training.model_dump() | changed}
            try:
                spec = RunSpec.model_validate(spec.model_dump() | training)
            except ValidationError as error:
                raise from_validation(error, RunSpec, "command line") from None
        check_processes(spec)
        tells = True  # devices and files may differ between processes
        # The other processes share the folder of the main one.
        with exclusive(given.output, waits=False) if main_rank else nullcontext():
            process = this_process(spec.machine, spec.processes_per_node)
            if process.is_main:
                log_to(given.output / "train.log")
            if trained(spec, given.output):
                if process.is_main:
                    how = "to train it again, remove this file or name another --output"
                    log.info(
                        "%s: is trained already, %s; %s", spec.variant, given.output / MODEL, how
                    )
                return 0
            stores = open_training_shards(given.data)
            check_data(spec, given.data, stores[0].manifest)
            if process.local_world_size > 1 and os.environ.get("OMP_NUM_THREADS") == "1":
                # By torchrun: each process gets its share of the cores, as in a study.
                known = hasattr(os, "sched_getaffinity")
                cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
                torch.set_num_threads(max(1, cores // process.local_world_size))
            settle(process.device, spec.machine, *process.among(spec.machine))
            run(spec, process, stores, given.output)
    except FolderInUse as error:
        remedy = "wait until it has ended, or name another --output"
        print(f"--output {error}\n    remedy: {remedy}", file=sys.stderr)
        return 1
    except Exception as error:
        error = lost_ranks.explain(error)
        if not isinstance(error, Unsupported | Diverged | PeerLost | ValueError):
            raise
        if tells:
            print(error if main_rank else f"rank {os.environ['RANK']}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
