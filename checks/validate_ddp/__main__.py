"""``python -m validate_ddp`` is the command ``validate-ddp``."""

import sys

from validate_ddp.cli import main

sys.exit(main())
