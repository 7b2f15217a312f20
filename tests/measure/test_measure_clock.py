"""The clock: exact borders, pauses left out, no synchronisation elsewhere."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_core.observe.clock import WindowClock
from transformer_core.observe.turns import PlantedDelay


class World:
    """A device and a clock under the test's control; times are whole, so sums are exact."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.synchronised = 0

    def synchronise(self) -> None:
        self.synchronised += 1

    def now(self) -> float:
        return self.time

    def clock(self, warmup_steps: int, window_steps: int) -> WindowClock:
        return WindowClock(warmup_steps, window_steps, self.synchronise, self.now)

    def step(self, clock: WindowClock, step: int, seconds: float = 1.0, wait: float = 0.0) -> None:
        self.time += seconds
        clock.step_done(step, pairs=step, tokens=10 * step, padded_tokens=12 * step,
                        input_wait_seconds=wait)  # fmt: skip


def test_windows_hold_exactly_their_steps():
    world = World()
    clock = world.clock(warmup_steps=2, window_steps=3)
    clock.start(0)
    for step in range(1, 11):
        world.step(clock, step, seconds=100.0 if step <= 2 else float(step), wait=step / 2)
    assert clock.warmup_seconds == 200.0
    assert [(w.first_step, w.last_step) for w in clock.windows] == [(3, 5), (6, 8)]
    assert [w.seconds for w in clock.windows] == [3 + 4 + 5, 6 + 7 + 8]
    assert [w.pairs for w in clock.windows] == [12, 21]
    assert [w.tokens for w in clock.windows] == [120, 210]
    assert [w.padded_tokens for w in clock.windows] == [144, 252]
    assert [w.input_wait_seconds for w in clock.windows] == [6.0, 10.5]


def test_synchronises_at_borders_only_and_before_reading():
    world = World()

    def synchronise() -> None:
        world.time += 10.0**world.synchronised  # the work that the device still has to do
        world.synchronised += 1

    clock = WindowClock(2, 3, synchronise, world.now)
    clock.start(0)
    counts = [world.synchronised]
    for step in range(1, 9):
        world.step(clock, step)
        counts.append(world.synchronised)
    #                 start        2 = end of the warm-up; 5 and 8 = ends of windows
    assert counts == [1, 1, 2, 2, 2, 3, 3, 3, 4]
    # That work belongs to the window that issued it.
    assert clock.warmup_seconds == 2 + 10
    assert [w.seconds for w in clock.windows] == [3 + 100, 3 + 1000]


def test_state_survives_a_restart():
    world, steps = World(), {"warmup_steps": 2, "window_steps": 3}
    first = world.clock(**steps)
    first.start(0)
    for step in range(1, 8):
        world.step(first, step)
    state = json.loads(json.dumps(first.state()))
    world.step(first, 8)  # closes a window that the state must not see

    world.time += 1e6
    second = world.clock(**steps)
    second.load(state)
    assert second.windows == first.windows[:1]
    assert second.warmup_seconds == 2.0
    second.start(7)
    for step in range(8, 14):
        world.step(second, step, seconds=10.0)
    assert second.warmup_seconds == 20.0
    # 6 and 7 were in an unfinished window; 8 and 9 are warm-up again; windows count from there.
    assert [(w.first_step, w.last_step) for w in second.windows] == [(3, 5), (10, 12)]
    assert [w.seconds for w in second.windows] == [3.0, 30.0]


@settings(deadline=None, derandomize=True)
@given(
    start=st.integers(0, 50),
    warmup=st.integers(0, 5),
    window=st.integers(1, 5),
    steps=st.lists(
        st.tuples(st.integers(0, 100), st.none() | st.integers(0, 1000)), min_size=1, max_size=40
    ),
)
def test_every_second_is_counted_once(start, warmup, window, steps):
    """Warm-up and windows tile the steps, and add up to the elapsed time without the pauses."""
    world = World()
    clock = world.clock(warmup, window)
    clock.start(start)
    durations = [float(seconds) for seconds, _ in steps]
    pauses = 0
    for number, (seconds, pause) in enumerate(steps, start + 1):
        world.step(clock, number, seconds=float(seconds), wait=float(seconds))
        if pause is not None:
            pauses += 1
            clock.pause()
            world.time += pause
            clock.resume()

    complete = max(0, (len(steps) - warmup) // window)
    assert len(clock.windows) == complete
    if len(steps) >= warmup:
        assert clock.warmup_seconds == sum(durations[:warmup])
        counted = warmup + complete * window
        assert sum(w.seconds for w in clock.windows) == sum(durations[warmup:counted])
        numbers = range(start + warmup + 1, start + counted + 1)
        assert sum(w.pairs for w in clock.windows) == sum(numbers)
    else:
        assert clock.warmup_seconds is None
    for one, two in pairwise(clock.windows):
        assert two.first_step == one.last_step + 1
    assert all(w.last_step - w.first_step + 1 == window for w in clock.windows)
    assert all(w.input_wait_seconds == w.seconds for w in clock.windows)
    borders = 1 + complete + (1 if 0 < warmup <= len(steps) else 0)
    assert world.synchronised == borders + 2 * pauses


class Moved:
    """A clock that moves only on request, and a little at every reading."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 1e-6
        return self.time


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5])
def test_a_step_is_longer_by_the_share(share):
    clock = Moved()
    delay = PlantedDelay(share, lambda: None, clock.now)
    for _ in range(3):
        began = clock.time
        clock.time += 1.0
        delay.step_done()
        assert clock.time - began == pytest.approx(1 + share, abs=1e-4)


def test_the_work_of_the_device_belongs_to_the_step():
    clock = Moved()

    def device() -> None:
        clock.time += 3.0

    delay = PlantedDelay(0.1, device, clock.now)
    clock.time += 1.0
    delay.step_done()
    assert clock.time == pytest.approx(4.4, abs=1e-4)


def test_waiting_for_a_turn_is_no_part_of_a_step():
    clock = Moved()
    delay = PlantedDelay(0.5, lambda: None, clock.now)
    clock.time += 100.0
    delay.begin()
    clock.time += 1.0
    delay.step_done()
    assert clock.time == pytest.approx(101.5, abs=1e-4)
