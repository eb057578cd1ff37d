"""Noise as other kernels and other batches make it: an instrument for tests and benchmarks, never for a release.

On one quiet CPU the in-process engine answers the same to the last digits. Servers do not: another batch takes other
kernels, which add up in another order. What that does to keys and values as they are written stays with the entry, and
answers are off by it ever after; what it does to a pass that reads them is drawn anew each time. Both are made here of
a stated size, from a seed. No command and no setting leads here; an engine that has noise says so in its `runtime`.
"""

# ruff: noqa: PLC0415 - torch costs seconds, and is there only with the `local` extra

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from kvrelease.errors import UsageError

if TYPE_CHECKING:
    import torch

# Uniform between -a and a, a number is a / sqrt(3) from zero on average (root mean square), and two of them are 2a / 3
# apart on average. Uniform, so that nothing moves by more than a: noise of a real kernel is bounded too.
_EDGE_PER_RMS = 3**0.5
_EDGE_PER_DISTANCE = 1.5


class KernelNoise(msgspec.Struct, frozen=True, kw_only=True):
    """How much noise, and from which seed. Which numbers a request gets depends on the requests before it.

    Attributes:
        written: relative error of keys and values as they are written into an entry: of each head's vector of a token,
            root mean square of the error to that of the vector, >= 0. Deeper layers are computed from what was written.
            Rounding to bfloat16 makes 0.0017, to fp8 (e4m3) 0.027. The end of a prompt that fills no block is kept by
            nobody, and left exact.
        read: the same of what each pass reads, cached or not; drawn anew each time.
        read_nats: mean distance at every generated token of two passes over the same KV, nats, >= 0: added to the
            logits, none of which moves by more than 1.5 times this.
        seed: of all of it.
    """

    written: float = 0.0
    read: float = 0.0
    read_nats: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the sizes.

        Raises:
            UsageError: one is negative or no number.
        """
        if not all(0 <= size < float("inf") for size in (self.written, self.read, self.read_nats)):
            raise UsageError(f"kernel noise: sizes are numbers of at least 0, not {self}")

    def __str__(self) -> str:
        """What an engine's `runtime` tells."""
        return f"written {self.written:g}, read {self.read:g}, {self.read_nats:g} nats, seed {self.seed}"


class _Cache(Protocol):
    """What transformers' caches offer to a model's layers."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends tokens to one layer; all keys and values of that layer, [batch, kv_heads, tokens, head_dim]."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that a layer holds."""


class NoiseSource:
    """The noise of one engine: its generator moves on with every pass."""

    def __init__(self, noise: KernelNoise, *, device: str = "cpu") -> None:
        import torch

        self._noise = noise
        self._generator = torch.Generator(device=device).manual_seed(noise.seed)

    def disturb(self, kv: object, *, kept_tokens: int) -> None:
        """From now on what a model writes into this cache, and reads from it, is off; what it holds stays as it is.

        Args:
            kv: of one request.
            kept_tokens: of its prompt, from the start, whose keys and values go into an entry.
        """
        cache = cast(_Cache, kv)
        exact = cache.update

        def update(
            keys: torch.Tensor, values: torch.Tensor, layer: int, *args: Any, **options: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            kept = max(0, kept_tokens - cache.get_seq_length(layer))
            all_keys, all_values = exact(
                self._written(keys, kept), self._written(values, kept), layer, *args, **options
            )
            return self._off(all_keys, size=self._noise.read), self._off(all_values, size=self._noise.read)

        # Of this one cache: layers call it by name, whatever class the cache is of.
        setattr(cache, "update", update)  # noqa: B010 - mypy takes a method for a constant

    def disturb_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """[vocabulary] logits as another reading pass would give them."""
        if not self._noise.read_nats:
            return logits
        edge = _EDGE_PER_DISTANCE * self._noise.read_nats
        return logits.float() + self._uniform(logits) * edge

    def _written(self, exact: torch.Tensor, kept: int) -> torch.Tensor:
        """[..., tokens, head_dim], of which the first `kept` tokens are off."""
        import torch

        if not kept or not self._noise.written:
            return exact
        off = self._off(exact[..., :kept, :], size=self._noise.written)
        return torch.cat([off, exact[..., kept:, :]], dim=-2)

    def _off(self, exact: torch.Tensor, *, size: float) -> torch.Tensor:
        """Vectors [..., head_dim], each off by a share of its own size."""
        if not size:
            return exact
        wide = exact.float()
        rms = wide.square().mean(dim=-1, keepdim=True).sqrt()
        return (wide + self._uniform(wide) * (rms * size * _EDGE_PER_RMS)).to(exact.dtype)

    def _uniform(self, like: torch.Tensor) -> torch.Tensor:
        import torch

        # One block of memory whatever the layout of what it is like: the same numbers for the same seed.
        drawn = torch.empty(like.shape, dtype=torch.float32, device=like.device)
        return drawn.uniform_(-1.0, 1.0, generator=self._generator)
