"""The work in a step: ``python -m benchmarks.step_counts``, which needs no device.

Counts the operators, FLOPs and bytes of a step on a GPU, for the published code and for the best
combination, on tensors that have shapes but no memory. An operator that makes or changes a tensor is
one launch or more, whatever the device; a view counts nothing. Bytes are those of inputs and
results, each once per operator. A compiled pass of the loss on a GPU has two kernels, but its
operators are counted here one by one.
"""

import argparse
import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks._contenders import CONTENDERS, CPU, PUBLISHED, Contender, model_of, sizes_of
from schemas.config.training import Training
from transformer_core.common.files import write_text
from transformer_core.data.batching.collate import Known
from transformer_core.measure.memory_prediction import imitated_cuda, place
from transformer_core.models.objective import Objective
from transformer_core.models.registry import build_model
from transformer_core.training.optimizer import build_optimizer
from transformer_core.training.precision import build_precision

STEPS = {
    PUBLISHED: CONTENDERS[PUBLISHED],
    "single in bf16": Contender({}, {"precision": {"kind": "bf16"}}),
    "best in bf16": Contender(
        {"memory_products": "together"},
        {"loss": {"kind": "one_pass"}, "clipping": "folded", "precision": {"kind": "bf16_weights"}},
    ),
}
"""The published step, the default in bfloat16, and the best combination for a GPU."""
_LOOKS = ("empty", "detach", "alias", "prim", "is_", "sym_", "_unsafe_view", "_local_scalar_dense")
"""Beginnings of the names of operators that only look at a tensor."""


class Counts(TorchDispatchMode):
    """Operators that make or change a tensor, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if func.is_view or name.startswith(_LOOKS):
            return result
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        read = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        self.names[name] += 1
        self.bytes += sum(_bytes(x) for x in {id(x): x for x in (*made, *read)}.values())
        return result


def _bytes(x: Tensor) -> int:
    """Bytes of the stored elements: an expanded tensor is read from one place."""
    stored = (size for size, stride in zip(x.shape, x.stride(), strict=True) if stride)
    return math.prod(stored) * x.element_size()


def count(
    contender: Contender, sizes: dict[str, Any], pairs: int, tokens: int, vocabulary: int
) -> dict[str, Any]:
    """Operators, FLOPs and bytes of a step of ``pairs`` pairs, ``tokens`` tokens on either side."""
    training = Training.model_validate(contender.training)
    with torch.device("meta"):
        model = build_model(model_of(sizes, contender.model), vocabulary)
    with imitated_cuda(), FakeTensorMode(allow_non_fake_inputs=True):
        place(model, CPU)
        precision = build_precision(training.precision, CPU, training.clipping)
        masters = precision.convert(model)
        objective = Objective(model, training.label_smoothing, training.loss).train()
        optimizer = build_optimizer(training.optimizer, objective, CPU, masters)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            batch = [torch.ones(pairs, tokens, dtype=torch.int64) * 5 for _ in range(3)]
            with precision.autocast():
                loss = objective(*batch, Known(source_full=True))
            precision.backward(loss / (pairs * tokens))
            precision.step(optimizer, objective.parameters(), training.clip_norm)

        step()  # creates the optimizer's state and the positions
        with Counts() as counts:
            step()
        with FlopCounterMode(display=False) as flops:
            step()
    return {
        "operators": counts.names.total(),
        "flops": flops.get_total_flops(),
        "bytes": counts.bytes,
        "most": dict(counts.names.most_common(12)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_counts", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--pairs", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--tokens", type=int, default=30, help="of a sentence (default: 30)")
    parser.add_argument(
        "--layers", type=int, default=6, help="of encoder and decoder each (default: 6)"
    )
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=30_000)
    parser.add_argument("--output", type=Path, help="JSON file")
    parser.set_defaults(dropout=0.1)
    options = parser.parse_args()
    sizes = sizes_of(options)
    found = {}
    print("| step | pairs | operators | TFLOP | GB |\n|---|---:|---:|---:|---:|")
    for pairs in options.pairs:
        for name, contender in STEPS.items():
            row = count(contender, sizes, pairs, options.tokens, options.vocabulary)
            found[f"{name}, {pairs} pairs"] = row
            print(
                f"| {name} | {pairs:,} | {row['operators']:,} | {row['flops'] / 1e12:.2f} "
                f"| {row['bytes'] / 1e9:.1f} |"
            )
    if options.output is not None:
        write_text(options.output, json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
