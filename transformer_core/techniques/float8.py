"""Matrix products of 8 bits, by torchao."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from schemas.base import Schema
from schemas.config.facts import Numbers
from schemas.errors import Unsupported
from transformer_core.techniques import imported

if TYPE_CHECKING:
    from torch import device, nn

# First CUDA compute capabilities with float8 products scaled by tensor, by row, and by block.
_ADA, _HOPPER, _BLACKWELL = (8, 9), (9, 0), (10, 0)


class Float8(Schema):
    """Linear maps in float8 by the library torchao, over bfloat16 autocast and 32-bit weights:
    numbers are scaled into the range of 8 bits at every product. Its gain needs large maps and
    model.compile: layers, which fuses the scaling. On GPUs with compute capability 8.9 or later."""

    kind: Literal["float8"]
    scaling: Literal["tensor", "row", "mxfp8", "nvfp4"] = "tensor"
    """Numbers with one scale: all of a tensor, a row, or blocks of 32 (MXFP8) or 16 (NVFP4, of 4
    bits)."""

    numbers: ClassVar = Numbers("fp8", results=True, copies=2.0)
    emulated: ClassVar[bool] = False
    """Whether products are computed in more bits from rounded numbers, which any device can."""

    def convert_maps(self, model: "nn.Module", device: "device") -> None:
        """Replaces the linear maps of ``model`` whose sizes tensor cores support; keeps their names.

        Raises Unsupported if the device has no such products, the library is missing, or no map has
        such sizes.
        """
        from dataclasses import replace

        if not self.emulated:
            self._require(device)
        needs = "training.precision: float8 needs the library torchao"
        library = imported("torchao.float8", needs, "torchao")
        recipe = {"tensor": "tensorwise", "row": "rowwise"}[self.scaling]
        config = library.Float8LinearConfig.from_recipe_name(recipe)
        # Products for gradients of weights sum over the tokens of a batch, which may be any number.
        config = replace(config, pad_inner_dim=True, emulate=self.emulated)
        converted = []

        def fits(part: Any, name: str) -> bool:
            if found := not (part.in_features % 16 or part.out_features % 16):
                converted.append(name)
            return found

        library.convert_to_float8_training(model, config=config, module_filter_fn=fits)
        if not converted:
            raise Unsupported(
                "training.precision: float8 converts linear maps (torch.nn.Linear) with multiples of 16 "
                "inputs and outputs; this model has none"
            )

    def _require(self, device: "device") -> None:
        import torch

        if device.type != "cuda":
            raise Unsupported(
                "training.precision: products of float8 are those of GPUs; this run is on a CPU"
            )
        found = torch.cuda.get_device_capability(device)
        needed = {"tensor": _ADA, "row": _HOPPER}.get(self.scaling, _BLACKWELL)
        if found < needed:
            raise Unsupported(
                f"training.precision.scaling: {self.scaling} needs compute capability "
                f"{needed[0]}.{needed[1]} or later; {torch.cuda.get_device_name(device)} has "
                f"{found[0]}.{found[1]}"
            )
        if needed == _BLACKWELL:
            raise Unsupported(
                f"training.precision.scaling: torchao 0.18 supports {self.scaling} for inference, "
                "but not for training: use row"
            )
