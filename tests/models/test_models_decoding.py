"""Greedy decoding and beam search against plain, uncached beam search."""

import pytest
import torch

from schemas.config.model import Transformer
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD
from transformer_core.models.decoding import beam_search, greedy
from transformer_core.models.registry import build_model


def build(seed, vocabulary):
    """A model whose next-token distributions differ from each other and from the uniform one."""
    torch.manual_seed(seed)
    spec = Transformer(
        encoder_layers=1, decoder_layers=1, d_model=16, d_ff=32, heads=2, tied_embeddings=False
    )
    model = build_model(spec, vocabulary).eval()
    with torch.no_grad():
        model.output.weight.mul_(3.0)
        for parameter in model.decoder.parameters():
            parameter.mul_(1.5)
    return model


def sentences(seed, vocabulary):
    generator = torch.Generator().manual_seed(seed)
    source = torch.full((4, 6), PAD)
    for row, length in zip(source, (3, 6, 1, 4), strict=True):
        row[:length] = torch.randint(4, vocabulary, (length,), generator=generator)
    return source


@torch.no_grad()
def next_log_p(model, source, prefix):
    """Log-probabilities of the token after BOS and ``prefix``, without cache or batch."""
    tokens = torch.tensor([[BOS, *prefix]])
    return model(source[None], tokens)[0, -1].log_softmax(-1).tolist()


def plain_beam(model, source, beam_size, alpha, max_length):
    """Beam search with lists, one sentence at a time."""
    beam, finished = [(0.0, [])], []
    for length in range(1, max_length + 1):
        candidates = sorted(
            (
                (score + log_p, [*prefix, token])
                for score, prefix in beam
                for token, log_p in enumerate(next_log_p(model, source, prefix))
                if token not in (PAD, BOS)
            ),
            reverse=True,
        )
        for score, tokens in candidates[:beam_size]:
            if tokens[-1] == EOS:
                finished.append((score / ((5 + length) / 6) ** alpha, tokens[:-1]))
        beam = [c for c in candidates if c[1][-1] != EOS][:beam_size]
        if len(finished) >= beam_size:
            break
    return max(finished)[1] if finished else beam[0][1]


@pytest.mark.parametrize(("beam_size", "alpha"), [(1, 0.6), (2, 0.0), (3, 6.0), (5, 0.6)])
def test_beam_search_equals_plain_beam_search(beam_size, alpha):
    for seed in range(2):
        model, source = build(seed, 8), sentences(seed, 8)
        results = beam_search(model, source, beam_size, alpha, 7)
        expected = [plain_beam(model, row[row != PAD], beam_size, alpha, 7) for row in source]
        assert results == expected
        if beam_size == 1:
            assert greedy(model, source, 7) == expected


searches = pytest.mark.parametrize(
    "search", [greedy, lambda m, s, n: beam_search(m, s, 3, 0.6, n)], ids=["greedy", "beam"]
)


def ending(bias):
    """A model for which EOS is more (or less) probable at every step."""
    model = build(0, 8)
    plain = model.decode

    def decode(*inputs):
        logits = plain(*inputs).clone()
        logits[..., EOS] += bias
        return logits

    model.decode = decode
    return model


@searches
def test_stops_when_everything_has_ended_or_at_the_maximum_length(search):
    model, calls = ending(100.0), []
    model.decoder[0].register_forward_hook(lambda *_: calls.append(1))
    assert search(model, sentences(0, 8), 50) == [[]] * 4
    assert len(calls) <= 3
    results = search(ending(-100.0), sentences(0, 8), 5)
    assert [len(tokens) for tokens in results] == [5] * 4
    assert not {PAD, BOS, EOS} & {token for tokens in results for token in tokens}


@searches
def test_a_batch_from_which_sentences_leave_equals_its_sentences(search):
    model, source = build(4, 15), sentences(4, 15)
    results = search(model, source, 8)
    assert len({len(tokens) for tokens in results}) > 1
    assert results == [search(model, row[None], 8)[0] for row in source]


@searches
def test_each_sentence_has_its_own_maximum_length(search):
    model, source, limits = ending(-4.0), sentences(4, 8), [5, 12, 3, 7]
    results = search(model, source, limits)
    assert any(len(tokens) == limit for tokens, limit in zip(results, limits, strict=True))
    alone = zip(source, limits, strict=True)
    assert results == [search(model, row[None], limit)[0] for row, limit in alone]


@searches
def test_training_mode_is_refused(search):
    with pytest.raises(ValueError, match=r"call eval\(\)"):
        search(build(0, 8).train(), sentences(0, 8), 5)
