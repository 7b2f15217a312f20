"""torchrun with one more way to meet, ``--rdzv-backend=one_address``: see
:mod:`transformer_core.run.hosts.one_address`.

``python -m transformer_core.run.hosts.agent`` takes the options of torchrun. It is on
every host of a run, and starts and ends without the time that Python takes for that.
"""

import os
import sys

from transformer_core.run.quick_start import imported, to_the_end

WAY_TO_MEET = "transformer_core.run.hosts.one_address"


def main() -> int:
    """torchrun with these options."""
    imported(WAY_TO_MEET, "torch.distributed.run").register()
    # Workers say why they ended in files of their own: torchrun's would stay in /tmp.
    sys.modules["torch.distributed.run"].main([f"--log-dir={os.devnull}", *sys.argv[1:]])
    return 0


if __name__ == "__main__":
    to_the_end(main)
