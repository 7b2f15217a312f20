"""A folder that all processes share that run tests of the workflow."""

import os

import project
import pytest


@pytest.fixture(scope="session", autouse=True)
def _shared_folder(tmp_path_factory):
    """The base folders of pytest-xdist's workers are in one folder."""
    own = tmp_path_factory.getbasetemp()
    project.SHARED = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
