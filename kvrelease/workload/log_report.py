"""What is known of a traffic log after one pass: the artifact of `prompts check LOG`."""

from __future__ import annotations

import msgspec

from kvrelease.artifacts import Artifact
from kvrelease.workload.logs.log_format import LogFormat


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """A system prompt that requests of one key space begin with.

    Attributes:
        digest: tells it apart; the text is not repeated.
        requests: by weight.
        characters: its length.
    """

    digest: str
    requests: float
    characters: int


class LoggedKeySpace(msgspec.Struct, frozen=True, kw_only=True):
    """A model or adapter and a tenant's salt, as requests ask for them.

    Attributes:
        model: None when the requests name none.
        salt: digits that tell the salt apart; None without one.
        requests: by weight.
    """

    model: str | None
    salt: str | None
    requests: float


class LoggedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was found in some requests.

    Attributes:
        kind: what.
        requests: lines that have it.
        count: how often, over all.
        first: the first place.
        is_secret: a likely credential.
    """

    kind: str
    requests: int
    count: int
    first: str
    is_secret: bool = False


class LoggedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """How long the prompts of a log are.

    Attributes:
        by: `the log`, or the release whose tokenizer counted.
        counted: requests whose tokens are known.
        total: of these.
        longest: of one.
        block_tokens: granularity of a hit.
        uncacheable: requests that are no longer than one block, so that nothing of them can be hit.
        unknown: requests whose tokens are not known.
    """

    by: str
    counted: int
    total: int
    longest: int
    block_tokens: int
    uncacheable: int
    unknown: int


class LogReport(Artifact, frozen=True, kw_only=True, tag="kvrelease/log"):
    """What a log holds.

    Attributes:
        source: where it was read.
        form: what wrote it.
        requests: read.
        weight: requests that these stand for.
        chat: of the requests read, for the chat route.
        completions: for the completions route.
        without_text: without a body: traces, redacted or uncaptured content.
        with_images: that refer to images.
        damaged: records that could not be read.
        damage: what was found in the first of them.
        passed_over: records that are no request to warm for, by reason, most first; nobody looked into them.
        from_s: earliest time, seconds; None when no request has one.
        until_s: latest.
        tokens: how long the prompts are; None when neither the log nor a tokenizer says.
        openings: how many different system prompts there are, by key space; beyond a bound they are not told apart.
        top_openings: the most frequent.
        key_spaces: how many there are; beyond a bound they are not told apart.
        top_key_spaces: the most frequent.
        uncounted_distinct: the log has more openings or key spaces than are told apart.
        volatile: kinds of changing text near the front.
        sensitive: likely secrets and personal data.
        secrets: requests with a likely credential.
        not_searched: requests of token ids, which cannot be searched.
    """

    source: str
    form: LogFormat
    requests: int
    weight: float
    chat: int
    completions: int
    without_text: int
    with_images: int
    damaged: int
    damage: tuple[str, ...]
    from_s: float | None
    until_s: float | None
    tokens: LoggedTokens | None
    openings: int
    top_openings: tuple[Opening, ...]
    key_spaces: int
    top_key_spaces: tuple[LoggedKeySpace, ...]
    uncounted_distinct: bool
    volatile: tuple[LoggedFinding, ...]
    sensitive: tuple[LoggedFinding, ...]
    secrets: int
    not_searched: int
    # Artifacts of before have none.
    passed_over: tuple[tuple[str, int], ...] = ()

    @property
    def is_searched(self) -> bool:
        """Every record could be read and has its text, so that all of it could be looked into."""
        return self.not_searched == self.without_text == self.damaged == 0

    @property
    def is_counted(self) -> bool:
        """The tokens of every record are known."""
        return self.tokens is not None and not self.tokens.unknown and not self.damaged

    @property
    def is_volatile(self) -> bool:
        """Text that changes stands near the front of some request."""
        return bool(self.volatile)

    @property
    def has_short(self) -> bool:
        """Some request is no longer than a block."""
        return self.tokens is not None and self.tokens.uncacheable > 0
