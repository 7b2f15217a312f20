from pathlib import Path

import pytest
from report_builders import build, mixed, unsupported


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a study in which one variant is unsupported; tests must not write to it."""
    return build(tmp_path_factory.mktemp("study") / "results", mixed)


@pytest.fixture(scope="session")
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a study in which no variant could run."""
    return build(tmp_path_factory.mktemp("empty") / "results", unsupported)
