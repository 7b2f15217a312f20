"""Collectives across ranks: what of their time is transfer, what waiting, and for whom.

Executions are matched within process groups, in order: the k-th of a kind in a group is the same on
all its ranks. Of one execution the shortest duration on any rank is the transfer, for the rank that
comes last does not wait; the rest is waiting for that rank. Clocks need not agree for this.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.results.profile_details import Straggler
from transformer_core.trace.events.rows import Rows
from transformer_core.trace.readers.columns import NULL, Integers
from transformer_core.trace.readers.process_groups import UNKNOWN, ranks_of

Key = tuple[str, str | None]
"""A kind of collective and its group; null where the trace tells nothing of groups."""


@dataclass
class Waiting:
    """What the collectives of all devices say of one another."""

    transfers: list[dict[str, int]]
    """By device and kind of collective, nanoseconds; a kind is missing where that is unknown."""
    notes: list[str] = field(default_factory=list)
    stragglers: list[Straggler] = field(default_factory=list)


@dataclass(frozen=True)
class _Member:
    device: int
    rank: int
    durations: Integers
    sizes: frozenset[int]
    """What the events say of the size of the group."""


def waiting(devices: Sequence[Rows]) -> Waiting:
    """Match the collectives of devices. Those whose ranks are not all there, or ran them unequally
    often, have no transfer, and a note says why."""
    members = _members(devices)
    names = [{name for (name, _) in members if _has(members, name, k)} for k in range(len(devices))]
    sums: list[defaultdict[str, int]] = [defaultdict(int) for _ in devices]
    failed: list[set[str]] = [set() for _ in devices]
    last: defaultdict[int, int] = defaultdict(int)
    caused: defaultdict[int, int] = defaultdict(int)
    notes = []
    for key, found in members.items():
        if problem := _problem(key[1], found, len(devices)):
            notes.append(f"Transfer and waiting of {key[0]} are unknown: {problem}")
            for member in found:
                failed[member.device].add(key[0])
            continue
        durations = np.stack([member.durations for member in found])
        shortest = durations.min(0)
        for member in found:
            sums[member.device][key[0]] += int(shortest.sum())
        late = durations.argmin(0)
        lost = (durations - shortest).sum(0)
        for place, member in enumerate(found):
            mine = late == place
            last[member.rank] += int(mine.sum())
            caused[member.rank] += int(lost[mine].sum())
    executions = sum(last.values())
    return Waiting(
        transfers=[
            {name: sums[k][name] for name in names[k] - failed[k]} for k in range(len(devices))
        ],
        notes=sorted(set(notes)),
        stragglers=[
            Straggler(rank=rank, last=last[rank], share=last[rank] / executions, caused_ns=cost)
            for rank, cost in sorted(caused.items(), key=lambda item: -item[1])
        ]
        if executions
        else [],
    )


def _has(members: dict[Key, list[_Member]], name: str, device: int) -> bool:
    return any(
        member.device == device
        for (collective, _), found in members.items()
        if collective == name
        for member in found
    )


def _members(devices: Sequence[Rows]) -> dict[Key, list[_Member]]:
    found: defaultdict[Key, list[_Member]] = defaultdict(list)
    for number, rows in enumerate(devices):
        for name, places in rows.groups("collective").items():
            places = places[np.argsort(rows["t0_ns"][places], kind="stable")]
            group = rows["group"][places]
            for text in sorted({*group.tolist()}, key=str):
                mine = places[np.array([value == text for value in group.tolist()])]
                sizes = rows["group_size"][mine]
                member = _Member(
                    device=number,
                    rank=int(rows["rank"][0]),
                    durations=rows.durations[mine],
                    sizes=frozenset(np.unique(sizes[sizes != NULL]).tolist()),
                )
                found[(name, text)].append(member)
    return dict(found)


def _problem(group: str | None, members: list[_Member], devices: int) -> str | None:
    """Why the executions of a group cannot be matched; null if they can."""
    if group == UNKNOWN:
        return "the training has several process groups, and the trace does not say which ran it"
    present = {member.rank for member in members}
    ranks = None if group is None else ranks_of(group)
    sizes = frozenset().union(*(member.sizes for member in members))
    if ranks is not None:
        if absent := sorted(set(ranks) - present):
            listed = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
            return f"no trace of rank {listed} of its group"
        if present - set(ranks):
            return f"rank {min(present - set(ranks))} is not of the group {group} that it names"
    elif len(sizes) > 1:
        return "it ran in groups of several sizes that the trace does not tell apart"
    elif sizes and max(sizes) != len(members):
        return f"its group has {max(sizes)} ranks, and the traces are of {len(members)}"
    elif group is None and len(members) < devices:
        return f"it ran on {len(members)} of the {devices} devices"
    if len(members) < 2 and (ranks is None or len(ranks) > 1):
        return "there is the trace of one rank alone"
    counts = sorted({len(member.durations) for member in members})
    if len(counts) > 1:
        return f"the ranks ran it unequally often, {counts[0]} to {counts[-1]} times"
    return None
