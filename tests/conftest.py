"""What all tests share."""

import sys
from pathlib import Path

# Helper modules of a test folder (builders, fixtures) are imported by their plain names.
for folder in sorted(Path(__file__).parent.iterdir()):
    if folder.is_dir() and not folder.name.startswith((".", "_")):
        sys.path.append(str(folder))
