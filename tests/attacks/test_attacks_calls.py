"""Calls that fail: a job that makes shards says so, and leaves nothing wrong."""

from pathlib import Path

import pytest
from pair_files import ENGLISH, GERMAN, write_pairs, write_tokenizer

from schemas.config.data import Filter
from tests.attacks import failing_calls as harness
from tests.attacks.failing_calls import ERRORS, Calls, failing
from tests.orders import order_text, run_order


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> harness.Job:
    folder = tmp_path_factory.mktemp("made")
    order = order_text(
        "shards",
        tokenizer=write_tokenizer(folder),
        filter=Filter(),
        pairs=write_pairs(folder / "p.arrow", ENGLISH, GERMAN).path,
        output=folder / "shards",
        threads=1,
    )
    return harness.Job("shards", run_order, order, folder / "shards/manifest.json", ("seconds",))


def test_every_failing_call_is_told(shards: harness.Job) -> None:
    folder = shards.output.parents[1]
    calls = Calls(folder)
    with failing(calls):
        assert shards.main(shards.options) == 0
    right = shards.made()
    assert calls.count >= 10
    for place in range(calls.count):
        error = ERRORS[place % len(ERRORS)]
        verdict, said = harness.judge(shards, Calls(folder, place, error), right)
        assert verdict in ("refused", "same"), f"call {place}: {verdict}, {said}"


def test_a_job_that_lets_an_exception_through_is_found(tmp_path: Path) -> None:
    def careless(options: list[str]) -> int:
        (tmp_path / "result.json").write_text("{}")
        return 0

    job = harness.Job("careless", careless, [], tmp_path / "result.json")
    verdict, said = harness.judge(job, Calls(tmp_path, 0, ERRORS[0]), "{}")
    assert verdict == "traceback"
    assert "No space left" in said
