import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from analysis_builders import memory, result
from pair_builders import paired

from schemas.results import LengthHistogram, Validation
from transformer_core.report.sections.corpus import lengths_frame
from transformer_core.report.sections.equivalence import recorded, validated
from transformer_core.report.sections.memory import memory_frame
from transformer_core.report.sections.variants import rounds_frame


def test_rounds_show_drift_and_a_ratio_without_it():
    frame = rounds_frame(paired(1.5, 1.5))
    assert list(frame["session"]) == [1] * 8 + [2] * 8
    assert list(frame["round"]) == [*range(1, 9), *range(10, 18)], "a gap between sessions"
    first = frame[frame["session"] == 1]
    assert first["reference"].iloc[-1] / first["reference"].iloc[0] == pytest.approx(1.7)
    assert first["ratio"].between(0.97, 1.03).all()
    assert frame["ratio"].median() == pytest.approx(1.0)


def test_memory_is_the_largest_of_the_repeats_by_rank_or_device():
    ranks = [memory(0, rss_bytes=5), memory(1, rss_bytes=7), memory(1, rss_bytes=3)]
    # DataParallel drives all devices from one process: its imbalance must show.
    devices = [memory(0, "cuda:0", reserved_bytes=9), memory(0, "cuda:1", reserved_bytes=4)]
    measured = {"ddp": ranks, "data_parallel": devices}
    results = [result(name, [1.0], [1.0], memory=of) for name, of in measured.items()]
    diverged = result("bad", [100.0], status="diverged", reason="loss is nan")
    assert memory_frame([*results, diverged]).to_dict("list") == {
        "variant": ["ddp"] * 2 + ["data_parallel"] * 2,
        "rank": [0, 1, 0, 1],
        "peak_bytes": [5, 7, 9, 4],
    }
    assert list(memory_frame([diverged])) == ["variant", "rank", "peak_bytes"], "and no rows"


def test_loss_leaves_out_steps_that_were_not_read(tmp_path):
    path = tmp_path / "steps.parquet"
    table = pa.table({"step": [1, 2, 3], "loss": pa.array([3.0, None, 2.0], pa.float64())})
    pq.write_table(table, path)
    assert recorded(path).to_dict("list") == {"step": [1, 3], "loss": [3.0, 2.0]}


def test_validation_leaves_out_losses_that_are_not_finite():
    losses = [Validation(step=5, loss=2.5), Validation(step=9, loss=None)]
    frame = validated(result("single", [1.0], validations=losses))
    assert frame.to_dict("list") == {"step": [5], "loss": [2.5]}


def test_lengths_are_shares_of_each_side():
    lengths = LengthHistogram(unit="tokens", source={4: 1, 2: 3}, target={5: 2})
    frame = lengths_frame(lengths, "en", "de")
    assert frame.to_dict("list") == {
        "side": ["source (en)", "source (en)", "target (de)"],
        "length": [2, 4, 5],
        "share": [0.75, 0.25, 1.0],
    }
    assert lengths_frame(LengthHistogram(unit="tokens", source={}, target={}), "a", "b").empty
