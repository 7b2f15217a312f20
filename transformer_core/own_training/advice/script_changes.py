"""From techniques to changes in the user's script: a diff where possible, else words."""

import ast
import difflib
from collections.abc import Sequence
from pathlib import Path

from schemas.config.own_training import ImportedTask, Technique
from schemas.results.own_training import StepFacts
from transformer_core.run.environment import allocator_environment

_FORMATS = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}

_WORDS: dict[Technique, str] = {
    "bf16": "Compute the loss under `torch.autocast(DEVICE, dtype=torch.bfloat16)`.",
    "fp16": "Compute the loss under `torch.autocast(DEVICE, dtype=torch.float16)`, scaled "
    "by `torch.amp.GradScaler(DEVICE)`: `scaler.scale(loss).backward()`, `scaler.step(optimizer)` "
    "and `scaler.update()`.",
    "bf16_matmul": 'Begin with `torch.backends.mkldnn.matmul.fp32_precision = "bf16"`.',
    "tf32": 'Begin with `torch.backends.cuda.matmul.fp32_precision = "tf32"`.',
    "fused_optimizer": "Give the optimizer `fused=True`.",
    "chunked_loss": "Compute output layer and cross-entropy a few hundred tokens at a time, each "
    "chunk under `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`, and add them up.",
    "accumulation_2": "Divide each batch into two, and call `(loss / 2).backward()` for each "
    "before `optimizer.step()`.",
    "compile": "Call `model.compile()` before the first step.",
    "ddp": "Start with `torchrun --nproc-per-node=N`, join by "
    "`torch.distributed.init_process_group()`, wrap the model in "
    "`torch.nn.parallel.DistributedDataParallel`, and let each rank take its own part of a batch.",
    "ddp_fp16_messages": "As DistributedDataParallel, and register "
    "`torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook`.",
    "fsdp": "Start with `torchrun`, and call `torch.distributed.fsdp.fully_shard` for each layer, "
    "then for the model, before the optimizer is made.",
}


def script_changes(
    techniques: Sequence[Technique], task: ImportedTask, facts: StepFacts, device: str
) -> tuple[str, list[str]]:
    """A unified diff of the user's files, which may be empty, and in words what it does not do.

    ``device`` is the kind of device, as autocast takes it.
    """
    texts: dict[str, list[str]] = {}
    words = []
    for name in techniques:
        if name == "bf16" and _decorated(texts, facts.loss_place, name, device):
            continue
        if name == "fused_optimizer" and _fused(texts, facts.optimizer_place, facts.optimizer):
            continue
        words.append(_in_words(name, device))
    return "".join(_diff(file, lines) for file, lines in texts.items()), words


def _in_words(name: Technique, device: str) -> str:
    if name not in ("allocator_kept", "allocator_huge_pages"):
        return _WORDS[name].replace("DEVICE", repr(device))
    wanted = allocator_environment("kept" if name == "allocator_kept" else "huge_pages")
    settings = " ".join(f"{key}={value}" for key, value in wanted.items())
    return f"Start the script with `env {settings} python ...`."


def _decorated(
    texts: dict[str, list[str]], place: tuple[str, int] | None, name: str, device: str
) -> bool:
    """Put autocast above the function of the loss, whose file has torch."""
    if place is None:
        return False
    file, line = place
    lines = texts.get(file) or Path(file).read_text(encoding="utf-8").splitlines(keepends=True)
    tree = ast.parse("".join(lines))
    imports = [n for n in tree.body if isinstance(n, ast.Import)]
    if not any(alias.name == "torch" and not alias.asname for n in imports for alias in n.names):
        return False
    function = _function_at(tree, line)
    if function is None:
        return False
    number = min([function.lineno, *(d.lineno for d in function.decorator_list)])
    head = f"@torch.autocast({device!r}, dtype={_FORMATS[name]})\n".replace("'", '"')
    texts[file] = [*lines[: number - 1], " " * function.col_offset + head, *lines[number - 1 :]]
    return True


def _fused(texts: dict[str, list[str]], place: tuple[str, int] | None, optimizer: str) -> bool:
    """Give the call of the optimizer's class, in the function that makes it, ``fused=True``."""
    if place is None:
        return False
    file, line = place
    lines = texts.get(file) or Path(file).read_text(encoding="utf-8").splitlines(keepends=True)
    tree = ast.parse("".join(lines))
    # A decorator may stand in the file now, above the function.
    function = _function_at(tree, line) or _function_at(tree, line + 1)
    calls = [
        node
        for node in ast.walk(function or tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == optimizer
    ]
    if len(calls) != 1 or any(keyword.arg == "fused" for keyword in calls[0].keywords):
        return False
    given: list[ast.expr] = [*calls[0].args, *(keyword.value for keyword in calls[0].keywords)]
    if not given:
        return False
    row, column = max((node.end_lineno or 0, node.end_col_offset or 0) for node in given)
    old = lines[row - 1].encode()
    new = f"{old[:column].decode()}, fused=True{old[column:].decode()}"
    texts[file] = [*lines[: row - 1], new, *lines[row:]]
    return True


def _function_at(tree: ast.Module, line: int) -> ast.FunctionDef | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == line:
                return node
    return None


def _diff(file: str, lines: Sequence[str]) -> str:
    old = Path(file).read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, lines, f"a/{file}", f"b/{file}"))
