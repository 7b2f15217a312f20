import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_files import ENGLISH, GERMAN, steady, write_pairs, write_tokenizer
from transformers import PreTrainedTokenizerFast

from schemas.config.data import Tokenizer
from schemas.results import TokenizerReport
from tests.orders import run_job
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.tokenizing import job
from transformer_core.data.tokenizing.job import detokenize, load_tokenizer, train
from transformer_core.data.tokenizing.special_tokens import (
    BOS,
    EOS,
    PAD,
    SPECIAL_NAMES,
    SPECIAL_TOKENS,
    UNK,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def bpe(path):
    return load_tokenizer(path)


@steady
@given(text=st.text())
def test_any_text_comes_back_exactly_and_is_known(bpe, text):
    ids = bpe.encode(text).ids
    assert bpe.decode(ids) == text
    assert detokenize(bpe, ids) == text
    assert min(ids, default=4) > UNK


@pytest.mark.parametrize(
    "text",
    ["</s>", "a <pad> b", "<s><unk></s>", "  two  spaces  ", "\t\n", "e\u0301", "", "\u200f"],
)
def test_special_names_and_white_space_in_text_are_just_text(bpe, text):
    ids = bpe.encode(text).ids
    assert min(ids, default=4) > UNK
    assert detokenize(bpe, ids) == text


def test_merges_stay_within_letters_numbers_or_signs(bpe):
    text = "Wiese.12,50"
    pieces = [bpe.decode([token]) for token in bpe.encode(text).ids]
    assert "".join(pieces) == text
    assert not any(piece != piece.strip(".,") and any(map(str.isalnum, piece)) for piece in pieces)


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


def test_transformers_loads_it(path, bpe):
    fast = PreTrainedTokenizerFast(tokenizer_file=str(path), **SPECIAL_TOKENS)
    assert (fast.pad_token_id, fast.bos_token_id, fast.eos_token_id, fast.unk_token_id) == (
        PAD,
        BOS,
        EOS,
        UNK,
    )
    text = "A dog  läuft, 12!"
    ids = fast(text, add_special_tokens=False)["input_ids"]
    assert ids == bpe.encode(text).ids
    assert fast.decode(ids, clean_up_tokenization_spaces=False) == text


def test_job_writes_tokenizer_and_report(tmp_path, caplog):
    write_pairs(tmp_path / "p.arrow", ENGLISH * 3, GERMAN * 3)
    output, report_path = tmp_path / "new" / "tokenizer.json", tmp_path / "report.json"
    assert _run(tmp_path, {"vocabulary": 30000}) == 0
    report = TokenizerReport.model_validate_json(report_path.read_text())
    bpe = load_tokenizer(output)
    assert report.vocabulary == bpe.get_vocab_size() < 30_000
    assert report.sample_pairs == 12
    assert report.sha256 == hashlib.sha256(output.read_bytes()).hexdigest()
    assert "fewer than the 30000 asked for" in caplog.text
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == [
        "new",
        "p.arrow",
        "p.json",
        "report.json",
    ]


@pytest.mark.parametrize("settings", [{"vocabulary": 12}, {"vocabluary": 500}, "{"])
def test_job_refuses_wrong_settings(tmp_path, capsys, settings):
    write_pairs(tmp_path / "p.arrow", ENGLISH, GERMAN)
    assert _run(tmp_path, settings) == 1
    assert "tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_job_refuses_empty_missing_and_damaged_pairs(tmp_path, capsys):
    write_pairs(tmp_path / "p.arrow", [], [])
    assert _run(tmp_path, {}) == 1
    assert "holds no pair" in capsys.readouterr().err
    (tmp_path / "p.arrow").write_bytes(b"ARROW1 is not all of it")
    assert _run(tmp_path, {}) == 1
    assert f"snakemake --cores all {tmp_path / 'p.arrow'} --forcerun" in capsys.readouterr().err
    (tmp_path / "p.arrow").unlink()
    assert _run(tmp_path, {}) == 1
    assert "p.arrow" in capsys.readouterr().err


def test_foreign_or_damaged_tokenizer_is_refused(tmp_path, path):
    settings = json.loads(path.read_text())
    settings["added_tokens"][PAD]["id"], settings["added_tokens"][BOS]["id"] = BOS, PAD
    settings["model"]["vocab"][SPECIAL_NAMES[PAD]] = BOS
    settings["model"]["vocab"][SPECIAL_NAMES[BOS]] = PAD
    foreign = tmp_path / "foreign.json"
    foreign.write_text(json.dumps(settings))
    with pytest.raises(CorpusError, match="instead of 0 to 3"):
        load_tokenizer(foreign)
    foreign.write_text("{}")
    with pytest.raises(CorpusError, match="is not a tokenizer"):
        load_tokenizer(foreign)
    with pytest.raises(CorpusError, match=r"none\.json"):
        load_tokenizer(tmp_path / "none.json")


def _run(folder, settings):
    return run_job(
        "tokenizer",
        tokenizer=settings,
        pairs=folder / "p.arrow",
        output=folder / "new" / "tokenizer.json",
        report=folder / "report.json",
    )
