"""`python -m kvrelease`: the same program as the `kvrelease` command."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - pip refuses older ones, but a checkout can be run with one
    sys.exit(f"error: kvrelease needs Python 3.11 or newer, this is {sys.version.split()[0]} ({sys.executable})")

from kvrelease.cli.app import main

if __name__ == "__main__":
    main()
