"""Changes that work without knowledge of the script, one class each: every named subclass of Technique in
the modules of this folder."""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from transformer_core.tune.techniques.technique import Technique

_ORDER = """
pinned_threads one_numa_node cores_near_gpu allocator_kept allocator_huge_pages jemalloc
expandable_segments sdpa_flash sdpa_mem_efficient sdpa_cudnn sdpa_math bf16 fp16 chunked_loss
compiled_blocks compiled_model data_workers pinned_memory ddp_static_graph ddp_bucket_view
ddp_buckets_100mb ddp_no_sync deferred_reads ddp ddp_fp16_messages fsdp accumulation_2 float8
freed_gradients gc_off channels_last cudnn_benchmark bf16_matmul tf32 fused_optimizer
foreach_optimizer kept_activations recomputed_blocks physical_cores
""".split()  # noqa: SIM905
"""The techniques that are tried first, in this order; others follow."""

_kinds: dict[str, type[Technique]] = {}
for _module in pkgutil.iter_modules(__path__):
    for _kind in vars(importlib.import_module(f"{__name__}.{_module.name}")).values():
        if isinstance(_kind, type) and issubclass(_kind, Technique) and "name" in vars(_kind):
            _kinds[_kind.name] = _kind

TECHNIQUES: dict[str, Technique] = {
    name: _kinds[name]() for name in dict.fromkeys((*_ORDER, *_kinds))
}
"""All techniques by name, in the order in which they are tried."""


def environment_of(names: tuple[str, ...], facts: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        found |= TECHNIQUES[name].environment(dict(facts))
    return found
