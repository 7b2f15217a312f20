"""Arrays of numpy as those of Arrow."""

import numpy as np
import pyarrow as pa
import pytest

from transformer_core.data.arrays import arrow_array


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.uint16, np.int32, np.int64, np.float32])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1_000])
def test_is_what_arrow_makes_of_it(kind: type[np.generic], count: int) -> None:
    values = np.random.default_rng(count).integers(0, 2, count).astype(kind)
    assert arrow_array(values).equals(pa.array(values))
    assert arrow_array(values[::2]).equals(pa.array(values[::2]))


def test_numbers_are_not_copied() -> None:
    values = np.arange(10)
    made = arrow_array(values)
    values[3] = 30
    assert made[3].as_py() == 30
