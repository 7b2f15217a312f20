"""Steps that are slowed down by a known share."""

import pytest

from transformer_core.observe.turns import PlantedDelay


class Clock:
    """A clock that only moves when it is told to, and a little at every reading."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 1e-6
        return self.time


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5])
def test_a_step_is_longer_by_the_share(share: float) -> None:
    clock = Clock()
    delay = PlantedDelay(share, lambda: None, clock.now)
    for _ in range(3):
        began = clock.time
        clock.time += 1.0
        delay.step_done()
        assert clock.time - began == pytest.approx(1 + share, abs=1e-4)


def test_the_work_of_the_device_belongs_to_the_step() -> None:
    clock = Clock()

    def device() -> None:
        clock.time += 3.0

    delay = PlantedDelay(0.1, device, clock.now)
    clock.time += 1.0
    delay.step_done()
    assert clock.time == pytest.approx(4.4, abs=1e-4)


def test_waiting_for_a_turn_is_no_part_of_a_step() -> None:
    clock = Clock()
    delay = PlantedDelay(0.5, lambda: None, clock.now)
    clock.time += 100.0
    delay.begin()
    clock.time += 1.0
    delay.step_done()
    assert clock.time == pytest.approx(101.5, abs=1e-4)
