import pytest
from pair_files import make_store, write_tokenizer

from transformer_core.data.tokenizing.job import load_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """The file of a small tokenizer."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def bpe(tokenizer):
    """The small tokenizer itself."""
    return load_tokenizer(tokenizer)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with a store of 60 pairs in three shards; tests must copy it before changing it."""
    folder = tmp_path_factory.mktemp("made")
    make_store(folder)
    return folder
