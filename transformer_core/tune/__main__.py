"""``python -m transformer_core.tune train.py [its arguments]``."""

import sys

from transformer_core.tune.command import main

sys.exit(main())
