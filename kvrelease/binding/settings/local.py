"""The in-process engine: the salt of each request, and its directory of blocks.

Source: engines/local.py and engines/block_files.py of this package.
"""

from __future__ import annotations

from kvrelease.binding.settings.binding import BindingSettings, Wanted


def local(wanted: Wanted) -> BindingSettings:
    """What binds the in-process engine."""
    return BindingSettings(body={"cache_salt": wanted.salt}, directories={"cache directory": wanted.directory("local")})
