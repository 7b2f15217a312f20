"""All techniques for scripts, by name: every module of this folder that has a TECHNIQUE."""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from transformer_core.tune import techniques
from transformer_core.tune.techniques.technique import Technique

TECHNIQUES: dict[str, Technique] = {}

for _found in sorted(pkgutil.iter_modules(techniques.__path__), key=lambda found: found.name):
    _module = importlib.import_module(f"{techniques.__name__}.{_found.name}")
    for _technique in getattr(_module, "ALL", []):
        TECHNIQUES[_technique.name] = _technique


def environment_of(names: tuple[str, ...], facts: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables of techniques together."""
    found: dict[str, str] = {}
    for name in names:
        found |= TECHNIQUES[name].environment(dict(facts))
    return found
