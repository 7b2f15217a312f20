"""All techniques for scripts, by name: every named subclass in the modules of this folder."""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from transformer_core.tune import techniques
from transformer_core.tune.techniques.technique import Technique

TECHNIQUES: dict[str, Technique] = {}
"""By module, and in a module in the order of their definitions: in this order they are tried."""

for _name in sorted(found.name for found in pkgutil.iter_modules(techniques.__path__)):
    _module = importlib.import_module(f"{techniques.__name__}.{_name}")
    for _kind in vars(_module).values():
        if isinstance(_kind, type) and issubclass(_kind, Technique) and "name" in vars(_kind):
            TECHNIQUES[_kind.name] = _kind()


def environment_of(names: tuple[str, ...], facts: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables of several techniques together."""
    found: dict[str, str] = {}
    for name in names:
        found |= TECHNIQUES[name].environment(dict(facts))
    return found
