"""AdamW with 8-bit state from bitsandbytes (Dettmers et al., ICLR 2022, arXiv 2110.02861).

Imported on demand, because bitsandbytes is an optional dependency.
"""

import logging
import os
from typing import Any

from bitsandbytes.optim import AdamW8bit
from torch import nn

# On some CPUs importing bitsandbytes would download 4-bit kernels, or warn if it cannot. We do not
# use them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
logging.getLogger("bitsandbytes.backends").setLevel(logging.ERROR)


class BlockwiseAdamW(AdamW8bit):
    """bitsandbytes' AdamW8bit with a state that checkpoints can store like any optimizer's.

    Moments come in blocks of 256 elements, each with a 32-bit scale; tensors of fewer than 4,096
    elements keep 32-bit moments.
    """

    def init_state(self, group: dict[str, Any], p: nn.Parameter, gindex: int, pindex: int) -> None:
        super().init_state(group, p, gindex, pindex)
        state = self.state[p]
        for code_book in state.keys() & {"qmap1", "qmap2"}:
            # A safetensors file cannot hold one tensor that all parameters share.
            state[code_book] = state[code_book].clone()
