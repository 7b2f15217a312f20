"""Number formats of the forward and backward pass, and of the matrix products in them.

One switch of the process determines how it multiplies 32-bit matrices. On a CPU torch uses oneDNN
for 16 bits and MKL for 32, without a choice. On CPUs not made by Intel, MKL uses only half of each
512-bit register, but oneDNN all of it. We therefore register another kernel for torch's operators,
below autograd, so models and losses need not know about it.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from schemas.config.training import AnyPrecision, Clipping, Fp16
from schemas.errors import Unsupported
from transformer_core.parallel.sharded_weights import is_sharded, local, mesh_of, whole

_EPSILON = 1e-6  # the constant that torch.nn.utils.clip_grad_norm_ adds to the norm


class Precision:
    """32-bit weights and activations; other precisions override what they do differently."""

    def __init__(self, clipping: Clipping = "apart") -> None:
        """With ``clipping`` "folded" the optimizer's kernel scales gradients down, if it can."""
        self.clipping = clipping

    def convert(self, model: nn.Module) -> Mapping[nn.Parameter, Tensor]:
        """Converts ``model`` to the format of its weights. Returns the 32-bit weights of those that
        are trained with fewer bits."""
        return {}

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(
        self, optimizer: Optimizer, parameters: Iterable[nn.Parameter], clip_norm: float
    ) -> torch.Tensor:
        """Clips and updates; returns the gradient's norm before clipping, on the device.

        ``clip_norm`` of 0 does not clip.
        """
        self.unscale(optimizer)
        weights = [parameter for parameter in parameters if parameter.grad is not None]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = _norm(gradients)
        if not clip_norm:
            self.update(optimizer, norm)
        elif self.clipping == "folded" and _divides(optimizer, weights):
            # The kernel divides each gradient by this when it reads it.
            optimizer.grad_scale = ((norm + _EPSILON) / clip_norm).clamp(min=1.0)  # type: ignore[attr-defined]
            self.update(optimizer, norm)
            del optimizer.grad_scale  # type: ignore[attr-defined]
        else:
            scale_down(gradients, norm, clip_norm)
            self.update(optimizer, norm)
        return norm

    def unscale(self, optimizer: Optimizer) -> None:
        """Divides the gradients by the factor by which :meth:`backward` multiplied the loss."""

    def update(self, optimizer: Optimizer, norm: torch.Tensor) -> None:
        """Applies the gradients, whose norm was ``norm`` before clipping."""
        optimizer.step()

    def report(self) -> dict[str, Any] | None:
        return None

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Restores the state that :meth:`state` returned."""


class Autocast(Precision):
    """Matrix products in a 16-bit format, weights and reductions in 32 bit."""

    def __init__(self, device_type: str, dtype: torch.dtype, clipping: Clipping = "apart") -> None:
        super().__init__(clipping)
        self.device_type = device_type
        self.dtype = dtype

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device_type, dtype=self.dtype)


class LowWeights(Precision):
    """bfloat16 throughout; the optimizer keeps the weights in 32 bits."""

    def convert(self, model: nn.Module) -> Mapping[nn.Parameter, Tensor]:
        low: dict[nn.Parameter, nn.Parameter] = {}
        # We replace parameters, since fake ones cannot change, and keep tied ones tied.
        for module in model.modules():
            for name, old in module._parameters.items():
                if old is not None and old.is_floating_point() and old not in low:
                    low[old] = nn.Parameter(old.detach().bfloat16(), old.requires_grad)
                module._parameters[name] = None if old is None else low.get(old, old)
        return {new: old.detach().float() for old, new in low.items() if old.requires_grad}


class ConvertedMaps(Autocast):
    """A technique's own linear maps, with bfloat16 between them."""

    def __init__(self, spec: AnyPrecision, device: torch.device, clipping: Clipping) -> None:
        super().__init__(device.type, torch.bfloat16, clipping)
        self.spec, self.device = spec, device

    def convert(self, model: nn.Module) -> Mapping[nn.Parameter, Tensor]:
        self.spec.convert_maps(model, self.device)  # type: ignore[union-attr]
        return {}


class Scaler(torch.amp.GradScaler):
    """torch's, which gives gradients on several meshes to one kernel, although none takes them."""

    def _unscale_grads_(self, optimizer: Any, *how: Any) -> dict[torch.device, Tensor]:
        found: dict[torch.device, Tensor] = {}
        for group in optimizer.param_groups:  # each of one mesh
            part: Any = SimpleNamespace(param_groups=[group])
            for device, overflow in super()._unscale_grads_(part, *how).items():
                found[device] = torch.maximum(overflow, found.get(device, overflow))
        return found


class ScaledAutocast(Autocast):
    """float16 autocast with a loss scale (Micikevicius et al., ICLR 2018, arXiv 1710.03740).

    The scale lifts small gradients into the range of float16. If it makes one overflow, every rank
    skips that step and halves the scale. The scale occupies the optimizer's gradient factor, so
    clipping must be a separate operation.
    """

    def __init__(self, device: torch.device, spec: Fp16) -> None:
        super().__init__(device.type, torch.float16)
        self.scaler = Scaler(
            device.type, init_scale=spec.initial_scale, growth_interval=spec.growth_interval
        )
        # On the device, since reading the count at every step would make the host wait.
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        self.scaler.unscale_(optimizer)

    def update(self, optimizer: Optimizer, norm: torch.Tensor) -> None:
        self.scaler.step(optimizer)
        self.scaler.update()
        self.skipped += ~norm.isfinite()

    def report(self) -> dict[str, Any] | None:
        return {"skipped_steps": int(self.skipped), "loss_scale": self.scaler.get_scale()}

    def state(self) -> dict[str, Any]:
        return {"scaler": self.scaler.state_dict(), "skipped_steps": int(self.skipped)}

    def load(self, state: dict[str, Any]) -> None:
        self.scaler.load_state_dict(state["scaler"])
        self.skipped.fill_(state["skipped_steps"])


def build_precision(
    spec: AnyPrecision, device: torch.device, clipping: Clipping = "apart"
) -> Precision:
    """Builds the precision of ``spec``, and switches the matrix products of the whole process to it.

    Raises Unsupported if the device does not support it.
    """
    set_matmul(spec, device)
    numbers = spec.numbers
    if isinstance(spec, Fp16):
        return ScaledAutocast(device, spec)
    if hasattr(spec, "convert_maps"):
        return ConvertedMaps(spec, device, clipping)
    if numbers.masters:
        return LowWeights(clipping)
    if numbers.results:
        return Autocast(device.type, torch.bfloat16, clipping)
    return Precision(clipping)


def scale_down(gradients: Iterable[Tensor], norm: Tensor, limit: float) -> None:
    """Scales gradients in place so that their norm, ``norm``, becomes ``limit`` at most; of sharded
    ones it scales this rank's part."""
    factor = (limit / (norm + _EPSILON)).clamp(max=1.0)
    for _, some in _of_one_kind(map(local, gradients)):
        torch._foreach_mul_(some, factor)


def _norm(gradients: list[Tensor]) -> Tensor:
    """The 2-norm of all gradients together. Sums are in 32 bits, even for bfloat16; norms of shards
    include all ranks."""
    norms = []
    for mesh, some in _of_one_kind(gradients):
        wide = torch.float32 if mesh is None and some[0].dtype == torch.bfloat16 else None
        each = torch._foreach_norm(some, 2, wide) if wide else torch._foreach_norm(some, 2)
        norms.append(whole(torch.linalg.vector_norm(torch.stack(each))))
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def _of_one_kind(tensors: Iterable[Tensor]) -> list[tuple[Any, list[Tensor]]]:
    """Groups tensors that one kernel can take together: of one format, whole or on one mesh."""
    found: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault((mesh_of(tensor), tensor.dtype), []).append(tensor)
    return [(mesh, some) for (mesh, _), some in found.items()]


def _divides(optimizer: Optimizer, weights: Sequence[nn.Parameter]) -> bool:
    """Whether the optimizer's kernel can divide gradients by a factor.

    torch's fused kernels can, for the sake of loss scales, but not on shards.
    """
    fused = getattr(optimizer, "_step_supports_amp_scaling", False)
    return fused and not any(map(is_sharded, weights))


_AMPERE = (8, 0)  # first CUDA compute capability with TensorFloat-32


def set_matmul(spec: AnyPrecision, device: torch.device) -> None:
    """Switches to the matrix products of ``spec``: 32-bit ones unless it asks for others.

    We set 32 bit explicitly, because an environment variable of some container images
    (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE) makes TensorFloat-32 the default.

    Raises Unsupported if ``device`` lacks the format; matrix products are then in 32 bit.
    """
    # We use the older of torch's settings, which set the newer ones too. If only the newer were set,
    # reading the older, as compilers and users' code do, would raise an error.
    torch.set_float32_matmul_precision("highest")
    take_torchs()
    match spec.numbers.matmul:
        case "onednn":
            if device.type != "cpu":
                raise Unsupported(
                    "oneDNN computes on CPUs; this run is on CUDA: use the precision fp32 or tf32"
                )
            take_onednn()
        case "tf32":
            _require_tf32(device)
            torch.backends.cuda.matmul.allow_tf32 = True
        case "bf16":
            _require_bf16_products(device)
            torch.set_float32_matmul_precision("medium")


def _require_tf32(device: torch.device) -> None:
    if device.type != "cuda":
        raise Unsupported("TensorFloat-32 is a format of CUDA devices; this run is on a CPU")
    capability = torch.cuda.get_device_capability(device)
    if capability < _AMPERE:
        raise Unsupported(
            f"TensorFloat-32 needs compute capability {'.'.join(map(str, _AMPERE))} or higher; "
            f"{torch.cuda.get_device_name(device)} has {'.'.join(map(str, capability))}"
        )


def _require_bf16_products(device: torch.device) -> None:
    if device.type != "cpu":
        raise Unsupported(
            "32-bit matrix products in bfloat16 are a mode of oneDNN on CPUs; on CUDA use the "
            "precision tf32 or bf16"
        )
    # CPUs without the instructions accept and ignore the setting, so we test a product.
    torch.set_float32_matmul_precision("medium")
    rounded = _rounds_to_bf16()
    torch.set_float32_matmul_precision("highest")
    if not rounded:
        raise Unsupported(
            "32-bit matrix products in bfloat16 need a CPU with AMX-BF16 (AVX-512 BF16 does "
            "not suffice) and a torch with oneDNN; here they stay in 32 bit"
        )


@cache
def _rounds_to_bf16() -> bool:
    """Whether a matrix product of 32-bit tensors loses the low bits of its operands."""
    n = 128
    ones = torch.ones(n, n)
    # bfloat16 has 8 significant bits: 1 + 2^-10 becomes 1.
    return bool(((ones + 2**-10) @ ones == n).all())


_OPERATORS = ("mm", "mm.out", "addmm", "addmm.out", "addmm_")
_library: list[torch.library.Library] = []
"""The libraries that hold the kernels, while they are registered."""


def take_onednn() -> None:
    """Switches 32-bit matrix products on CPUs to oneDNN; Unsupported if torch lacks it."""
    if _library:
        return
    try:
        _product(torch.ones(2, 2), torch.ones(2, 2))
        before = {name: torch.library.get_kernel(f"aten::{name}", "CPU") for name in _OPERATORS}
    except (AttributeError, RuntimeError) as error:
        raise Unsupported(
            "fp32_onednn needs torch 2.9 or newer with oneDNN for 32 bits; this is "
            f"{torch.__version__} ({error}): use fp32"
        ) from error
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that we override a kernel
        for name, kernel in before.items():
            library.impl(name, _kernel(name, kernel), "CPU", with_keyset=True, allow_override=True)
    _library.append(library)


def take_torchs() -> None:
    """Switches 32-bit matrix products back to torch's own choice."""
    while _library:
        _library.pop()._destroy()


def _kernel(name: str, before: Any) -> Callable[..., Tensor]:
    """The new kernel of an operator; passes calls that oneDNN cannot serve to the kernel
    ``before``."""
    kernels: dict[str, Callable[..., Tensor]] = {
        "mm": _product,
        "mm.out": lambda a, b, *, out: _into(out, _product(a, b)),
        "addmm": _added,
        "addmm.out": lambda *args, out, **factors: _into(out, _added(*args, **factors)),
        "addmm_": _add_to,
    }
    mine = kernels[name]

    def kernel(keys: Any, *args: Any, **options: Any) -> Tensor:
        tensors = [x for x in args if isinstance(x, Tensor)]
        if all(x.dtype == torch.float32 and x.numel() for x in tensors):
            return mine(*args, **options)
        return before.call_boxed(keys, *args, **options)

    return kernel


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a [n, k], b [k, m], bias [m] -> [n, m]."""
    # oneDNN reads its second operand in either order, but torch copies the first unless its rows
    # are contiguous. The transposed product may have less to copy.
    if bias is None and a.stride(0) == 1 and a.numel() > b.numel() + a.size(0) * b.size(1):
        return _linear(b.t(), a, None).t().contiguous()
    return _linear(a, b.t(), bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()  # oneDNN has no fast kernel for rows with gaps
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, "none", [], "")


def _added(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if c.dim() == 1 and len(c) == b.size(1) and beta == 1 and alpha == 1:
        return _product(a, b, c.contiguous())
    result = _scaled(a, b, alpha)
    # With a beta of 0 we must ignore the contents of c, even NaNs.
    return result.add_(c, alpha=beta) if beta else result


def _add_to(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if not beta:
        return c.copy_(_scaled(a, b, alpha))
    return (c if beta == 1 else c.mul_(beta)).add_(_product(a, b), alpha=alpha)


def _scaled(a: Tensor, b: Tensor, factor: float) -> Tensor:
    result = _product(a, b)
    return result if factor == 1 else result.mul_(factor)


def _into(out: Tensor, result: Tensor) -> Tensor:
    return out.resize_(result.shape).copy_(result)
