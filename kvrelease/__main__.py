"""`python -m kvrelease`: the same program as the `kvrelease` command."""

from kvrelease.cli.app import main

if __name__ == "__main__":
    main()
