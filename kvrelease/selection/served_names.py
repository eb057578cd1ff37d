"""The names by which logged requests ask for a model: an old release's says nothing of the next, an adapter's does.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from kvrelease.printable import listed, number_of
from kvrelease.workload.logged import LoggedRequest


def without_served_name(request: LoggedRequest, *, names: Collection[str]) -> LoggedRequest:
    """The request for whatever model is served, where it asks by one of `names`; else as it is."""
    if request.model not in names:
        return request
    body = request.body
    if body is not None:
        body = {field: value for field, value in body.items() if field != "model"}
    return msgspec.structs.replace(request, model=None, body=body)


def served_name_warning(requests: Sequence[LoggedRequest]) -> str | None:
    """What the reader has to know of the models that chosen prompts ask for; None where they name none."""
    names = Counter(request.model for request in requests if request.model is not None and request.body is not None)
    if not names:
        return None
    return (
        f"{number_of(names.total(), 'prompt keeps', 'prompts keep')} the model that was asked for "
        f"({listed([name for name, _ in names.most_common()])}): a server that does not serve that name refuses them. "
        "Names of adapters belong there; the name of the served release does not: leave it out with --drop-model NAME"
    )
