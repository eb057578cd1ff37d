"""Token ids of logged requests, by a release's own tokenizer and chat template."""

from __future__ import annotations

from kvrelease.selection.cutting import Encode
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.release_tokenizer import ReleaseTokenizer, Uncountable


def encode_with(tokenizer: ReleaseTokenizer) -> Encode:
    """What a cutter counts tokens with: ids of a request, or None where they are not known (images, no template)."""

    def encode(request: LoggedRequest) -> tuple[int, ...] | None:
        assert request.body is not None, "a log with text has it in every request"
        assert request.kind is not None, "a body has a kind"
        try:
            return tokenizer.tokens(request.body, kind=request.kind)
        except Uncountable:
            return None

    return encode
