"""Buckets of tensors, and what ranks tell of their traffic."""

import torch

from transformer_core.parallel.messages import Traffic, gradients


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
