"""``tune-training`` from inside a script, as a callback of transformers' Trainer or of Lightning::

    from transformer_core.tune.callback import for_transformers, for_lightning

    trainer.add_callback(for_transformers("--time", "5min"))
    trainer = lightning.Trainer(callbacks=[for_lightning("--time", "5min")])

When training begins, the callback runs ``tune-training`` with these options on the command that
started this process, and prints the answer; then training continues. In copies it does nothing.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from transformer_core.tune.order import SIDE

# This process is the user's, who may have a package of this name.
if Path(getattr(sys.modules.get("schemas"), "__file__", None) or "").is_relative_to(
    Path(__file__).parents[2]
):
    del sys.modules["schemas"]


def for_transformers(*options: str) -> Any:
    from transformers import TrainerCallback

    class Tune(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            tune(*options)

    return Tune()


def for_lightning(*options: str) -> Any:
    """A callback for Lightning's Trainer, from the package lightning or pytorch_lightning."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class Tune(Callback):
        def on_train_start(self, *args: Any) -> None:
            tune(*options)

    return Tune()


def tune(*options: str) -> None:
    """Tunes the command that started this process, unless this process is an observed copy."""
    if SIDE in os.environ:
        return
    # In a process of its own: the signals of this one, and its packages, are the user's.
    command = [sys.executable, "-m", "transformer_core.tune", *options, *started_with()]
    with subprocess.Popen(command) as tuning:
        try:
            tuning.wait()
        except BaseException:
            tuning.terminate()  # and not kill: it ends its jobs
            raise


def started_with() -> list[str]:
    """Script and arguments of this process. Raises ValueError if there is no script."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("this process is one of several ranks; remedy: tune-training torchrun ...")
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return ["-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]]
    if not getattr(main, "__file__", None):
        raise ValueError(
            "no script started this process; remedy: write the training into a file, and run that"
        )
    return [str(main.__file__), *sys.argv[1:]]
