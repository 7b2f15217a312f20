import pytest
from pair_files import write_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """File of a small tokenizer."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
