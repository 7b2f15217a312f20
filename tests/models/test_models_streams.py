"""Streams: order and memory, checked with a model of CUDA's streams on hosts without a GPU.

The model keeps a vector clock for each stream, so it knows which work must have ended when other work
starts. It does not depend on timing, so it always finds a missing event.
"""

import itertools
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from schemas.config.model import StreamsQkv, Transformer
from schemas.errors import Unsupported
from transformer_core.models import qkv_projection
from transformer_core.models.qkv_projection import (
    between_synchronisations,
    build_projection,
    concurrently,
)
from transformer_core.models.registry import build_model

PARTS = ("query", "key", "value")


class Stream:
    """A queue; ``clock`` is the progress of each queue when the next work of this one starts."""

    def __init__(self):
        self.clock = {}

    def wait_stream(self, other):
        for stream, time in other.clock.items():
            self.clock[stream] = max(time, self.clock.get(stream, 0))


class FakeCuda:
    """The part of ``torch.cuda`` that ``qkv_projection`` uses, and a race detector."""

    def __init__(self):
        self.made, self.synchronisations = [], 0
        self.main = self.current = Stream()
        self.writers = {}
        self.used_by, self.recorded = set(), set()  # memory of other streams
        self.races = []
        self.kept = []  # so that no address is reused

    def is_available(self):
        return True

    def Stream(self, device=None):  # noqa: N802
        self.made.append(Stream())
        return self.made[-1]

    def current_stream(self, device=None):
        return self.current

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def synchronize(self, device=None):
        """The host waits for every stream, so all later launches start after this."""
        self.synchronisations += 1
        for stream, other in itertools.permutations([self.main, *self.made], 2):
            stream.wait_stream(other)

    def kernel(self, reads, writes):
        stream = self.current
        self.kept += [*reads, *writes]
        for tensor in reads:
            writer, time = self.writers[self.memory(tensor)]
            if stream.clock.get(writer, 0) < time:
                self.races.append((writer, stream))
            if writer is not stream:
                self.used_by.add((self.memory(tensor), stream))
        stream.clock[stream] = stream.clock.get(stream, 0) + 1
        for tensor in writes:
            self.writers[self.memory(tensor)] = (stream, stream.clock[stream])

    def record(self, tensor, stream):
        """Tells the allocator that a stream uses memory that it did not allocate."""
        self.recorded.add((self.memory(tensor), stream))

    @staticmethod
    def memory(tensor):
        return tensor.untyped_storage().data_ptr()


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(qkv_projection, "cuda", fake)
    monkeypatch.setattr(qkv_projection, "require_on_cuda", lambda x: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, stream: fake.record(x, stream))
    qkv_projection._side_stream.cache_clear()
    yield fake
    qkv_projection._side_stream.cache_clear()


def launched(cuda, as_published, parts=PARTS, calls=1):
    """Projects an input of the current stream, which then reads the results."""
    torch.manual_seed(0)
    spec = StreamsQkv(kind="streams", device_synchronise=as_published)
    projection = build_projection(spec, 12, 3, parts)
    for linear in projection.children():
        linear.register_forward_hook(lambda _, inputs, output: cuda.kernel(inputs, [output]))
    for _ in range(calls):
        x = torch.randn(2, 5, 12)
        cuda.kernel([], [x])
        results = projection(x)
        cuda.kernel(results, [])
    return projection, x, results


MODES = pytest.mark.parametrize("as_published", [False, True], ids=["events", "as_published"])


@MODES
@pytest.mark.parametrize("parts", [PARTS, PARTS[1:]])
def test_no_race_and_the_values_of_separate(cuda, as_published, parts):
    projection, x, results = launched(cuda, as_published, parts, calls=2)
    assert cuda.races == []
    # In each call every part reads an input of the main stream, which reads the result.
    assert len(cuda.used_by) == 2 * 2 * len(parts)
    assert cuda.recorded >= cuda.used_by
    for part, result in zip(parts, results, strict=True):
        assert torch.equal(result, projection.project(part, x))
    # As published, every call makes new streams, and the host waits for the device twice.
    assert len(cuda.made) == (2 if as_published else 1) * len(parts)
    assert cuda.synchronisations == (4 if as_published else 0)


def test_all_layers_share_streams_that_do_not_wait_for_each_other(cuda):
    launched(cuda, False)
    assert all(set(stream.clock) == {stream, cuda.main} for stream in cuda.made)
    launched(cuda, False)
    assert len(cuda.made) == 3


@MODES
def test_a_single_part_stays_on_the_current_stream(cuda, as_published):
    launched(cuda, as_published, ("query",))
    assert not cuda.made
    assert cuda.synchronisations == 0


@pytest.mark.parametrize("waits", ["main", "side"])
def test_planted_fault_streams_without_their_event(cuda, monkeypatch, waits):
    wait = Stream.wait_stream
    monkeypatch.setattr(
        Stream,
        "wait_stream",
        lambda s, other: wait(s, other) if (s is cuda.main) == (waits == "main") else None,
    )
    launched(cuda, False)
    wrong = [(cuda.main, stream) for stream in cuda.made]
    assert cuda.races == (wrong if waits == "main" else [pair[::-1] for pair in wrong])


def test_counting_without_data_needs_no_streams(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with torch.device("meta"):
        projection = build_projection(StreamsQkv(kind="streams"), 12, 3, PARTS)
        assert [part.shape for part in projection(torch.empty(2, 5, 12))] == [(2, 3, 5, 4)] * 3


@MODES
def test_a_machine_without_cuda_is_unsupported(monkeypatch, as_published):
    spec = Transformer(qkv={"kind": "streams", "device_synchronise": as_published})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unsupported, match=r"^needs CUDA: .*this host has none$"):
        build_model(spec, 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    tokens = torch.tensor([[4, 5]])
    with pytest.raises(Unsupported, match=r"^needs CUDA: .*the input is on the cpu$"):
        build_model(spec, 30)(tokens, tokens)


LONG = 100_000_000
"""Clock cycles: some 50 ms."""


def large_maps(seed):
    torch.manual_seed(seed)
    return [nn.Linear(1024, 1024, bias=False).cuda() for _ in PARTS]


def late(linear):
    def apply(x):
        torch.cuda._sleep(LONG)
        return linear(x)

    return apply


def concurrently_late(linears, x):
    return concurrently([late(linear) for linear in linears], x)


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("run", [concurrently, concurrently_late, between_synchronisations])
def test_large_tensors_on_cuda_are_not_read_too_early(run, seed):
    """Three products of a late input, read at once."""
    linears = large_maps(seed)
    values = torch.randn(64, 512, 1024, device="cuda")
    x = torch.zeros_like(values)
    # A first run, because allocating memory may wait for the device, and to leave other values
    # in the memory.
    warm = [result.clone() for result in run(linears, x)]
    torch.cuda.synchronize()
    del warm
    torch.cuda._sleep(LONG)
    x.copy_(values)
    read = [result.clone() for result in run(linears, x)]
    torch.cuda.synchronize()
    expected = [linear(values) for linear in linears]
    torch.testing.assert_close(read, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("run", [concurrently, between_synchronisations])
def test_memory_still_in_use_is_not_reused_on_cuda(run):
    used = []

    def noted(linear):
        def apply(x):
            used.append(torch.cuda.current_stream())
            return linear(x)

        return apply

    linears = large_maps(0)
    x = torch.randn(32, 512, 1024, device="cuda")
    expected = [linear(x) for linear in linears]
    results = run([noted(linear) for linear in linears], x)
    torch.cuda._sleep(LONG)
    read = [result + 0 for result in results]
    del results
    for side in used:
        with torch.cuda.stream(side):
            torch.full_like(x, torch.nan)
    torch.cuda.synchronize()
    torch.testing.assert_close(read, expected, rtol=1e-4, atol=1e-4)
