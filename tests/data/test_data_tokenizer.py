"""Tokenizers are trained here, or converted: they keep their tokens, but the ids 0 to 3 are ours."""

import hashlib
import json
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pair_files import ENGLISH, GERMAN, steady, write_pairs
from tokenizers import AddedToken, decoders, models, processors
from tokenizers import Tokenizer as Bpe
from tokenizers_of_all_kinds import BY_WORD, PLAIN

from benchmarks._adversarial import adversarial_lines
from schemas.config.data import SentencePieceModel, Tokenizer, TokenizerFile
from schemas.results import TokenizerReport
from tests.orders import run_job
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.tokenizing import existing as existing_tokenizers
from transformer_core.data.tokenizing import job
from transformer_core.data.tokenizing.encoding import Encoder
from transformer_core.data.tokenizing.existing import convert, read_file, special_names, speller
from transformer_core.data.tokenizing.job import detokenize, load_tokenizer, train
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD, SPECIAL_NAMES, UNK


@steady
@given(text=st.text())
@example("<s>a <pad> b<unk></s>")
@example("  two  spaces  ")
@example("\t\n")
def test_any_text_is_decoded_exactly_without_unknown_tokens(bpe, text):
    ids = bpe.encode(text).ids
    assert bpe.decode(ids) == text
    assert detokenize(bpe, ids) == text
    assert min(ids, default=4) > UNK


def test_sentence_of_model_output_ends_at_the_end_token(bpe):
    ids = bpe.encode("It's raining.").ids
    assert detokenize(bpe, [BOS, *ids, EOS, *ids]) == "It's raining."
    assert detokenize(bpe, [*ids, PAD, PAD]) == "It's raining."


def test_training_learns_merges_and_is_deterministic(tmp_path):
    pairs = write_pairs(tmp_path / "p.arrow", ENGLISH * 3, GERMAN * 3)
    first, count = train(pairs, Tokenizer(vocabulary=320))
    second, _ = train(pairs, Tokenizer(vocabulary=320))
    assert first.to_str() == second.to_str()
    assert count == 12
    assert first.get_vocab_size() == 320
    assert len(first.encode(ENGLISH[0]).ids) < len(ENGLISH[0].encode())


@pytest.mark.parametrize(("asked", "lines"), [(4, [0, 3, 6, 9]), (100, range(12)), (1, [0])])
def test_sample_is_evenly_spaced_over_record_batches(tmp_path, asked, lines):
    texts = [f"s{number}" for number in range(12)]
    pairs = write_pairs(tmp_path / "p.arrow", texts, [text.upper() for text in texts], batch=5)
    rows = job.evenly_spaced(len(pairs), asked)
    found = [text for part in job._texts(pairs, rows) for text in part]
    expected = [f"s{line}" for line in lines]
    assert sorted(found) == sorted(expected + [text.upper() for text in expected])
    assert train(pairs, Tokenizer(sample_pairs=asked))[1] == len(expected)


def test_transformers_loads_it(tokenizer, bpe):
    from transformers import PreTrainedTokenizerFast  # late, because it takes a second

    names = ("pad_token", "bos_token", "eos_token", "unk_token")
    special = dict(zip(names, SPECIAL_NAMES, strict=True))
    fast = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), **special)
    assert [getattr(fast, f"{name}_id") for name in names] == [PAD, BOS, EOS, UNK]
    text = "A dog  läuft, 12!"
    ids = fast(text, add_special_tokens=False)["input_ids"]
    assert ids == bpe.encode(text).ids
    assert fast.decode(ids, clean_up_tokenization_spaces=False) == text


def run(folder, settings):
    files = {"pairs": folder / "p.arrow", "report": folder / "report.json"}
    output = folder / "new" / "tokenizer.json"
    return run_job("tokenizer", tokenizer=settings, output=output, **files)


def report_of(folder):
    return TokenizerReport.model_validate_json((folder / "report.json").read_text())


def test_job_writes_tokenizer_and_report(tmp_path, caplog):
    write_pairs(tmp_path / "p.arrow", ENGLISH * 3, GERMAN * 3)
    assert run(tmp_path, {"vocabulary": 30000}) == 0
    report, output = report_of(tmp_path), tmp_path / "new/tokenizer.json"
    bpe = load_tokenizer(output)
    assert report.vocabulary == bpe.get_vocab_size() < 30_000
    assert report.sample_pairs == 12
    assert report.sha256 == hashlib.sha256(output.read_bytes()).hexdigest()
    assert "fewer than tokenizer.vocabulary = 30000" in caplog.text
    assert f"embeddings of {report.vocabulary} rows" in caplog.text
    left = sorted(path.name for path in tmp_path.glob("[!.]*"))
    assert left == ["new", "p.arrow", "p.json", "report.json"]


def test_job_refuses_wrong_settings(tmp_path, capsys):
    write_pairs(tmp_path / "p.arrow", ENGLISH, GERMAN)
    for settings in ({"vocabulary": 12}, {"vocabluary": 500}, {"kind": "fill"}, "{"):
        assert run(tmp_path, settings) == 1
        assert "tokenizer" in capsys.readouterr().err
        assert not (tmp_path / "new").exists()


def test_job_refuses_empty_missing_and_damaged_pairs(tmp_path, capsys):
    pairs = write_pairs(tmp_path / "p.arrow", [], []).path
    assert run(tmp_path, {}) == 1
    assert "contains no pair" in capsys.readouterr().err
    pairs.write_bytes(b"ARROW1 is not all of it")
    assert run(tmp_path, {}) == 1
    assert f"snakemake --cores all {pairs} --forcerun" in capsys.readouterr().err
    pairs.unlink()
    assert run(tmp_path, {}) == 1
    assert "p.arrow" in capsys.readouterr().err


def test_special_tokens_with_other_ids_are_refused(tmp_path, tokenizer):
    settings = json.loads(tokenizer.read_text())
    settings["added_tokens"][PAD]["id"], settings["added_tokens"][BOS]["id"] = BOS, PAD
    settings["model"]["vocab"][SPECIAL_NAMES[PAD]] = BOS
    settings["model"]["vocab"][SPECIAL_NAMES[BOS]] = PAD
    foreign = tmp_path / "foreign.json"
    foreign.write_text(json.dumps(settings))
    with pytest.raises(CorpusError, match="instead of 0 to 3"):
        load_tokenizer(foreign)


TEXTS = [*ENGLISH, *GERMAN, "unseen Wörter: ŋ ☃", *adversarial_lines(100)]
# A foreign Unigram finds its <unk> in text, but not after the conversion.
SPELLED = [text for text in TEXTS if "<unk>" not in text]


def saved(folder, tokenizer):
    path = folder / "theirs.json"
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    return path


def converted(path, kind="file"):
    """Converts with the size given in the message about a wrong one."""
    spec = {"file": TokenizerFile, "sentencepiece": SentencePieceModel}[kind]
    with pytest.raises(CorpusError, match=r"remedy: set tokenizer\.vocabulary: ") as wrong:
        convert(spec(kind=kind, path=str(path), vocabulary=5))
    size = int(str(wrong.value).rsplit(": ", 1)[1])
    return convert(spec(kind=kind, path=str(path), vocabulary=size))


@pytest.mark.parametrize(
    "kind",
    ["gpt2", "metaspace_bpe", "whitespace", "unigram_always", "word_piece", "word_level", "nfkc"],
)
def test_converted_tokenizers_spell_and_split_words_like_the_original(tmp_path, kind):
    theirs = (BY_WORD | PLAIN)[kind]()
    theirs.post_processor = processors.TemplateProcessing(
        single="$A " + theirs.id_to_token(0), special_tokens=[(theirs.id_to_token(0), 0)]
    )
    theirs.enable_truncation(3)
    theirs.enable_padding()
    ours, spell = converted(saved(tmp_path, theirs))
    names = special_names(ours)
    assert [name.removesuffix(existing_tokenizers._MARK) for name in names] == list(SPECIAL_NAMES)
    assert ours.get_vocab_size() == max(ours.get_vocab().values()) + 1
    found = speller(ours, names[UNK])(SPELLED)
    assert found == spell(SPELLED)
    assert any(len(spelled) > 3 for spelled in found)
    ids = [encoding.ids for encoding in ours.encode_batch(TEXTS)]
    assert min(min(row, default=UNK) for row in ids) >= UNK, "text gives padding or ends"
    path = tmp_path / "tokenizer.json"
    path.write_text(ours.to_str(), encoding="utf-8")
    encoder = Encoder(load_tokenizer(path))
    assert encoder.by_word == (kind in BY_WORD)
    encoded = encoder.encode(pa.array(TEXTS, pa.large_string()))
    assert [row.tolist() for row in np.split(encoded.ids, encoded.offsets[1:-1])] == ids


def test_the_originals_special_tokens_are_dropped_and_added_ones_kept(tmp_path):
    theirs = BY_WORD["gpt2"]()
    theirs.decoder = decoders.ByteLevel()
    theirs.add_special_tokens(["<|endoftext|>", "<s>"])
    theirs.add_tokens([AddedToken("grüne Wiese", normalized=False)])
    ours, spell = converted(saved(tmp_path, theirs))
    assert ours.token_to_id("<|endoftext|>") is None
    assert [ours.token_to_id(name) for name in SPECIAL_NAMES] == [0, 1, 2, 3]
    text = "A grüne Wiese.<|endoftext|><s>"
    assert "grüne Wiese" in ours.encode(text).tokens
    assert speller(ours, None)([text]) == spell([text])
    assert detokenize(ours, [*ours.encode(text).ids, EOS, 5]) == text


@pytest.mark.parametrize(
    ("vocabulary", "merges", "options", "special"),
    [
        (["<", "s", ">", "<s", "<s>"], [("<", "s"), ("<s", ">")], {}, []),
        (["<", "s", ">", "<s>"], [], {"ignore_merges": True}, []),
        (["<", "s", ">", "<s", "<s>"], [("<", "s"), ("<s", ">")], {}, ["<s>"]),
        (
            ["#s>", "<s>"],
            [("#s", "#>"), ("<", "#s>")],
            {"continuing_subword_prefix": "#"},
            ["<s>"],
        ),
        (["<", "s", ">", "<s>!"], [("<", "s>!")], {"end_of_word_suffix": "!"}, ["<s>!"]),
    ],
)
def test_merges_make_no_special_token(tmp_path, vocabulary, merges, options, special):
    known = dict.fromkeys([*vocabulary, *(part for pair in merges for part in pair)])
    ids = {token: number for number, token in enumerate(known)}
    tokenizer = Bpe(models.BPE(ids, merges, **options))
    tokenizer.add_special_tokens(special)
    ours, _ = converted(saved(tmp_path, tokenizer))
    assert min(ours.encode("<s>").ids) >= len(SPECIAL_NAMES)


def test_older_merges_are_read(tmp_path):
    path = saved(tmp_path, BY_WORD["gpt2"]())
    settings = json.loads(path.read_text())
    settings["model"]["merges"] = [" ".join(pair) for pair in settings["model"]["merges"]]
    path.write_text(json.dumps(settings))
    ours, spell = converted(path)
    assert speller(ours, None)(TEXTS) == spell(TEXTS)


def test_files_that_are_not_tokenizers_are_named(tmp_path):
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "text.json").write_text("no JSON")
    for name in ("empty", "text", "none"):
        path = tmp_path / f"{name}.json"
        with pytest.raises(CorpusError, match=rf"{name}\.json: is not a tokenizer"):
            convert(TokenizerFile(kind="file", path=str(path), vocabulary=99))
        with pytest.raises(CorpusError, match=rf"{name}\.json: is not a tokenizer"):
            load_tokenizer(path)


def test_job_takes_a_file_and_compares(tmp_path, capsys, caplog):
    path = saved(tmp_path, BY_WORD["word_piece"]())
    size = converted(path)[0].get_vocab_size()
    settings = {"kind": "file", "path": str(path), "vocabulary": size}
    write_pairs(tmp_path / "p.arrow", ENGLISH * 3, GERMAN * 3)
    assert run(tmp_path, settings) == 0
    report = report_of(tmp_path)
    assert (report.source, report.vocabulary, report.sample_pairs) == (str(path), size, 12)
    assert report.different == 0
    assert report.inexact == 24, "lower case does not come back"
    assert "does not restore 24 of 24 sentences exactly" in caplog.text
    assert load_tokenizer(tmp_path / "new/tokenizer.json").get_vocab_size() == size
    assert run(tmp_path, settings | {"vocabulary": size + 1}) == 1
    assert f"set tokenizer.vocabulary: {size}" in capsys.readouterr().err
    write_pairs(tmp_path / "p.arrow", [""] * 8, [*ENGLISH, *GERMAN])
    assert run(tmp_path, settings) == 0
    assert "does not restore 8 of 8 sentences exactly" in caplog.text, "texts have no source"


def sentencepiece_model(folder, **options):
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    usual = {"vocab_size": 90, "hard_vocab_limit": False, "minloglevel": 2}
    sentences = iter([*ENGLISH, *GERMAN] * 20)
    files = {"sentence_iterator": sentences, "model_prefix": str(folder / "theirs")}
    sentencepiece.SentencePieceTrainer.train(**files, **(usual | options))
    return folder / "theirs.model"


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        {"byte_fallback": True, "vocab_size": 350},
        {"add_dummy_prefix": False, "user_defined_symbols": ["Wiese", "☃"]},
        {"bos_id": 0, "unk_id": 3, "eos_id": 2, "pad_id": 1, "control_symbols": ["<x>"]},
    ],
    ids=["default", "identity", "byte_fallback", "no_prefix", "other_ids"],
)
def test_a_converted_sentencepiece_model_spells_like_the_original(tmp_path, model_type, options):
    path = sentencepiece_model(tmp_path, model_type=model_type, **options)
    texts = [*ENGLISH, *GERMAN, "unseen Wörter: ŋ ☃ <x> <s>", "zwei  Leerzeichen", "ﬁ ½"]
    ours, spell = converted(path, kind="sentencepiece")
    assert speller(ours, special_names(ours)[UNK])(texts) == spell(texts)
    assert [detokenize(ours, ours.encode(text).ids) for text in ENGLISH] == ENGLISH


def test_sentencepiece_models_that_cannot_be_used(tmp_path, monkeypatch):
    def read(path):
        return convert(SentencePieceModel(kind="sentencepiece", path=str(path), vocabulary=99))

    words = sentencepiece_model(tmp_path, model_type="word", vocab_size=20)
    with pytest.raises(CorpusError, match="of words or characters"):
        read(words)
    path = tmp_path / "no.model"
    for content, message in (
        (b"\xffno model", r"no\.model: is not a SentencePiece model"),
        (b"", "holds no pieces"),
    ):
        path.write_bytes(content)
        with pytest.raises(CorpusError, match=message):
            read(path)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(CorpusError, match=r"pip install .*\[sentencepiece\]"):
        read(words)


@pytest.mark.parametrize("number", [2**31, 2**32 - 1])
def test_a_token_with_an_enormous_id_is_refused(tmp_path, number):
    path = saved(tmp_path, Bpe(models.BPE({"a": 0, "b": 1}, [])))
    settings = json.loads(path.read_text())
    settings["model"]["vocab"]["b"] = number
    path.write_text(json.dumps(settings))
    with pytest.raises(CorpusError, match=f"the id {number:,}"):
        read_file(path)
