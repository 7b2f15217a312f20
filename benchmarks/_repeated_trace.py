"""A trace of any size: repeats the events of a real one, shifted in time."""

import gzip
import json
import re
import shutil
import sqlite3
from pathlib import Path

_NUMBER = re.compile(r'("(?:ts|correlation|External id|id|Ev Idx)": ?"?)(-?\d+)(\.\d+)?')
_MICROSECONDS = re.compile(r'"ts": ?"?(-?\d+)')


def repeat(source: Path, output: Path, size: float) -> int:
    """Write ``source`` to ``output`` until that has ``size`` bytes; how often it was repeated.

    Times, correlation ids and the ids of arrows move on with every repeat, so that each is a
    stretch of one long run. The text keeps the layout in which the profiler wrote it.
    """
    packed = source.read_bytes()
    text = (gzip.decompress(packed) if source.suffix == ".gz" else packed).decode()
    begin = text.index("[", text.index('"traceEvents"')) + 1
    _, length = json.JSONDecoder().raw_decode(text[begin - 1 :])
    end = begin - 1 + length - 1
    head, body, tail = text[:begin], text[begin:end].rstrip(), text[end:]
    times = [int(found) for found in _MICROSECONDS.findall(body)]
    # Marks of the end of the trace lie far behind its events.
    span = sorted(times)[-3] - sorted(times)[2] + 1000
    parts = _NUMBER.split(body)
    names, numbers, decimals, rest = (parts[k::4] for k in (1, 2, 3, 4))
    steps = [span if '"ts"' in name else 10_000_000 for name in names]
    values = [int(number) for number in numbers]
    repeats = 0
    with output.open("w") as stream:
        stream.write(head)
        written = len(head)
        while written < size:
            pieces = [parts[0]]
            for name, value, decimal, step, after in zip(
                names, values, decimals, steps, rest, strict=True
            ):
                pieces += (name, str(value + repeats * step), decimal or "", after)
            chunk = ("," if repeats else "") + "".join(pieces)
            stream.write(chunk)
            written += len(chunk)
            repeats += 1
        stream.write(tail)
    return repeats


def repeat_report(source: Path, output: Path, size: float) -> int:
    """The same for an SQLite export of Nsight Systems: the rows of every table that has times."""
    shutil.copyfile(source, output)
    database = sqlite3.connect(output)
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("ATTACH ? AS source", (str(source),))
    named = "SELECT name FROM source.sqlite_master WHERE type = 'table'"
    listed = {name: _columns(database, name) for (name,) in database.execute(named)}
    timed = {name: columns for name, columns in listed.items() if {"start", "end"} <= {*columns}}
    ranges = [
        database.execute(f'SELECT min(start), max("end") FROM source."{name}"').fetchone()
        for name in timed
        if name.startswith("CUPTI")
    ]
    span = max(end for _, end in ranges) - min(begin for begin, _ in ranges) + 1_000_000
    steps = {"start": span, "end": span, "correlationId": 10_000_000}
    repeats, written = 1, source.stat().st_size
    while written < size:
        for name, columns in timed.items():
            moved = ", ".join(
                f'"{c}" + {repeats * steps.get(c, 0)}' if c in steps else f'"{c}"' for c in columns
            )
            database.execute(f'INSERT INTO main."{name}" SELECT {moved} FROM source."{name}"')
        database.commit()
        repeats += 1
        written = output.stat().st_size
    database.close()
    return repeats


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f'PRAGMA source.table_info("{table}")')]
