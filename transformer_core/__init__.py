"""Training, measuring and reporting; each job runs as ``python -m transformer_core.<room>``.

Rooms import in one direction only, which tests/test_layers.py lists.
"""

import sys
from importlib import import_module
from pathlib import Path

if "schemas" not in sys.modules:
    # The user's PYTHONPATH or current folder may have another package of this name, which comes first.
    sys.path.insert(0, str(Path(__path__[0]).parent))
    import_module("schemas")
    del sys.path[0]
