"""Install real engines and models for the live tests: `python scripts/engines.py install`, `status`, `path NAME`."""

from __future__ import annotations

import sys

from provision.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
