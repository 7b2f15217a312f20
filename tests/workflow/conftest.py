"""What tests of the workflow share."""

import os

import project
import pytest


@pytest.fixture(scope="session", autouse=True)
def _shared_folder(tmp_path_factory):
    """Workers of pytest-xdist have folders of their own beside each other."""
    own = tmp_path_factory.getbasetemp()
    project.SHARED = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
