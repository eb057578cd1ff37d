"""Any OpenAI-compatible server: nothing of its cache keys is known, so nothing of it can be bound.

Source: none; that is what it says.
"""

from __future__ import annotations

from kvrelease.binding.settings.binding import BindingSettings, Wanted


def compatible(_: Wanted) -> BindingSettings:
    """That nothing is promised."""
    return BindingSettings(limits=("nothing is known of this server's cache keys: start a process for each release",))
