"""Process groups by the texts of traces. A group is named by its ranks, ``0,1``, or by ``#`` and a
name where its ranks are unknown."""

import re
from typing import Any

UNKNOWN = "#?"
"""One of several groups; the trace does not say which."""

_RANKS = re.compile(r"\[\s*\d+(\s*,\s*\d+)*\s*\]")


def group_named(name: str) -> str:
    """A group of which no more than a name is known."""
    return f"#{name}"


def group_of(ranks: str | list[int] | None) -> str | None:
    """The group of some ranks, given as a list or as text; null where some are left out of the
    text (PyTorch writes ``[0, 1, ..., 127]`` for large groups)."""
    if isinstance(ranks, str):
        if not _RANKS.fullmatch(ranks.strip()):
            return None
        ranks = [int(found) for found in re.findall(r"\d+", ranks)]
    if not ranks:
        return None
    return ",".join(map(str, sorted(ranks)))


def ranks_of(group: str) -> tuple[int, ...] | None:
    """The ranks of a group; null where they are unknown."""
    return None if group.startswith("#") else tuple(map(int, group.split(",")))


def groups_by_name(distributed: dict[str, Any]) -> dict[str, str]:
    """The groups that a trace's ``distributedInfo`` lists with ranks, by :func:`group_named`."""
    found = {}
    config = distributed.get("pg_config")
    for entry in config if isinstance(config, list) else []:
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(ranks, list) and all(type(rank) is int for rank in ranks) and ranks:
            found[group_named(str(entry.get("pg_name")))] = group_of(ranks) or UNKNOWN
    return found


def usual_group(distributed: dict[str, Any]) -> str | None:
    """The group of collectives that do not name theirs; null where nothing is said of groups.

    It is clear only if all groups of more than one rank have the same ones.
    """
    found = {group for group in groups_by_name(distributed).values() if "," in group}
    if not found:
        return None
    return found.pop() if len(found) == 1 else UNKNOWN
