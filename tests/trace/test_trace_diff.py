"""``python -m transformer_core.trace diff``: what explains the difference of a step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from traces import complete, kineto, on_device

from transformer_core.trace.__main__ import main
from transformer_core.trace.compare import (
    REGRESSION,
    Change,
    difference,
    lists_all_kernels,
    read_profile,
)
from transformer_core.trace.terminal import short

FIRST = {"sgemm": (10, 40), "gelu_kernel": (55, 5)}
SECOND = {"sgemm": (10, 20), "softmax_kernel": (35, 5)}


def profile(path: Path, kernels: dict[str, tuple[int, int]], steps: Sequence[int]) -> Path:
    """A trace of steps of so many microseconds, one after another."""
    rows: list[dict[str, Any]] = []
    begin = number = 0
    for length in steps:
        rows.append(complete("user_annotation", "phase:step", begin, length))
        rows.append(complete("user_annotation", "phase:forward", begin, length - 5))
        for name, (t0, time) in kernels.items():
            number += 1
            launch = complete("cuda_runtime", "cudaLaunchKernel", begin + 1, 1, correlation=number)
            rows += [launch, on_device("kernel", name, begin + t0, time, number)]
        begin += length
    return kineto(path, rows)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return (
        profile(tmp_path / "first.json", FIRST, (100, 100)),
        profile(tmp_path / "second.json", SECOND, (60, 60, 60)),
    )


def by_name(changes: Sequence[Change]) -> dict[str, float]:
    return {change.name: round(change.difference_ms * 1e3, 6) for change in changes}


def test_the_parts_explain_the_step(pair: tuple[Path, Path]) -> None:
    found = difference(*map(read_profile, pair))
    assert found.step.first_ms == pytest.approx(0.1)
    assert found.step.second_ms == pytest.approx(0.06)
    parts = by_name(found.parts)
    assert (parts["computation"], parts["idle"]) == (-20, -20)
    assert sum(parts.values()) == -40
    assert {part.name for part in found.explanation} == {"computation", "idle"}
    kernels = by_name(found.kernels)
    assert list(kernels) == ["sgemm", "gelu_kernel", "softmax_kernel"]
    assert kernels == {"sgemm": -20, "gelu_kernel": -5, "softmax_kernel": 5}
    assert by_name(found.operators) == {"contraction": -20, "element_wise": -5, "normalization": 5}
    assert by_name(found.phases) == {"forward": -20}


def test_exit_codes(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = map(str, pair)
    assert main(["diff", first, second]) == 0
    said = capsys.readouterr().out
    assert "The step differs by -0.040 ms" in said
    assert main(["diff", second, first]) == REGRESSION
    assert main(["diff", second, first, "--allowed", "70"]) == 0
    assert main(["diff", first, first]) == 0
    assert main(["diff", first, str(pair[0].parent / "none.json")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_what_is_printed(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = map(str, pair)
    main(["diff", first, second])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"first:  {first}", f"second: {second}"]
    assert lines[-1] == "A step takes 40.0 % less"
    # Nothing was copied or sent.
    assert not [line for line in lines if "copies" in line or "communication" in line]
    main(["diff", second, first])
    assert capsys.readouterr().out.endswith(
        "A step takes 66.7 % longer, more than the 5 % allowed\n"
    )
    main(["diff", second, first, "--allowed", "70"])
    assert capsys.readouterr().out.endswith("A step takes 66.7 % longer, of the 70 % allowed\n")
    main(["diff", first, first])
    assert capsys.readouterr().out.endswith("A step takes as long\n")


def test_kernels_that_a_side_does_not_list_are_not_said_to_be_missing(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "some" / "breakdown.json"
    main([str(pair[0]), "--top", "1", "--output", str(output)])
    some, whole = read_profile(output), read_profile(pair[0])
    assert not lists_all_kernels(some)
    assert lists_all_kernels(whole)
    assert by_name(difference(some, whole).kernels) == {"sgemm": 0}
    assert by_name(difference(whole, some).kernels) == {"sgemm": 0}
    capsys.readouterr()
    main(["diff", str(output), str(pair[0])])
    assert f"note: {output} lists its longest kernels alone" in capsys.readouterr().out


def test_names_that_fit() -> None:
    kernel = "void at::native::(anonymous namespace)::reduce_kernel<512, Op<float>>(Op<float>, int)"
    assert short(kernel, 58) == "reduce_kernel<512, Op<float>>"
    long = "split_embedding_backward_codegen_rowwise_adagrad_kernel_cta_per_row_"
    assert short(long + "1", 58) != short(long + "2", 58)
    assert len(short(long + "1", 58)) == 58
    assert short("(anonymous)", 58) == "(anonymous)"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["difff", "a", "b"], "difff is not a file; is the command diff meant?"),
        (["perfeto", "a"], "perfeto is not a file; is the command perfetto meant?"),
        (["diff", "a", "b", "--allowed", "-3"], "'-3' is not a number of at least 0"),
        (["diff", "a", "b", "--allowed", "inf"], "'inf' is not a number of at least 0"),
        (["diff", "a", "b", "--top", "0"], "'0' is not a whole number of at least 1"),
        (["a", "--from", "x"], "'x' is not a number of milliseconds"),
    ],
)
def test_words_that_mean_nothing(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert told in capsys.readouterr().err


def test_a_breakdown_stands_for_its_traces(pair: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "mine" / "breakdown.json"
    assert main([str(pair[0]), "--name", "mine", "--output", str(output)]) == 0
    assert read_profile(output.parent) == read_profile(output)
    found = difference(read_profile(output), read_profile(pair[0]))
    assert found.step.difference_ms == 0
    assert found.explanation == []
    assert all(change.difference_ms == 0 for change in found.kernels)


def test_what_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["diff", str(empty), str(empty)]) == 1
    assert "holds no traces" in capsys.readouterr().err
    nothing = kineto(tmp_path / "n.json", [complete("user_annotation", "phase:step", 0, 5)])
    assert main(["diff", str(nothing), str(nothing)]) == 1
    assert "has nothing to compare" in capsys.readouterr().err


def test_notes_on_what_is_unlike(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    bare = kineto(tmp_path / "bare.json", [on_device("kernel", "sgemm", 0, 5, 1)])
    found = difference(read_profile(pair[0]), read_profile(bare))
    (note,) = found.notes
    assert note.startswith("bare.json marks no steps: times are of the work that the first did")


def run_of(path: Path, steps: int, time: int = 10) -> Path:
    """A trace without marks: so many times a kernel of so many microseconds, and a pause."""
    rows = [on_device("kernel", "sgemm", 30 * k, time, k + 1) for k in range(steps)]
    return kineto(path, [*rows, on_device("kernel", "last", 30 * steps, 0, steps + 1)])


def test_without_steps_the_same_work_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recording three times as long is not slower."""
    short_one, long_one = run_of(tmp_path / "a.json", 10), run_of(tmp_path / "b.json", 30)
    assert main(["diff", str(short_one), str(long_one)]) == 0
    said = capsys.readouterr().out
    assert "mark no steps: times are of the work that the first did" in said
    assert "the second did 3 times as much" in said
    assert said.endswith("The same work takes as long\n")
    slower = run_of(tmp_path / "c.json", 30, 15)
    found = difference(read_profile(short_one), read_profile(slower))
    assert by_name(found.kernels)["sgemm"] == pytest.approx(50)
    other = kineto(tmp_path / "d.json", [on_device("kernel", "gemv", 0, 5, 1)])
    assert main(["diff", str(short_one), str(other)]) == 0
    said = capsys.readouterr().out
    assert "share no kernel: each whole trace stands for one" in said
    assert said.endswith("Nothing can be said of the length of a step\n")
