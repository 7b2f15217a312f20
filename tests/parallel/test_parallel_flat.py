"""Buckets of tensors, and what ranks tell of their traffic."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_core.parallel.messages import Traffic, buckets, copy_back, flatten, gradients

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=20)


@settings(deadline=None, derandomize=True)
@given(SIZES, st.integers(1, 400))
def test_buckets_end_once_they_are_full(sizes: list[int], limit: int) -> None:
    tensors = [torch.zeros(size) for size in sizes]
    groups = buckets(tensors, limit)
    flat = [tensor for group in groups for tensor in group]
    assert all(a is b for a, b in zip(flat, tensors, strict=True))
    for group in groups[:-1]:
        assert sum(t.nbytes for t in group) >= limit
    for group in groups:
        assert sum(t.nbytes for t in group[:-1]) < limit


def test_a_bucket_has_one_dtype() -> None:
    tensors = [torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)]
    assert [len(group) for group in buckets(tensors, 1_000)] == [1, 1, 1]


@settings(deadline=None, derandomize=True)
@given(SIZES)
def test_what_is_flattened_comes_back(sizes: list[int]) -> None:
    tensors = [torch.randn(size, 2) for size in sizes]
    copies = [torch.zeros_like(t) for t in tensors]
    copy_back(flatten(tensors), copies)
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))


def test_a_missing_gradient_is_zero() -> None:
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    unused, used = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))
    used.grad = torch.full((3,), 2.0)
    found = gradients([frozen, unused, used])
    assert [g.tolist() for g in found] == [[0.0, 0.0], [2.0, 2.0, 2.0]]
    assert unused.grad is found[0]
    assert frozen.grad is None


def test_traffic_adds_up() -> None:
    traffic = Traffic()
    traffic.add("scatter", sent=5)
    traffic.add("scatter", sent=7, received=1)
    traffic.add_all_reduce(300, world_size=3, calls=2)
    told = traffic.of_all_ranks(lambda row: [list(row), [2 * value for value in row]])
    assert list(told) == ["all_reduce", "scatter"]
    assert told["scatter"]["sent_bytes"] == [12, 24]
    assert told["scatter"]["received_bytes"] == [1, 2]
    # 2 (p - 1) / p of the payload.
    assert told["all_reduce"]["sent_bytes"] == [400, 800]
