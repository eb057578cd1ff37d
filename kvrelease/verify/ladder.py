"""The ways to keep reference legs away from what was cached, in the order of trying, and what became of each.

The order is that of what a way can show and of what it costs: a fresh salt leaves entries of its own, so that a clean
hit can be compared with a hit; a bypass leaves none; a second engine has kernels of its own; a flush destroys what was
there. Every leg is proved cold by itself: a "fresh" request with cached tokens is evidence of a layer that ignores the
salt, and no noise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from msgspec.structs import replace

from kvrelease.binding.deployment import Replica
from kvrelease.binding.observe import Leg
from kvrelease.binding.salts import is_probe_salt, probe_salt
from kvrelease.engines.base import Counters, Request
from kvrelease.engines.request_fields import has_media
from kvrelease.verify.evidence import Isolation, Rung, RungOutcome, SaltLeak
from kvrelease.verify.record import probe_request
from kvrelease.workload.prompt_set import Prompt

ORDER = (Isolation.FRESH_SALT, Isolation.BYPASS, Isolation.REFERENCE, Isolation.FLUSH)

# A way that was proved for no probe, and failed for so many, is given up: the rest would cost a request each.
TRIES = 3


class Ladder:
    """The ways of one replica.

    Args:
        replica: prepared.
        reference: a clean second engine, None without one.
        allows_flush: the replica's own cache may be emptied.
        whole: prompts whose reference legs get a key space each, so that they are computed whole.
    """

    def __init__(
        self, replica: Replica, *, reference: Replica | None, allows_flush: bool, whole: Collection[str] = ()
    ) -> None:
        self._replica = replica
        self._reference = reference
        self._allows_flush = allows_flush
        self._salt = probe_salt("reference")
        self._salts = {prompt_id: probe_salt("reference") for prompt_id in whole}
        self._proved: defaultdict[Isolation, int] = defaultdict(int)
        self._failed: dict[Isolation, list[str]] = defaultdict(list)
        self._useless: dict[Isolation, str] = {}
        self.used = Isolation.NONE

    def candidates(self) -> tuple[Isolation, ...]:
        """The ways to try for the next probe that destroy nothing, the one in use first."""
        start = 0 if self.used is Isolation.NONE else ORDER.index(self.used)
        return tuple(
            way
            for way in ORDER[start:]
            if way is not Isolation.FLUSH and self._why_lacking(way) is None and not self._is_given_up(way)
        )

    def on_reference(self, prompt: Prompt) -> Request:
        """The prompt as the second engine is sent it: in a key space of this run's own, where that has any."""
        reference = self.answering(Isolation.REFERENCE)
        plain = probe_request(reference, prompt, salt=self._salts.get(prompt.id, self._salt))
        return plain if reference.identity.capabilities.has_salt else replace(plain, salt=None)

    def answering(self, way: Isolation) -> Replica:
        """The engine that gives the reference legs of a way."""
        if way is not Isolation.REFERENCE:
            return self._replica
        assert self._reference is not None
        return self._reference

    def cold_request(self, prompt: Prompt, way: Isolation) -> Request:
        """The reference leg of a probe, as a way isolates it."""
        match way:
            case Isolation.FRESH_SALT:
                return probe_request(self._replica, prompt, salt=self._fresh_salt(prompt))
            case Isolation.BYPASS:
                return replace(self._as_production(prompt), bypasses_cache=True)
            case Isolation.REFERENCE:
                heals = self.answering(way).identity.capabilities.reference_heals
                return replace(self.on_reference(prompt), bypasses_cache=heals)
            case Isolation.FLUSH:
                return self._as_production(prompt)
            case Isolation.NONE:
                raise AssertionError("no isolation has no cold leg")

    def hit_request(self, prompt: Prompt, way: Isolation) -> Request | None:
        """The request that hits what the cold leg left behind; None where it would hit what was there before."""
        cold = self.cold_request(prompt, way)
        if cold.bypasses_cache and not self.answering(way).identity.capabilities.reference_heals:
            return None
        return replace(cold, bypasses_cache=False)

    def clean_request(self, prompt: Prompt, way: Isolation) -> Request:
        """The request that is like a production leg, and clean: a hit where the way allows any."""
        return self.hit_request(prompt, way) or self.cold_request(prompt, way)

    def proved(self, way: Isolation) -> None:
        """A probe's reference leg was proved cold."""
        self.used = way
        self._proved[way] += 1

    def failed(self, way: Isolation, *, probe: str, why: str) -> None:
        """A probe's reference leg could not be proved cold."""
        self._failed[way].append(f"{probe}: {why}")

    def give_up(self, way: Isolation, *, why: str) -> None:
        """It is known already that a way isolates nothing: no probe is spent on it."""
        self._useless[way] = why

    def rungs(self) -> tuple[Rung, ...]:
        """Every way, and what became of it."""
        return tuple(self._rung(way) for way in ORDER)

    def _rung(self, way: Isolation) -> Rung:
        failures = self._failed.get(way, [])
        tried = f"{len(failures)} not proved cold, the first: {failures[0]}" if failures else ""
        if self._proved[way]:
            detail = tried or f"each of {self._proved[way]} legs proved cold"
            return Rung(
                isolation=way,
                outcome=RungOutcome.USED,
                proved=self._proved[way],
                failed=len(failures),
                detail=detail,
            )
        if failures or way in self._useless:
            detail = tried or self._useless[way]
            return Rung(isolation=way, outcome=RungOutcome.GIVEN_UP, failed=len(failures), detail=detail)
        lacking = self._why_lacking(way)
        if lacking is not None:
            return Rung(isolation=way, outcome=RungOutcome.LACKING, detail=lacking)
        option = self._missing_option(way)
        if option is not None:
            return Rung(isolation=way, outcome=RungOutcome.NOT_ASKED_FOR, detail=option)
        if not any(self._proved.values()):
            return Rung(
                isolation=way,
                outcome=RungOutcome.UNTRIED,
                detail="the run ended before its turn to give reference legs",
            )
        return Rung(isolation=way, outcome=RungOutcome.UNNEEDED, detail="an earlier one was enough")

    def _why_lacking(self, way: Isolation) -> str | None:
        can, kind = self._replica.identity.capabilities, self._replica.identity.kind
        match way:
            case Isolation.FRESH_SALT if not can.has_salt:
                return f"{kind} has no salt"
            case Isolation.BYPASS if not can.has_bypass:
                return f"{kind} has no request that bypasses its cache"
            case Isolation.FLUSH if not can.has_flush:
                return f"{kind} has no call here that empties its cache"
            case _:
                return None

    def _missing_option(self, way: Isolation) -> str | None:
        if way is Isolation.REFERENCE and self._reference is None:
            return "--reference names no second engine"
        if way is Isolation.FLUSH and not self._allows_flush:
            return "--allow-flush was not given"
        return None

    def _is_given_up(self, way: Isolation) -> bool:
        if self._missing_option(way) is not None or way in self._useless:
            return True
        return not self._proved[way] and len(self._failed.get(way, ())) >= TRIES

    def _as_production(self, prompt: Prompt) -> Request:
        return probe_request(self._replica, prompt, salt=self._replica.deployment.salt)

    def _fresh_salt(self, prompt: Prompt) -> str:
        """One for most probes; without token ids one for each, because nobody could tell whose a shared prefix is.

        A prompt with images has its own as well: two of them have equal tokens, and a cache that mixes them up would
        give entries of the one to the other's reference leg too.
        """
        if self._replica.tokens is not None and not has_media(prompt.body):
            return self._salts.get(prompt.id, self._salt)
        return self._salts.setdefault(prompt.id, probe_salt("reference"))


def why_not_cold(leg: Leg, *, way: Isolation, bypasses: bool, hidden: int) -> str | None:
    """Why a reference leg is not proved cold; None where it is.

    Args:
        leg: of the reference.
        way: how it was isolated.
        bypasses: it asked the engine not to read its cache at all.
        hidden: cached tokens that the server's counters tell, and its usage does not (`hidden_hits`).
    """
    if leg.cached_tokens is None:
        return "nobody witnessed whether it hit"
    if leg.cached_tokens and bypasses:
        return f"hit {leg.cached_tokens} tokens, so the bypass is ignored"
    if leg.foreign_tokens is None:
        return f"hit {leg.cached_tokens} tokens, and nobody can tell whose they are"
    if leg.foreign_tokens:
        return f"hit {leg.foreign_tokens} tokens{_MEANING.get(way, '')}"
    if hidden > 0:
        return f"the server's counters tell {hidden} more cached tokens than its usage"
    return None


_MEANING = {
    Isolation.FRESH_SALT: " in a key space that nobody had used: a layer ignores the salt, or a response cache answers",
    Isolation.REFERENCE: " on the reference engine, which nobody was to have used",
    Isolation.FLUSH: " after the cache was said to be empty",
}


class Leaks:
    """Hits in fresh key spaces, of whatever was sent there: each is proof that some layer ignores the salt."""

    def __init__(self) -> None:
        self.found: list[SaltLeak] = []
        self._used: set[str] = set()

    def look(self, leg: Leg, *, asked: str) -> None:
        """Keeps a leg's hit where nothing of ours explains it in a key space of this run's own."""
        space = leg.key_space
        if space is None or not is_probe_salt(space):
            return
        is_first = space not in self._used
        self._used.add(space)
        unexplained = leg.foreign_tokens
        if unexplained is None and is_first and not leg.observation.lost:
            unexplained = leg.cached_tokens  # whatever its ids are, nobody was there before
        self.add(asked, unexplained or 0, leg=leg)

    def add(self, asked: str, cached_tokens: int, *, leg: Leg | None = None) -> None:
        """Keeps a hit."""
        if cached_tokens > 0:
            self.found.append(SaltLeak(asked=asked, cached_tokens=cached_tokens, leg=leg))


def hidden_hits(before: Counters | None, after: Counters | None, *, leg: Leg) -> int:
    """Cached tokens of a leg that the counters tell and its usage does not; 0 where they don't speak of it alone."""
    if before is None or after is None or leg.cached_tokens is None:
        return 0
    if after.queried_tokens - before.queried_tokens != leg.prompt_tokens:
        return 0
    return max(0, int(after.all_cached_tokens - before.all_cached_tokens) - leg.cached_tokens)
