"""Keeps what a script writes away from the user's folder.

Where Linux allows it, the script sees its folder under an overlay: it reads and writes as ever, at
the same paths, and what it wrote disappears with its process. Elsewhere it runs in a copy.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

LARGEST_COPY = 2 << 30
"""Bytes of a folder that is copied where overlays are not allowed."""

_MOUNT = 'mount -t overlay overlay -o "$1" "$2" && cd / && shift 2 && exec "$@"'
_IGNORED = {".git", "__pycache__", "node_modules", ".venv", "venv", "wandb", "lightning_logs"}


class TooLarge(Exception):
    """A folder that would have to be copied is too large."""


def isolated(command: Sequence[str], folder: Path, scratch: Path) -> tuple[list[str], Path]:
    """``command`` changed so that it leaves ``folder`` untouched, and its working directory.

    What it writes lies below ``scratch``, which is not inside ``folder``. Raises TooLarge.
    """
    if overlay_works(scratch.parent) and not scratch.is_relative_to(folder):
        for name in ("upper", "work"):
            (scratch / name).mkdir(parents=True, exist_ok=True)
        return [
            *_namespace(),
            "sh",
            "-c",
            _MOUNT,
            "sh",
            _options(folder, scratch),
            str(folder),
            *command,
        ], folder
    copy = scratch / "copy"
    size = _size(folder)
    if size > LARGEST_COPY:
        raise TooLarge(
            f"{folder} has {size / 1e9:.1f} GB, and this system allows no overlay: the script would "
            "run in a copy of it; remedy: start in a folder that has the script and little else"
        )
    shutil.copytree(folder, copy, symlinks=True, ignore=_left_out)
    return list(command), copy


def _left_out(place: str, names: Sequence[str]) -> set[str]:
    """What is not copied: tools' own folders, and the results of this project."""
    ours = {"results", ".snakemake"} if Path(place, "results", ".study").exists() else set()
    return {*names} & (_IGNORED | ours)


def _size(folder: Path) -> int:
    """Bytes that a copy of ``folder`` would have."""
    found = 0
    for place, folders, files in os.walk(folder):
        left_out = _left_out(place, folders)
        folders[:] = [name for name in folders if name not in left_out]
        found += sum(Path(place, name).lstat().st_size for name in files)
    return found


@cache
def overlay_works(parent: Path) -> bool:
    """Whether this user can mount an overlay whose changes lie below ``parent``."""
    if shutil.which("unshare") is None:
        return False
    lower, scratch = parent / "overlay-test", parent / "overlay-scratch"
    for folder in (lower, scratch / "upper", scratch / "work"):
        folder.mkdir(parents=True, exist_ok=True)
    test = [*_namespace(), "sh", "-c", _MOUNT, "sh", _options(lower, scratch), str(lower), "true"]
    try:
        ended = subprocess.run(test, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        shutil.rmtree(lower, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)
    return ended.returncode == 0


def _namespace() -> list[str]:
    return ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]


def _options(lower: Path, scratch: Path) -> str:
    quoted = [
        str(p).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
        for p in (lower, scratch)
    ]
    extra = "" if os.geteuid() == 0 else ",userxattr"
    return f"lowerdir={quoted[0]},upperdir={quoted[1]}/upper,workdir={quoted[1]}/work{extra}"
