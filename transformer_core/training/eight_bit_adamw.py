"""AdamW with 8-bit state from bitsandbytes (Dettmers et al., ICLR 2022, arXiv 2110.02861).

Imported only where it is used: bitsandbytes is an optional dependency.
"""

import logging
import os
from typing import Any

from bitsandbytes.optim import AdamW8bit
from torch import nn

# On some CPUs bitsandbytes would fetch 4-bit kernels from the network when it is imported, and
# warns where it cannot. Nothing here uses them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
logging.getLogger("bitsandbytes.backends").setLevel(logging.ERROR)


class BlockwiseAdamW(AdamW8bit):
    """bitsandbytes' AdamW8bit with a state that can be saved like that of any optimizer.

    Moments in blocks of 256 elements, each with a 32-bit scale; tensors of fewer than 4,096
    elements keep 32-bit moments.
    """

    def init_state(self, group: dict[str, Any], p: nn.Parameter, gindex: int, pindex: int) -> None:
        super().init_state(group, p, gindex, pindex)
        state = self.state[p]
        for code_book in state.keys() & {"qmap1", "qmap2"}:
            # One tensor that all parameters share could not be written to a safetensors file.
            state[code_book] = state[code_book].clone()
