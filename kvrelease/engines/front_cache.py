"""Response caches in front of engines: what an answer itself says of having been kept, and how each cache is got past.

Only what says *hit* counts. A miss, a bypass or nothing at all prove no computing: most caches can be told to keep
their headers to themselves, and one of several on the way may say "miss" of its own share.

Source: LiteLLM, docs.litellm.ai/docs/proxy/caching (the key is a header of hits alone; the semantic similarity is sent
with misses too, so it says nothing); Portkey, portkey.ai/docs/api-reference/response-schema (`HIT`, `SEMANTIC HIT`;
`MISS`, `SEMANTIC MISS`, `DISABLED`, `REFRESH`); Helicone, worker/src/lib/util/cache; Cloudflare,
developers.cloudflare.com/ai-gateway/features/caching and /cache/concepts/cache-responses; OpenRouter,
openrouter.ai/docs/guides/features/response-caching (`id` and `created` are new there, and usage is zero); Kong, plugins
proxy-cache and ai-semantic-cache; Apache APISIX, plugins proxy-cache and ai-cache (`HIT-L1`, `HIT-L2`); AISIX,
docs/api-proxy.md; vLLM semantic router, `x-vsr-cache-hit`; Fastly, documentation/reference/http/http-headers/X-Cache;
Varnish, `X-Varnish` (two transactions are a hit); GPTCache, gptcache/adapter/openai.py (`gptcache`); Bifrost,
`extra_fields.cache_debug`; RFC 9211 (`Cache-Status`), RFC 9111, section 5.1 (`Age`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.foreign import at


class FrontCache(msgspec.Struct, frozen=True, kw_only=True):
    """A product that may answer in place of the engine.

    Attributes:
        name: as its sentence begins.
        header: in lower case, that tells a hit; empty where something else does.
        words: any of which, in the header's value, is a hit; empty where the header alone is one.
        next_step: how its entries are dropped, and how one request gets past them.
    """

    name: str
    header: str = ""
    words: frozenset[str] = frozenset({"hit"})
    next_step: str


_TRUE = frozenset({"true", "hit"})
# nginx and Cloudflare also answer from a cache while, or because, the origin does not.
_KEPT = frozenset({"hit", "stale", "updating", "revalidated"})
_PURGE = "purge it when a release is promoted, and let it pass POST requests to the engine"

_KNOWN = (
    FrontCache(
        name="LiteLLM",
        header="x-litellm-cache-key",
        words=frozenset(),
        next_step='POST /cache/flushall to LiteLLM, or give each release a namespace of its own (`cache: {"namespace": '
        '…}`); `cache: {"no-cache": true}` in the body gets past it',
    ),
    FrontCache(
        name="Portkey",
        header="x-portkey-cache-status",
        next_step="give each release a config of its own in Portkey, or drop `cache` from it; the request header "
        "`x-portkey-cache-force-refresh: true` gets past it",
    ),
    FrontCache(
        name="Helicone",
        header="helicone-cache",
        next_step="send another `Helicone-Cache-Seed` with each release; without `Helicone-Cache-Enabled` it answers "
        "nothing itself",
    ),
    FrontCache(
        name="Cloudflare AI Gateway",
        header="cf-aig-cache-status",
        next_step="send another `cf-aig-cache-key` with each release; the request header `cf-aig-skip-cache: true` "
        "gets past it",
    ),
    FrontCache(
        name="OpenRouter",
        header="x-openrouter-cache-status",
        next_step="the request header `X-OpenRouter-Cache-Clear: true` drops the entry; leave out "
        "`X-OpenRouter-Cache` to get past it",
    ),
    FrontCache(
        name="AISIX",
        header="x-aisix-cache",
        next_step="empty or disable AISIX's cache policy for this model when a release is promoted",
    ),
    FrontCache(
        name="Apache APISIX (ai-cache)",
        header="x-ai-cache-status",
        next_step="empty the plugin's Redis when a release is promoted, or put the release among "
        "`cache_key.include_vars`",
    ),
    FrontCache(name="Apache APISIX (proxy-cache)", header="apisix-cache-status", words=_KEPT, next_step=_PURGE),
    FrontCache(
        name="vLLM semantic router",
        header="x-vsr-cache-hit",
        words=_TRUE,
        next_step="empty the router's semantic cache when a release is promoted, or disable its plugin for this model",
    ),
    FrontCache(
        name="Fastly AI Accelerator",
        header="x-semantic-cache",
        next_step="send another `X-Semantic-Cache-Key` with each release",
    ),
    FrontCache(name="Cloudflare", header="cf-cache-status", words=_KEPT, next_step=_PURGE),
    FrontCache(
        name="Kong or nginx",
        header="x-cache-status",
        words=_KEPT,
        next_step="of Kong DELETE /proxy-cache, or empty the vector store of ai-semantic-cache; of nginx empty "
        "`proxy_cache_path`; and let it pass POST requests to the engine",
    ),
    FrontCache(name="nginx", header="x-proxy-cache", words=_KEPT, next_step=_PURGE),
    FrontCache(name="A CDN", header="x-cache", next_step=_PURGE),
)

_GPTCACHE = FrontCache(
    name="GPTCache",
    next_step="flush GPTCache when a release is promoted; `cache_skip: true` in the body gets past it",
)
_BIFROST = FrontCache(
    name="Bifrost",
    next_step="send another `x-bf-cache-key` with each release; without that header Bifrost caches nothing",
)
_VARNISH = FrontCache(name="Varnish", next_step=_PURGE)
_ANY = FrontCache(name="An HTTP cache", next_step=_PURGE)
_ALL = (*_KNOWN, _GPTCACHE, _BIFROST, _VARNISH, _ANY)

# "HIT-FOR-PASS", "hitmiss": entries that remember that nothing is to be kept.
_NO_HIT = frozenset({"pass", "miss", "hitpass", "hitmiss"})
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')


def cached_in_front(headers: Mapping[str, str], payloads: Iterable[JsonObject] = ()) -> str | None:
    """One sentence that names the cache which gave an answer, and by what it says so; None where nothing says so.

    Args:
        headers: of the answer, names in lower case.
        payloads: the answer's JSON, each event's of a stream.
    """
    for product, witness in itertools.chain(_by_product(headers), _by_body(payloads), _by_standard(headers)):
        return f"{product.name} answered from what it had kept ({witness})"
    return None


def next_step(sentence: str) -> str | None:
    """How to get past the cache that a sentence of `cached_in_front` names; None for any other sentence."""
    return next((one.next_step for one in _ALL if sentence.startswith(f"{one.name} answered")), None)


def _by_product(headers: Mapping[str, str]) -> Iterator[tuple[FrontCache, str]]:
    for product in _KNOWN:
        value = headers.get(product.header)
        if value is not None and _is_hit(value, product.words):
            yield product, f"header {product.header}"


def _by_body(payloads: Iterable[JsonObject]) -> Iterator[tuple[FrontCache, str]]:
    for payload in payloads:
        if payload.get("gptcache") is True:
            yield _GPTCACHE, "field gptcache"
        if at(payload, "extra_fields", "cache_debug", "cache_hit") is True:
            yield _BIFROST, "field extra_fields.cache_debug"


def _by_standard(headers: Mapping[str, str]) -> Iterator[tuple[FrontCache, str]]:
    if len(headers.get("x-varnish", "").split()) == 2:
        yield _VARNISH, "header x-varnish"
    if _standard_hit(headers.get("cache-status", "")):
        yield _ANY, "header cache-status"
    # Zero is what some caches send with an answer that they have just fetched.
    if headers.get("age", "").strip().strip("0").isdecimal():
        yield _ANY, "header age"


def _is_hit(value: str, words: frozenset[str]) -> bool:
    """Whether some cache on the way says so: `MISS, HIT` is the second one's hit."""
    if not words:
        return bool(value.strip())
    parts = (frozenset(re.findall(r"[a-z]+", part.lower())) for part in value.split(","))
    return any(part & words and not part & _NO_HIT for part in parts)


def _standard_hit(value: str) -> bool:
    """Whether a `Cache-Status` of RFC 9211 says `hit` of some cache; a bare `HIT` is what it is named after."""
    members = [[part.strip().lower() for part in one.split(";")] for one in _QUOTED.sub("", value).split(",")]
    return any(member[0] == "hit" or any(part in ("hit", "hit=?1") for part in member[1:]) for member in members)
