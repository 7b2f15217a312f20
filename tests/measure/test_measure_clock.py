"""The clock: exact borders, no pauses in windows, no synchronisation elsewhere."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_core.measure.turns_worker import PlantedDelay
from transformer_core.observe.clock import WindowClock


class World:
    """A device and a clock under the test's control; times are whole, so sums are exact."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.pending = 0.0  # the work that the device still has to do
        self.synchronised = 0

    def synchronise(self) -> None:
        self.synchronised += 1
        self.time += self.pending
        self.pending = 0.0

    def now(self) -> float:
        return self.time

    def clock(self, warmup_steps: int, window_steps: int) -> WindowClock:
        return WindowClock(warmup_steps, window_steps, self.synchronise, self.now)

    def step(self, clock: WindowClock, step: int, seconds: float = 1.0, wait: float = 0.0) -> None:
        self.time += seconds
        clock.step_done(step, pairs=step, tokens=10 * step, padded_tokens=12 * step,
                        input_wait_seconds=wait)  # fmt: skip


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
def test_windows_hold_exactly_their_steps(start, warmup, window, steps):
    """Warm-up and windows follow one another without a gap; pauses belong to none of them. The work
    of the device belongs to the window that issued it."""
    world = World()
    clock = world.clock(warmup, window)
    clock.start(start)
    pauses = 0
    for number, (seconds, pause) in enumerate(steps, start + 1):
        world.pending += 2 * seconds
        world.step(clock, number, seconds=float(seconds), wait=seconds / 2)
        if pause is not None:
            pauses += 1
            clock.pause()
            world.time += pause
            clock.resume()

    durations = [3 * seconds for seconds, _ in steps]
    warm = len(steps) >= warmup
    assert clock.warmup_seconds == (sum(durations[:warmup]) if warm else None)
    complete = max(0, (len(steps) - warmup) // window)
    assert len(clock.windows) == complete
    for index, found in enumerate(clock.windows):
        begin = warmup + index * window
        numbers = range(start + begin + 1, start + begin + window + 1)
        seconds, pairs = sum(durations[begin : begin + window]), sum(numbers)
        assert (found.first_step, found.last_step) == (numbers[0], numbers[-1])
        assert (found.seconds, found.input_wait_seconds) == (seconds, seconds / 6)
        assert (found.pairs, found.tokens, found.padded_tokens) == (pairs, 10 * pairs, 12 * pairs)
    borders = 1 + complete + (1 if 0 < warmup <= len(steps) else 0)
    assert world.synchronised == borders + 2 * pauses


@pytest.mark.parametrize(
    ("share", "device_seconds", "expected"),
    [(0.0, 0.0, 1.0), (0.03, 0.0, 1.03), (0.5, 0.0, 1.5), (0.1, 3.0, 4.4)],
)
def test_a_planted_delay_is_a_share_of_the_step(share, device_seconds, expected):
    """The work of the device belongs to the step, and waiting for a turn does not."""
    world = World()

    def now() -> float:
        world.time += 1e-5  # whoever waits reads it again and again
        return world.time

    delay = PlantedDelay(share, world.synchronise, now)
    world.time += 100.0
    delay.begin()
    for _ in range(3):
        began = world.time
        world.time += 1.0
        world.pending = device_seconds
        delay.step_done()
        assert world.time - began == pytest.approx(expected, abs=1e-4)
