"""Finds a user's own function, which a setting names as ``package.module:function``.

This module imports nothing of the project: the user's modules may have any name.
"""

import difflib
import importlib
from collections.abc import Callable, Iterable
from typing import Any


def function_of(setting: str, factory: str) -> Callable[..., Any]:
    """The function that ``setting`` names. Raises ValueError if there is none; errors of the
    module itself are not caught."""
    module_name, _, name = factory.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing != module_name and not module_name.startswith(f"{missing}."):
            raise  # a module that the user's own module imports
        remedy = "start snakemake in the folder that holds it, or install it"
        raise wrong(setting, factory, f"there is no module {missing}", remedy) from None
    function = getattr(module, name, None)
    if not callable(function):
        names = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        problem = f"{module_name} has no function {name}"
        raise wrong(setting, factory, problem, near(name, names))
    return function


def near(name: str, known: Iterable[str]) -> str:
    """A remedy for a mistyped name."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, 3) or names
    return f"choose from {', '.join(close)}" if names else "there are none to choose from"


def wrong(setting: str, factory: str, problem: str, remedy: str) -> ValueError:
    """The error for a setting, in one line: the reason of a failed run shows no more."""
    return ValueError(f"{setting} = {factory}: {problem}; remedy: {remedy}")
