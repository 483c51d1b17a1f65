"""``cacheway`` and ``python -m cacheway``: the command line."""

import sys

from router.__main__ import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
