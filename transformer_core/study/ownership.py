"""Ownership of the results folder: one study's results, and one Snakemake at a time.

Snakemake remakes a file when its parameters change; it keeps these in ``.snakemake/metadata``. If
results were copied without that folder, or it was removed, Snakemake takes them as they are, and
the results of one study would pass for those of another. So they are refused.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
import shlex
import shutil
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from pydantic import TypeAdapter, ValidationError

from schemas.config.study import Study
from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem
from transformer_core.common.endings import unreadable
from transformer_core.common.files import write_text
from transformer_core.common.study_clock import CLOCK

CHANGES_NO_RESULT = True  # it only decides whether work may begin
LEAST_BYTES = 1 << 20  # free bytes on a disk, without which not even a log can be written


def check_results(folder: Any) -> None:
    """Refuses a folder given with ``--config against=`` that holds no results of a study, or none
    given. Raises ConfigError."""
    message = "names no folder of results"
    if folder is not None:
        message = "is not a folder of results: it has no study.json"
        try:
            with Path(folder, "study.json").open():
                return
        except PermissionError as error:
            message = f"its study.json {unreadable(error)}"
        except (TypeError, OSError):  # it may be no text, too long, or no folder
            pass
    remedy = "name one with --config against=FOLDER, of another commit or machine"
    raise ConfigError([ConfigProblem("command line", "against", folder, message, remedy)])


def check_foreign(planned: Mapping[str, str], study: str, snakemake: Path) -> None:
    """If Snakemake has no record of the results, or has lost that of one, refuse files whose text is
    not the ``planned`` one: Snakemake would keep them.

    ``study`` names the study's file, ``snakemake`` is Snakemake's folder. Raises ConfigError.
    """
    recorded = [place for place in planned if _recorded(place, snakemake)]
    some = any(any(snakemake.glob(f"{kept}/*")) for kept in ("metadata", "incomplete"))
    if some and not recorded:  # they may have different names here
        return
    for place, text in planned.items():
        if place in recorded:
            continue
        try:
            found = Path(place).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue  # it will be made, or its reader reports the error
        if found == text:
            continue
        field, there, beside = WHOLE_FILE, None, ""
        with contextlib.suppress(ValueError):
            field, there, here = _difference(json.loads(found), json.loads(text))
            beside = f", where this is {here!r}"
        message = (
            f"the results belong to a different study than {study}{beside}; .snakemake/metadata has no "
            "record of them, so Snakemake would keep them all"
        )
        remedy = (
            "if they were copied here, copy .snakemake too; or keep them with `mv results "
            "results-before`; or remake all of them: add --forceall to the command"
        )
        if some:
            message = (
                f"was made for another study than {study}{beside}; the record of it in "
                ".snakemake/metadata is lost, so Snakemake would keep it"
            )
            remedy = f"remove it (rm {place}); the command remakes it and what depends on it"
        raise ConfigError([ConfigProblem(place, field, there, message, remedy)])


def check_records(snakemake: Path) -> None:
    """Refuses what would end Snakemake with a traceback, in its folder of that name: records that are
    no text or hold wrong types, a file in place of their folder, and a folder that this user may not
    write to. Raises ConfigError."""
    from snakemake import persistence  # slow to import, except where Snakemake runs

    folder = snakemake if snakemake.exists() else Path.cwd()
    if not os.access(folder, os.W_OK):
        message = "is closed to this user, but Snakemake writes its records there, even for -n"
        remedy = "work in a copy of the study, or ask the owner of the folder for permission"
        raise ConfigError([ConfigProblem(str(folder), WHOLE_FILE, None, message, remedy)])
    for folder in (snakemake / "metadata", snakemake / "incomplete"):
        if folder.exists() and not folder.is_dir():
            message, remedy = "is not a folder", f"move it away: mv {folder} {folder}-before"
            raise ConfigError([ConfigProblem(str(folder), WHOLE_FILE, None, message, remedy)])
    # Versions of Snakemake without this class read any JSON object.
    record = TypeAdapter(getattr(persistence, "MetadataRecord", dict[str, Any]))
    for file in snakemake.glob("metadata/[!@]*"):  # long names begin with folders named @...
        field = WHOLE_FILE
        try:
            if found := json.loads(file.read_text(encoding="utf-8")):
                record.validate_python(found)
            continue
        except json.JSONDecodeError:
            continue  # Snakemake ignores incomplete records
        except ValidationError as error:
            wrong = error.errors()[0]
            field = ".".join(map(str, wrong["loc"])) or WHOLE_FILE
            message = f"cannot be read: {wrong['msg']}"
        except (OSError, ValueError, RecursionError) as error:
            message = unreadable(error)
        place = urlsafe_b64decode(file.name).decode(errors="replace")
        remedy = (
            f"it is Snakemake's record of {place}: remove both (rm -r {file} {place}), and the same "
            "command makes that again"
        )
        if not os.access(file, os.R_OK):
            remedy = f"ask its owner for permission: chmod -R a+rX {snakemake}"
        raise ConfigError([ConfigProblem(str(file), field, None, message, remedy)])


def check_writable(results: Path) -> None:
    """Refuses results that are no folder, have a folder or file that this user may not write to, or are
    on a full disk: Snakemake would end with tracebacks or an exception of its own. Raises ConfigError."""
    if os.path.lexists(results) and not results.is_dir():
        message, remedy = "is not a folder", f"move it away: mv {results} {results}-before"
        if results.is_symlink():
            to = shlex.quote(os.path.realpath(results))
            message = f"is a link to {to}, which is not a folder"
            remedy = f"mkdir -p {to}, or {remedy}"
        raise ConfigError([ConfigProblem(str(results), WHOLE_FILE, None, message, remedy)])
    disk = results if results.is_dir() else Path.cwd()
    if (free := shutil.disk_usage(disk).free) < LEAST_BYTES:
        message, remedy = f"is on a full disk: {free:,} bytes are free", "make room there"
        raise ConfigError([ConfigProblem(str(disk), WHOLE_FILE, None, message, remedy)])

    def refuse(place: str, message: str) -> NoReturn:
        remedy = (
            f"open it with `chmod -R u+rwX {shlex.quote(str(results))}`, ask its owner for permission, "
            "or work in a copy of the study"
        )
        raise ConfigError([ConfigProblem(place, WHOLE_FILE, None, message, remedy)])

    def unlisted(error: OSError) -> None:
        if isinstance(error, PermissionError):  # it may be missing
            refuse(error.filename, "is closed to this user, but results are read and written there")

    for folder, _, files in os.walk(results, onerror=unlisted):
        if not os.access(folder, os.W_OK | os.X_OK):
            refuse(folder, "is closed to this user or read-only, but results are written there")
        for file in (Path(folder, name) for name in files):
            # A running study makes and removes files all the time.
            if not os.access(file, os.W_OK) and file.exists() and not file.is_symlink():
                refuse(str(file), "is write-protected, but the study may have to replace it")


def _recorded(place: str, snakemake: Path) -> bool:
    """Whether Snakemake knows with which parameters a file was made, or that it is incomplete."""
    name = urlsafe_b64encode(place.encode()).decode()
    try:
        return (snakemake / "incomplete" / name).exists() or bool(
            json.loads((snakemake / "metadata" / name).read_bytes())
        )
    except (OSError, ValueError):
        return False


def told_without_record(places: Sequence[str]) -> str:
    """A warning about results that Snakemake keeps without a record of them."""
    shown, more = " ".join(places[:3]), f" and {len(places) - 3} more" if places[3:] else ""
    return (
        f"warning: .snakemake/metadata has no record of {shown}{more}. Snakemake keeps such results "
        "even if the study or the code has changed since. To be sure, make them again: "
        f"--forcerun {shown}"
    )


def _difference(one: Any, other: Any, path: str = "") -> tuple[str, Any, Any]:
    """The first field in which two records differ, and its value in each."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            if one.get(name) != other.get(name):
                below = f"{path}.{name}" if path else str(name)
                return _difference(one.get(name), other.get(name), below)
    return path or "(top level)", one, other


def check_owner(study: Study, marker: Path, file: str) -> None:
    """ConfigError if results of another study would be overwritten, unless the study allows it."""
    try:
        owner = marker.read_text(encoding="utf-8").strip() if marker.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        remedy = f"name the study whose results these are: echo NAME > {marker}"
        if marker.is_dir():
            remedy = f"move that folder away, and {remedy}"
        raise ConfigError(
            [ConfigProblem(str(marker), WHOLE_FILE, None, unreadable(error), remedy)]
        ) from None
    owner = owner or study.name
    if owner != study.name and not study.replace_results:
        folder = marker.parent
        message = f"{folder}/ holds the results of the study {owner!r}, which would be overwritten"
        remedy = (
            f"keep them with `mv {folder} {folder}-{owner}`, or give them up with "
            "`--config replace_results=true`"
        )
        raise ConfigError([ConfigProblem(file, "name", study.name, message, remedy)])


def mark_owner(study: Study, marker: Path) -> None:
    """Notes that the results are this study's, and removes the clock of another one, whose time this one
    has not spent. Raises ConfigError if nothing can be written there."""
    try:
        if marker.exists() and marker.read_text(encoding="utf-8").strip() not in ("", study.name):
            marker.with_name(CLOCK.name).unlink(missing_ok=True)
        write_text(marker, f"{study.name}\n")
    except OSError as error:
        message = f"cannot be written: {error.strerror or error}"
        remedy = "free space on its disk, or check that it is a folder that you may write to"
        problem = ConfigProblem(str(marker.parent), WHOLE_FILE, None, message, remedy)
        raise ConfigError([problem]) from None


def work_alone(lock: Path) -> None:
    """Keeps other Snakemakes out of this folder until this process ends, however it ends.

    The system releases the lock with the process, even on a file system shared by several hosts.
    Raises ConfigError if another process holds it. Without effect on file systems without locks.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    stream = lock.open("a+", encoding="utf-8")
    if _locks(stream):
        stream.truncate(0)
        stream.write(f"{os.getpid()} on {platform.node()}")
        stream.flush()
        _HELD.append(stream)


def check_free(lock: Path) -> None:
    """Raises ConfigError if another process works alone in this folder."""
    if lock.exists():
        with lock.open("a+", encoding="utf-8") as stream:
            _locks(stream)


def _locks(stream: TextIO) -> bool:
    """Locks a file, for this process only: jobs and servers forked from it do not inherit the lock. False
    if its file system has no locks; ConfigError if another process holds it."""
    try:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            return False
        stream.seek(0)
        holder = stream.read().strip() or None
        message = "another Snakemake works in this folder"
        remedy = "wait until it ends, or stop it"
        problem = ConfigProblem(stream.name, "process", holder, message, remedy)
        raise ConfigError([problem]) from None
    return True


_HELD: list[TextIO] = []  # kept open: closing a file would release its lock
