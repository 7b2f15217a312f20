from typing import Any

import pytest
from traces import complete, kineto, launch, of_rank, on_device

ALL_REDUCE = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8}


@pytest.fixture
def traces(tmp_path):
    """Two ranks, two steps each: a product in a module, and an all-reduce that waits for rank 1."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        rows: list[dict[str, Any]] = []
        for step in range(2):
            at, said = 100 * step, ALL_REDUCE | {"Group size": 2}
            talk = on_device(
                "kernel", "ncclDevKernel_AllReduce", at + 50, 30 - 20 * rank, 9, **said
            )
            rows += [
                complete("user_annotation", f"ProfilerStep#{step}", at, 90),
                complete("user_annotation", "layer:model/encoder", at, 50),
                launch(step + 1, at + 1),
                on_device("kernel", "sgemm", at + 5, 20 + 10 * rank, step + 1),
                talk,
            ]
        kineto(folder / f"r{rank}.json.gz", rows, **of_rank(rank))
    return folder
