"""``python -m transformer_core.audit``."""

import sys

from transformer_core.audit.command import main

sys.exit(main())
