"""Everything that can change the sessions of a command. If any of it does, they are measured again."""

import hashlib
import json
from pathlib import Path

import torch

from transformer_core.common.files import write_text
from transformer_core.study.users_environment import variables_of_speed
from transformer_core.study.users_files import files_of_script
from transformer_core.tune.coordinator import Program

_FILE = ".identity.json"
"""File with the identity of the sessions stored in the same folder."""


def identity(program: Program, record: int | None, code: str) -> dict[str, str]:
    """Everything that sessions depend on, by its name in a sentence. ``record`` is the number of steps that
    the user wants compared, and ``code`` the digest of this project's code."""
    files = files_of_script(program.script, program.directory, program.command)
    named = (each.rpartition(" ") for each in files)
    return {
        "the command": digest((program, record)),
        **{f"the file {name}": of_file for name, _, of_file in named},
        "the code of this tool": code,
        "torch": torch.__version__,
        "the number of threads": str(torch.get_num_threads()),
        **variables_of_speed(),
    }


def digest(known: object) -> str:
    return hashlib.sha256(repr(known).encode()).hexdigest()


def keep(now: dict[str, str], folder: Path) -> list[str]:
    """Stores an identity in ``folder``, and returns what changed since the last one there, in words."""
    file = folder / _FILE
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else now
    names = [name for name in (*now, *before) if now.get(name) != before.get(name)]
    write_text(file, json.dumps(now, indent=1) + "\n")
    return [_in_words(name, now.get(name)) for name in dict.fromkeys(names)]


def _in_words(name: str, now: str | None) -> str:
    """Names a change, with the present value if that helps."""
    if name.startswith("the ") and name != "the number of threads":
        return name
    return f"{name} is {now}" if now is not None else f"{name} is not set"
