"""One process of a memory measurement. Started by
:mod:`transformer_core.measure.memory.anatomy.job`.

It trains a few steps on the batch that needs most memory, twice. The first time nothing follows
them, and the memory of process and device is read at every milestone. The second time every tensor
is followed, which says what the memory is for.
"""

import gc
import json

import torch
import torch.distributed as dist

from transformer_core.common.files import write_text
from transformer_core.common.progress import log
from transformer_core.data.sharding.training_shards import open_training_shards
from transformer_core.measure.memory.anatomy.followed_training import Training, followed, unfollowed
from transformer_core.measure.memory.anatomy.milestones import Milestones, first_kernel
from transformer_core.measure.memory.anatomy.order import AnatomyOrder, rank_file
from transformer_core.measure.memory.anatomy.rank_description import describe
from transformer_core.run.program import Program


def work(order: AnatomyOrder, program: Program) -> None:
    """Measure, and write the file of this rank."""
    milestones = Milestones()
    spec = order.spec
    process = program.process
    if process.is_main:
        log.info("%s: memory of %d steps", spec.variant, order.steps)
    devices = [process.device]
    if (
        spec.parallel.one_process
        and spec.machine.devices_per_node > 1
        and process.device.type == "cuda"
    ):
        devices = [torch.device("cuda", i) for i in range(spec.machine.devices_per_node)]
    # What is imported stays: without looking at it again, milestones take a tenth of the time.
    gc.freeze()
    milestones.begin(devices)
    for device in devices:
        first_kernel(device)
    milestones.take("first_kernel")
    shards = open_training_shards(order.data, nearest=False)
    training = Training(spec, process, shards.vocabulary, shards.stores, order.steps)
    plain = unfollowed(training, milestones)
    foreign = milestones.foreign()
    gc.collect()
    if process.device.type == "cuda":
        torch.cuda.empty_cache()
    # The replicas of DataParallel run in threads of their own, where nothing follows them.
    found = followed(training) if len(devices) == 1 else None
    record = {
        "topology": plain.topology.model_dump(mode="json"),
        "parameters": plain.parameters,
        "ranks": [r.model_dump(mode="json") for r in describe(training, milestones, plain, found)],
        "decoding": found and found.decoding and found.decoding.model_dump(mode="json"),
        "foreign": [process.model_dump(mode="json") for process in foreign],
    }
    write_text(order.output / rank_file(process.rank), json.dumps(record))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
