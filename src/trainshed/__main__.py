"""``python -m trainshed``."""

import sys

from trainshed.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
