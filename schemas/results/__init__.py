# ruff: noqa: F403, F405
"""Records that one job writes and another reads: one module per folder of results/.

Times are in seconds, sizes in bytes. An unmeasured value is null, never 0. All names can be
imported from here; their modules are loaded only on use, because Snakemake starts often and needs
few of them.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schemas.results.answer import *
    from schemas.results.certificates import *
    from schemas.results.common import *
    from schemas.results.comparisons import *
    from schemas.results.data import *
    from schemas.results.gpu_check import *
    from schemas.results.machine import *
    from schemas.results.memory import *
    from schemas.results.profiles import *
    from schemas.results.runs import *


def __getattr__(name: str) -> Any:
    """A public name defined by one of the modules."""
    if not name.startswith("_"):
        for module in iter_modules(__path__, f"{__name__}."):
            if name in (names := vars(import_module(module.name))):
                return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
