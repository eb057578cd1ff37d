"""The command line: options, exit codes, one thin file per command."""
