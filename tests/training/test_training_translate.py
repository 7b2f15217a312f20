from unittest.mock import Mock

import pytest
import sacrebleu
import torch
from safetensors.torch import save_model

from schemas.config.data import GrammarCorpus
from schemas.config.run_spec import RunSpec
from schemas.config.training import Evaluation
from schemas.errors import Unsupported
from tests.data.pair_files import make_store
from transformer_core.data.tokenizing.job import detokenize, load_tokenizer
from transformer_core.data.tokenizing.special_tokens import EOS, PAD
from transformer_core.models.registry import build_model
from transformer_core.training import translate

CPU = torch.device("cpu")


def spec_with(kind="fp32"):
    return RunSpec.model_validate(
        {
            "variant": "small",
            "model": {"kind": "transformer", "d_model": 16, "d_ff": 32, "heads": 2},
            "machine": {"device": "cpu"},
            "training": {"precision": {"kind": kind}},
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a test split, a tokenizer and the weights of an untrained model."""
    folder = tmp_path_factory.mktemp("translate")
    store = make_store(folder, pairs=30)
    torch.manual_seed(1)
    save_model(build_model(spec_with().model, store.manifest.vocabulary), str(folder / "weights"))
    return folder, store


def evaluate(trained, kind="fp32", **evaluation):
    folder, store = trained
    settings = Evaluation.model_validate({"beam_size": 2, "batch_pairs": 7} | evaluation)
    files = folder / "weights", store, folder / "tokenizer.json"
    return translate.evaluate(spec_with(kind), settings, *files, CPU)


class Oracle:
    """Stands in for the search: finds each source's target in the store."""

    def __init__(self, store):
        self.sizes = []
        self.limits = []
        rows = list(range(len(store)))
        sources = [tuple(ids.tolist()) for ids in store.source_rows(rows)]
        targets = [ids.tolist() for ids in store.target_rows(rows)]
        self.known = dict(zip(sources, targets, strict=True))

    def __call__(self, model, source, *options):
        assert not model.training
        assert not torch.is_grad_enabled()
        self.sizes.append(len(source))
        lengths = (source != PAD).sum(1).tolist()
        self.limits += [limit - n for limit, n in zip(options[-1], lengths, strict=True)]
        rows = [row[: row.index(EOS)] for row in source.tolist()]
        return [self.known[tuple(row)] for row in rows]


@pytest.mark.parametrize(
    ("language", "translation", "reference", "usual"),
    [
        ("de", "Wir gehen heute in den Park", "Wir gehen heute in den Garten", True),
        ("zh", "我们今天去公园散步吧", "我们今天去公园散步呢", False),
        ("zh-CN", "我们今天去公园散步吧", "我们今天去公园散步呢", False),
        ("zho_Hans", "我们今天去公园散步吧", "我们今天去公园散步呢", False),
        ("jpn", "昨日は友達と公園へ行きました", "昨日は友達と公園に行きました", False),
        ("jp", "昨日は友達と公園へ行きました", "昨日は友達と公園に行きました", False),
    ],
)
def test_a_sentence_without_spaces_is_not_one_word(language, translation, reference, usual):
    found = translate.bleu_in(GrammarCorpus(target_language=language))
    score = found.corpus_score([translation], [[reference]]).score
    assert score > 60
    words = sacrebleu.corpus_bleu([translation], [[reference]]).score
    assert words == pytest.approx(score if usual else 0.0)


@pytest.mark.parametrize(("search", "beam_size"), [("beam_search", 4), ("greedy", 1)])
def test_hypotheses_are_compared_with_their_own_references(monkeypatch, trained, search, beam_size):
    """Batches are sorted by length, so only the restored order scores 100."""
    oracle = Oracle(trained[1])
    monkeypatch.setattr(translate, search, oracle)
    result = evaluate(trained, beam_size=beam_size, samples=3)
    assert (result.status, result.reason) == ("ok", None)
    assert (result.bleu, result.chrf) == (pytest.approx(100.0), pytest.approx(100.0))
    assert result.pairs == 30
    assert oracle.sizes == [7, 7, 7, 7, 2]
    assert oracle.limits == [50] * 30
    assert len(result.samples) == 3
    tokenizer = load_tokenizer(trained[0] / "tokenizer.json")
    for row, sample in enumerate(result.samples):
        assert sample.source == detokenize(tokenizer, trained[1].source_rows([row])[0])
        assert sample.reference == detokenize(tokenizer, trained[1].target_rows([row])[0])
        assert sample.hypothesis == sample.reference


def test_scores_are_sacrebleus(monkeypatch, trained):
    oracle = Oracle(trained[1])
    oracle.known = {
        source: [*target[: 1 + len(target) // 2], EOS, 5] for source, target in oracle.known.items()
    }
    monkeypatch.setattr(translate, "beam_search", oracle)
    result = evaluate(trained, samples=30)
    guesses = [sample.hypothesis for sample in result.samples]
    references = [[sample.reference for sample in result.samples]]
    assert 0 < result.bleu < 100
    assert result.bleu == pytest.approx(sacrebleu.corpus_bleu(guesses, references).score)
    assert result.chrf == pytest.approx(sacrebleu.corpus_chrf(guesses, references).score)
    assert "tok:13a" in result.signature


@pytest.mark.parametrize(("kind", "beam_size"), [("fp32", 1), ("bf16", 1), ("fp16", 2)])
def test_an_untrained_model_translates_a_few_pairs_in_any_precision(trained, kind, beam_size):
    result = evaluate(trained, kind, max_pairs=4, beam_size=beam_size)
    assert result.pairs == len(result.samples) == 4
    assert result.bleu < 50


@pytest.mark.parametrize("beam_size", [1, 2])
def test_translations_do_not_depend_on_the_size_of_a_batch(trained, monkeypatch, beam_size):
    """Untrained models end few sentences, so most are cut off."""
    monkeypatch.setattr(translate, "EXTRA_TOKENS", 5)
    found = [
        evaluate(trained, beam_size=beam_size, samples=30, batch_pairs=size).samples
        for size in (1, 7, 30)
    ]
    assert found[0] == found[1] == found[2]


def test_evaluation_runs_on_the_given_device(monkeypatch, trained):
    refuse = Mock(side_effect=Unsupported("enough"))
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *args, **kwargs: self)
    monkeypatch.setattr(translate, "build_precision", refuse)
    folder, store = trained
    devices = [torch.device(kind) for kind in ("cpu", "cuda")]
    for device in devices:
        with pytest.raises(Unsupported):
            translate.evaluate(spec_with(), Evaluation(), folder / "weights", store, folder, device)
    assert [call.args[1] for call in refuse.call_args_list] == devices
