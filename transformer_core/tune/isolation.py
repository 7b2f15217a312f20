"""Keeps the files that a script writes out of the user's folder.

Where Linux allows it, the script sees its folder through an overlay: it reads and writes at the usual
paths, and its changes disappear with its process. The same holds for other folders to which links in it
lead, and for file systems mounted in it. Elsewhere the script runs in a copy of the folder.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

LARGEST_COPY = 2 << 30  # largest folder, in bytes, that is copied where overlays are not allowed

OUTSIDE = "outside"
"""Folder for edited files that do not lie in the folder of the script."""
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000  # of unshare(2)
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000  # of mount(2)
_IGNORED = {".git", "__pycache__", "node_modules", ".venv", "venv", "wandb", "lightning_logs"}


class TooLarge(Exception):
    """A folder is too large to copy, or there is no place for its copy."""


def outside(folders: Sequence[Path]) -> str:
    """The folder for temporary files or, if it is in one of ``folders``, which then could not be copied
    there, another one."""
    usual = tempfile.gettempdir()
    for place in (usual, "/var/tmp", "/dev/shm"):
        inner = Path(place).resolve()
        if os.access(place, os.W_OK) and not any(inner.is_relative_to(each) for each in folders):
            return place
    return usual


def isolated(folder: Path, scratch: Path) -> tuple[Path, list[str]]:
    """A working directory for a process that must not change ``folder``, and the arguments of
    :func:`enter` if the process must first enter an overlay there; none if the directory is a copy.

    The changes of the process lie below ``scratch``, outside ``folder``. Raises TooLarge.
    """
    if scratch.resolve().is_relative_to(folder):
        raise TooLarge(
            f"{folder} holds {scratch.parent}, where the script would run in a copy of it; remedy: start in "
            "a folder that has the script and little else, or set TMPDIR to another folder"
        )
    if overlay_works(folder, scratch.parent):
        for name in ("upper", "work"):
            (scratch / name).mkdir(parents=True, exist_ok=True)
        return folder, [str(folder), str(scratch)]
    copy = scratch / "copy"
    size = _size(folder)
    if size > LARGEST_COPY:
        raise TooLarge(
            f"{folder} has {size / 1e9:.1f} GB, and this system allows no overlay: the script would "
            "need a copy of it; remedy: start in a folder that has the script and little else"
        )
    try:
        shutil.copytree(folder, copy, symlinks=True, ignore=_left_out)
    except OSError as error:
        why = error.args[0][0][-1] if isinstance(error, shutil.Error) else error
        raise TooLarge(
            f"{folder} cannot be copied to {scratch}, and this system allows no overlay: {why}; remedy: "
            "make room there, or set TMPDIR to another folder"
        ) from None
    return copy, []


def inside(overlay: Sequence[str], command: Sequence[str]) -> list[str]:
    """``command`` in the overlay of :func:`isolated`, if there is one."""
    return [sys.executable, "-I", __file__, *overlay, *command] if overlay else list(command)


def enter(folder: str, scratch: str) -> None:
    """Gives this process a private view of ``folder``: an overlay whose changes lie below ``scratch``.
    Files below ``scratch``/:data:`OUTSIDE` take the places of those at the same paths.
    The process must have only one thread. Raises OSError if Linux does not allow it.

    A user other than root needs a user namespace, in which they keep their number
    (user_namespaces(7); "Overlay Filesystem" in the Linux documentation).
    """
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW_MOUNTS | (_NEW_USER if user else 0))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", None, b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None)
    mounts = _mounts()
    # An overlay shows an empty folder where another file system is mounted.
    inner = {place: os.open(place, os.O_PATH) for place in mounts if _below(place, folder)}
    linked = [
        place
        for place in _linked(folder, scratch, mounts)
        if not user or Path(place).stat().st_uid == user  # A namespace knows no other owner.
    ]
    _overlay(folder, folder, scratch, user)
    for number, (place, file) in enumerate(inner.items()):
        below = f"/proc/self/fd/{file}"
        try:
            _overlay(place, below, f"{scratch}/mounted-{number}", user)
        except OSError:  # It is a file, or a file system that no overlay can cover.
            bind = ctypes.c_ulong(_BIND | _RECURSIVE)
            _call("mount", os.fsencode(below), os.fsencode(place), None, bind, None)
        os.close(file)
    for number, place in enumerate(linked):
        with suppress(OSError):
            _overlay(place, place, f"{scratch}/linked-{number}", user)
    outside = Path(scratch, OUTSIDE)
    for edited in filter(Path.is_file, outside.rglob("*")):
        original = Path("/", edited.relative_to(outside))
        bind = ctypes.c_ulong(_BIND)
        _call("mount", os.fsencode(edited), os.fsencode(original), None, bind, None)


def _mounts() -> list[str]:
    """The folders of all file systems, outer ones first."""
    lines = Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines()
    places = {re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), each.split()[1]) for each in lines}
    return sorted(places)


def _below(place: str, folder: str) -> bool:
    return place.startswith(f"{folder.rstrip('/')}/")


def _linked(folder: str, scratch: str, mounts: Sequence[str]) -> list[str]:
    """Other folders to which links in ``folder`` lead, unless they contain it or a file system."""
    links = (each.path for each in os.scandir(folder) if each.is_symlink() and each.is_dir())
    found: list[str] = []
    for place in sorted({os.path.realpath(link) for link in links}):
        inside = (_below(each, place) for each in (folder, scratch, *mounts))
        if not any(inside) and not any(_below(f"{place}/", each) for each in (folder, *found)):
            found.append(place)
    return found


def _overlay(place: str, lower: str, scratch: str, user: int) -> None:
    """Mounts an overlay over ``place`` that shows ``lower`` and keeps changes below ``scratch``."""
    for name in ("upper", "work"):
        Path(scratch, name).mkdir(parents=True, exist_ok=True)
    options = _options(scratch, lower, user)
    _call("mount", b"overlay", os.fsencode(place), b"overlay", ctypes.c_ulong(0), options)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _left_out(place: str, names: Sequence[str]) -> set[str]:
    """Names that are not copied: folders of tools, the results of this project, pipes and sockets, and
    what this user may not read."""
    ours = {"results", ".snakemake"} if Path(place, "results", ".study").exists() else set()
    return {
        name
        for name, path in ((name, Path(place, name)) for name in names)
        if name in _IGNORED | ours
        or not (
            path.is_symlink() or ((path.is_file() or path.is_dir()) and os.access(path, os.R_OK))
        )
    }


def _size(folder: Path) -> int:
    found = 0
    for place, folders, files in os.walk(folder):
        left_out = _left_out(place, folders)
        folders[:] = [name for name in folders if name not in left_out]
        for name in files:
            with suppress(FileNotFoundError):  # other programs may work there
                found += Path(place, name).lstat().st_size
    return found


@cache
def overlay_works(folder: Path, parent: Path) -> bool:
    """Whether this user can mount an overlay over ``folder`` whose changes lie below ``parent``."""
    if sys.platform != "linux":
        return False
    scratch = parent / "overlay-scratch"
    test = inside([str(folder), str(scratch)], ["true"])
    try:
        ended = subprocess.run(test, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return ended.returncode == 0


def _options(scratch: str, lower: str, user: int) -> bytes:
    upper, lower = (
        p.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,") for p in (scratch, lower)
    )
    extra = ",userxattr" if user else ""
    return os.fsencode(f"lowerdir={lower},upperdir={upper}/upper,workdir={upper}/work{extra}")


if __name__ == "__main__":
    enter(*sys.argv[1:3])
    os.chdir("/")
    os.execvp(sys.argv[3], sys.argv[3:])
