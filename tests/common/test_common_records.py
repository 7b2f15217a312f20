import pytest

from schemas.errors import ConfigError
from schemas.results import Interval
from transformer_core.common.records import read_record

FOUND = Interval(median=1.5, low=1.0, high=2.0, samples=3)


def test_a_record_may_be_written_in_yaml(tmp_path):
    file = tmp_path / "found.yaml"
    file.write_text("# a comment\nmedian: 1.5\nlow: 1.0\nhigh: 2.0\nsamples: 3\n")
    assert read_record(file, Interval) == FOUND
    (tmp_path / "found.json").write_text(FOUND.model_dump_json())
    assert read_record(tmp_path / "found.json", Interval) == FOUND


def test_what_is_no_yaml_is_named(tmp_path):
    file = tmp_path / "found.yaml"
    file.write_text("median: [")
    with pytest.raises(ConfigError, match=r"found\.yaml"):
        read_record(file, Interval)
