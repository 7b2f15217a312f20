"""YAML written by users: its limits, and messages about mistakes."""

import json
import os

import pytest

from schemas.errors import ConfigError, ConfigProblem
from schemas.results import Interval
from transformer_core.common import yaml_files
from transformer_core.common.records import read_record
from transformer_core.common.yaml_files import as_yaml, parse, read_yaml


def refusal(text: str) -> ConfigProblem:
    with pytest.raises(ConfigError) as caught:
        parse(text, "study.yaml")
    (problem,) = caught.value.problems
    assert problem.file == "study.yaml"
    assert problem.remedy
    return problem


def test_values():
    text = "a: 1\nb: [1.5, true, ~, 'x', \"y\"]\nc: {d: e}\nf: &f {x: 1, y: 2}\ng: {<<: *f, y: 3}\n"
    assert parse(text, "f") == {
        "a": 1,
        "b": [1.5, True, None, "x", "y"],
        "c": {"d": "e"},
        "f": {"x": 1, "y": 2},
        "g": {"x": 1, "y": 3},
    }
    assert parse("", "f") is parse("---\n# none\n", "f") is None
    odd = {"a": [1], "b": "\U0001f600 \\ud83d\\ude00"}
    assert parse(json.dumps(odd, indent="\t"), "f.json") == odd


@pytest.mark.parametrize("text", ["1e-4", "-2E+3", "1.5e5", ".5e1"])
def test_numbers_with_an_exponent(text):
    assert (
        parse(f"a: [{text}]", "f") == parse(f'{{"a": [{text}]}}', "f.json") == {"a": [float(text)]}
    )


@pytest.mark.parametrize(
    "text", ["2020-01-01", "1:30", "010", "a {b} c", "0b", "'{x}'", "1e", "1e5x", "'1e5'"]
)
def test_lookalikes_of_numbers_and_dates_are_text(text):
    assert parse(f"a: {text}", "f") == {"a": text.strip("'")}


@pytest.mark.parametrize("text", ["1e-4", ".5E+1", "010", "1:30", "1_000", "null", "", "ü", "a\nb"])
def test_text_is_written_so_that_it_stays_text(text):
    """As the arguments of a script, such as --lr 1e-4."""
    value = {"a": [text, 1e-4, 1e300, -2.0]}
    assert parse(as_yaml(value), "f") == value


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("a: [1,\n  2}", "line 2", "is not YAML"),
        ("a:\n\tb: 1", "line 2", "replace tabs by spaces"),
        ("a: 1\n---\nb: 2", "line 2", "second document"),
        ("a: !!python/object/apply:os.abort []", "line 1", "is a tag"),
        ("? [a]\n: 1", "line 1", "is used as a name"),
        ("b: 1\non: 1", "line 2", "is not text"),
        ("a: *b", "line 1", "undefined alias"),
        ("a: &a [*a]", "a[0] (line 1)", "contains itself"),
        ("a: {<<: 5}", "a (line 1)", "is not a section"),
        ("a: 1\nb:\n  c:\nd: 1", "b.c (line 3)", "has no value"),
        ("a: {b}", "a.b (line 1)", "has no value"),
        ("a:\n- # none\n- 1", "a[0] (line 2)", "write null for none"),
        ("a: " + "9" * 100_000, "a (line 1)", "more than 60 characters"),
        ("a: x\0y", "line 1", "does not allow"),
        ("a: 1\nb:\n  c: 2\n  d: 3\n  c: 4\n", "b.c (line 5)", "line 3 and in line 5"),
    ],
)
def test_faulty_text_is_refused(text, field, words):
    problem = refusal(text)
    assert problem.field == field
    assert words in f"{problem.message} {problem.remedy}"


def bomb(levels: int) -> str:
    lines = [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(["x0: &x0 [1, 1]", *lines])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (bomb(12), "more than 50,000 values"),
        (bomb(6).replace("[", "[ {<<: {a: 1}}, "), "more than 50,000 values"),
        ("a: " + "[" * 100, "deeper than 20"),
        ("x0: &x0 [1]\n" + "\n".join(f"x{n + 1}: &x{n + 1} [*x{n}]" for n in range(40)), "deeper"),
        ("a: &a 1\nb: [" + "*a, " * 2_000 + "]", "1000 aliases"),
        ("[" + "a, " * 60_000 + "]", "more than 50,000 values"),
    ],
)
def test_alias_bombs_and_long_lists_are_refused(text, words):
    assert words in refusal(text).message


def test_lists_too_deep_for_the_parser_are_refused():
    message = refusal("a: " + "[" * 100_000).message
    # PyYAML has a limit of its own since 6.0.4.
    assert "deeper than 20" in message or "nesting depth" in message


@pytest.mark.parametrize("ending", ["yaml", "yml"])
def test_records_may_be_written_in_yaml(tmp_path, ending):
    record = Interval(median=1.5, low=1.0, high=2.0, samples=3)
    file = tmp_path / f"found.{ending}"
    file.write_text("# a comment\nmedian: 1.5\nlow: 1.0\nhigh: 2.0\nsamples: 3\n")
    assert read_record(file, Interval) == record
    (tmp_path / "found.json").write_text(record.model_dump_json())
    assert read_record(tmp_path / "found.json", Interval) == record
    file.write_text("median: [")
    with pytest.raises(ConfigError, match=rf"found\.{ending}:"):
        read_record(file, Interval)


def test_unreadable_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b"a: 1\nb: \xe4\n")
    (tmp_path / "large").write_bytes(b"#" * (yaml_files.LARGEST_FILE + 1))
    for name, words in {
        "nowhere": "no such file",
        "": "is a folder",
        "pipe": "is a pipe or a device",
        "/dev/zero": "is a pipe or a device",
        "a\0b": "null",
        "x" * 5_000: "too long",
        "latin": "not UTF-8 from byte 8",
        "large": "larger than 1,048,576 bytes",
    }.items():
        with pytest.raises(ConfigError, match=words) as refused:
            read_yaml(tmp_path / name)
        assert str(refused.value).count("problem:") == 1
    (tmp_path / "mark").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(tmp_path / "mark") == {"a": 1}
