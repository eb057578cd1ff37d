"""What `kvrelease prompts check` says of a traffic log: one pass, counts only, memory that does not grow with it."""

from __future__ import annotations

from collections import Counter

import blake3

from kvrelease.artifacts import JsonObject
from kvrelease.chain import DEFAULT_BLOCK_TOKENS, cacheable_tokens
from kvrelease.errors import InputError
from kvrelease.workload.body import images_of, opening_text
from kvrelease.workload.key_space import salt_mark
from kvrelease.workload.log_report import LoggedFinding, LoggedKeySpace, LoggedTokens, LogReport, Opening
from kvrelease.workload.logged import LoggedRequest, PassedOver
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.prompt_set import PromptKind
from kvrelease.workload.release_tokenizer import ReleaseTokenizer, Uncountable
from kvrelease.workload.sensitive import SensitiveKind, sensitive_in
from kvrelease.workload.volatile import Volatility, head_of, volatile_spots

MAX_DISTINCT = 100_000  # openings and key spaces that are told apart
SHOWN = 10
_MAX_DAMAGE_SHOWN = 10
_MAX_REMEMBERED_HEADS = 10_000


class LogCheck:
    """Adds up a log, request by request."""

    def __init__(self, *, tokenizer: ReleaseTokenizer | None = None, block_tokens: int = DEFAULT_BLOCK_TOKENS) -> None:
        """Begins with nothing.

        Args:
            tokenizer: counts tokens; None takes what the log says.
            block_tokens: granularity of a hit, >= 1.
        """
        self._tokenizer = tokenizer
        self._block_tokens = block_tokens
        self._counts: Counter[str] = Counter()
        self._weight = 0.0
        self._times: tuple[float, float] | None = None
        self._longest = 0
        self._openings: dict[str, tuple[float, int]] = {}
        self._key_spaces: dict[tuple[str, str], float] = {}
        self._is_cut = False
        self._volatile = _Findings()
        self._sensitive = _Findings()
        self._heads: dict[bytes, tuple[tuple[Volatility, int], ...]] = {}
        self._damage: list[str] = []
        self._passed_over: Counter[str] = Counter()

    def passed_over(self, reason: PassedOver) -> None:
        """Counts a record that is no request to warm for."""
        self._passed_over[reason.value] += 1

    def bad_line(self, error: InputError) -> None:
        """Counts a damaged record."""
        self._counts["damaged"] += 1
        if len(self._damage) < _MAX_DAMAGE_SHOWN:
            self._damage.append(error.message)

    def add(self, request: LoggedRequest) -> None:
        """Adds one request."""
        self._counts["requests"] += 1
        self._weight += request.weight
        if request.at_s is not None:
            first, last = self._times or (request.at_s, request.at_s)
            self._times = (min(first, request.at_s), max(last, request.at_s))
        space = (request.model or "", "" if request.salt is None else salt_mark(request.salt))
        if self._has_room(len(self._key_spaces), is_known=space in self._key_spaces):
            self._key_spaces[space] = self._key_spaces.get(space, 0.0) + request.weight
        self._add_tokens(request)
        if request.body is None or request.kind is None:
            self._counts["without_text"] += 1
            return
        self._counts[request.kind] += 1
        self._counts["with_images"] += bool(images_of(request.body))
        self._add_opening(request.body, request.kind, weight=request.weight, place=str(request.place))
        found = sensitive_in(request.body, kind=request.kind)
        if found is None:
            self._counts["not_searched"] += 1
        elif found:
            self._counts["secrets"] += any(kind.is_secret for kind in found)
            for kind, count in found.items():
                self._sensitive.add(kind, count=count, place=str(request.place))

    def report(self, *, source: str, form: LogFormat) -> LogReport:
        """What was added up."""
        counts = self._counts
        spaces = sorted(self._key_spaces.items(), key=lambda item: (-item[1], item[0]))
        openings = sorted(self._openings.items(), key=lambda item: (-item[1][0], item[0]))
        return LogReport(
            source=source,
            form=form,
            requests=counts["requests"],
            weight=self._weight,
            chat=counts[PromptKind.CHAT],
            completions=counts[PromptKind.COMPLETIONS],
            without_text=counts["without_text"],
            with_images=counts["with_images"],
            damaged=counts["damaged"],
            damage=tuple(self._damage),
            passed_over=tuple(self._passed_over.most_common()),
            from_s=None if self._times is None else self._times[0],
            until_s=None if self._times is None else self._times[1],
            tokens=self._tokens(),
            openings=len(openings),
            top_openings=tuple(
                Opening(digest=digest, requests=weight, characters=length)
                for digest, (weight, length) in openings[:SHOWN]
            ),
            key_spaces=len(spaces),
            top_key_spaces=tuple(
                LoggedKeySpace(model=model or None, salt=salt or None, requests=weight)
                for (model, salt), weight in spaces[:SHOWN]
            ),
            uncounted_distinct=self._is_cut,
            volatile=self._volatile.all(),
            sensitive=self._sensitive.all(),
            secrets=counts["secrets"],
            not_searched=counts["not_searched"],
        )

    def _add_tokens(self, request: LoggedRequest) -> None:
        count = request.prompt_tokens if self._tokenizer is None else None
        if self._tokenizer is not None and request.body is not None and request.kind is not None:
            try:
                count = len(self._tokenizer.tokens(request.body, kind=request.kind))
            except Uncountable:
                count = None
        if count is None:
            self._counts["unknown_tokens"] += 1
            return
        self._counts["counted"] += 1
        self._counts["tokens"] += count
        self._counts["short"] += cacheable_tokens(count, self._block_tokens) == 0
        self._longest = max(self._longest, count)

    def _tokens(self) -> LoggedTokens | None:
        if self._counts["counted"] == 0:
            return None
        return LoggedTokens(
            by="the log" if self._tokenizer is None else self._tokenizer.name,
            counted=self._counts["counted"],
            total=self._counts["tokens"],
            longest=self._longest,
            block_tokens=self._block_tokens,
            uncacheable=self._counts["short"],
            unknown=self._counts["unknown_tokens"],
        )

    def _add_opening(self, body: JsonObject, kind: PromptKind, *, weight: float, place: str) -> None:
        opening = opening_text(body)
        if opening:
            digest = blake3.blake3(opening.encode()).hexdigest(length=8)
            if self._has_room(len(self._openings), is_known=digest in self._openings):
                before, _ = self._openings.get(digest, (0.0, 0))
                self._openings[digest] = (before + weight, len(opening))
        head = head_of(body, kind=kind, opening=opening)
        name = blake3.blake3(head.encode()).digest(length=16)
        spots = self._heads.get(name)
        if spots is None:
            spots = volatile_spots(head)
            if len(self._heads) < _MAX_REMEMBERED_HEADS:
                self._heads[name] = spots
        for volatility, _ in spots:
            self._volatile.add(volatility, count=1, place=place)

    def _has_room(self, known: int, *, is_known: bool) -> bool:
        has = is_known or known < MAX_DISTINCT
        self._is_cut = self._is_cut or not has
        return has


class _Findings:
    def __init__(self) -> None:
        self._found: dict[str, LoggedFinding] = {}

    def add(self, kind: Volatility | SensitiveKind, *, count: int, place: str) -> None:
        before = self._found.get(kind)
        self._found[kind] = LoggedFinding(
            kind=str(kind),
            requests=1 + (before.requests if before else 0),
            count=count + (before.count if before else 0),
            first=before.first if before else place,
            is_secret=isinstance(kind, SensitiveKind) and kind.is_secret,
        )

    def all(self) -> tuple[LoggedFinding, ...]:
        return tuple(self._found[kind] for kind in sorted(self._found))
