"""Peers whose import needs a workaround."""

from typing import Any

import torch


def import_streaming() -> Any:
    """mosaicml-streaming. It imports torchvision, of which a CUDA build does not load beside a CPU
    build of torch unless these names exist; nothing here uses them."""
    try:
        import streaming
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import streaming
    return streaming
