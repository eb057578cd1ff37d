"""A release directory loaded into this process with transformers, or the reason why it cannot be."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile, InputError, KvreleaseError, MissingExtra, NotFound, UnsupportedRelease

NEEDED_FOR = "the in-process engine"
CPU_BUILD_FIRST = (
    "on a machine without a GPU first: pip install torch --index-url https://download.pytorch.org/whl/cpu, or pip "
    "fetches a CUDA build of several GB"
)
# transformers' verbosity and progress bar are settings of the whole process; loads take turns.
_LOADING = threading.Lock()
_MAX_REASON_CHARS = 300
# torch first: transformers remembers for good that it was imported without.
_MODULES = ("torch", "transformers")
_LOCAL_ONLY = {"local_files_only": True, "trust_remote_code": False}


class Tokenizer(Protocol):
    """What transformers' tokenizers offer us."""

    chat_template: object

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, list[int]]:
        """`input_ids` of a text."""

    def apply_chat_template(
        self, conversation: list[JsonObject], *, tools: list[JsonObject] | None, return_dict: bool, **options: object
    ) -> Mapping[str, list[int]]:
        """`input_ids` of messages."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        """The text of tokens."""

    def convert_ids_to_tokens(self, ids: int) -> str:
        """One token as the vocabulary spells it."""


class LoadedRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A release ready to run.

    Attributes:
        model: transformers' causal model, in evaluation mode; called with keywords.
        tokenizer: with the release's own chat template, where it has one.
        context_tokens: longest prompt plus generation; None when the configuration does not tell.
        eos_ids: token ids that end a generation; empty when the release names none.
        vocabulary: token ids are below it.
        attention: the implementation that transformers chose.
        cache_argument: what the model calls its KV cache: `cache`, or `past_key_values` in older transformers.
        versions: of transformers and torch.
        config: transformers' own; only handed back to it.
        device: of torch, that the model is on.
    """

    model: Callable[..., object]
    tokenizer: Tokenizer
    context_tokens: int | None
    eos_ids: frozenset[int]
    vocabulary: int
    attention: str
    cache_argument: str
    versions: dict[str, str]
    config: object
    device: str = "cpu"

    def empty_kv(self) -> object:
        """A `DynamicCache` of transformers, for one request."""
        kv: object = _transformers().DynamicCache(config=self.config)
        return kv


def require_extra() -> None:
    """Checks that the `local` extra is installed.

    Raises:
        MissingExtra: torch or transformers is not.
    """
    for module in _MODULES:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingExtra(extra="local", needed_for=NEEDED_FOR, module=module, first=CPU_BUILD_FIRST) from error


def load(directory: Path, *, dtype: str, device: str = "cpu") -> LoadedRelease:
    """The release in a directory, checked to be complete and to have a KV cache that can be cut into blocks.

    Nothing is fetched, no code of the release is run, and weights are read from safetensors only.

    Raises:
        MissingExtra: torch or transformers is not installed.
        NotFound: no such directory.
        UnsupportedRelease: well-formed, but its KV is not one K and one V for each token and layer, or it has no
            weights that we read.
        DamagedFile: tensors are missing or of the wrong shape.
        InputError: transformers cannot load it.
    """
    require_extra()
    if not directory.is_dir():
        raise NotFound(f"opening {directory} in process: no such directory")
    with _LOADING, _quiet_transformers():
        with _translated(directory, "configuration"):
            config = _transformers().AutoConfig.from_pretrained(directory, **_LOCAL_ONLY)
            reason = _unsupported(directory, config)
        if reason is not None:
            raise UnsupportedRelease(f"{directory} cannot run in process: {reason}")
        with _translated(directory, "weights"):
            model = _load_model(directory, config, dtype=dtype).to(device)
        with _translated(directory, "tokenizer"):
            tokenizer = _transformers().AutoTokenizer.from_pretrained(directory, **_LOCAL_ONLY)
    return LoadedRelease(
        model=model,
        tokenizer=tokenizer,
        context_tokens=getattr(config, "max_position_embeddings", None),
        eos_ids=_eos_ids(model),
        vocabulary=int(model.get_input_embeddings().num_embeddings),
        attention=str(model.config._attn_implementation),
        cache_argument="cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values",
        versions={name: str(importlib.import_module(name).__version__) for name in _MODULES},
        config=config,
        device=device,
    )


def _transformers() -> Any:
    """The library, untyped: its annotations change with its version, ours are the protocols above."""
    return importlib.import_module("transformers")


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    settings = _transformers().utils.logging
    verbosity = settings.get_verbosity()
    shows_progress = settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    if shows_progress:
        settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(verbosity)
        if shows_progress:
            settings.enable_progress_bar()


@contextlib.contextmanager
def computing(directory: Path) -> Iterator[None]:
    """Tells whatever torch and the model raise while they compute as one InputError.

    An allocation that fails is a RuntimeError of torch's; a model's own code raises what it likes.
    """
    try:
        yield
    except (KvreleaseError, AssertionError):
        raise
    except Exception as error:
        raise InputError(
            f"running {directory} in process: {_told(error)}",
            hint="free memory, or do without: verify takes a saved fingerprint for --release and --old-release too, "
            "and says what stays unproven",
        ) from error


@contextlib.contextmanager
def _translated(directory: Path, part: str) -> Iterator[None]:
    """Tells whatever transformers, tokenizers and safetensors raise on a broken directory as one InputError.

    They raise `Exception` itself in places (tokenizers' Rust), so nothing narrower would do; it is never swallowed.
    """
    try:
        yield
    except (KvreleaseError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"loading the {part} of {directory} in process: {_told(error)}",
            hint=f"kvrelease fingerprint {directory} names the damaged file, if there is one",
        ) from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_MAX_REASON_CHARS]}"


def _unsupported(directory: Path, config: Any) -> str | None:
    """Why blocks of this model's KV cannot be reused, None when they can."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = sorted({type(layer).__name__ for layer in _transformers().DynamicCache(config=config).layers})
    has_weights = any((directory / name).exists() for name in ("model.safetensors", "model.safetensors.index.json"))
    obstacles = {
        "it is an adapter; merge it into its base model first": (directory / "adapter_config.json").exists(),
        "it has neither model.safetensors nor model.safetensors.index.json": not has_weights,
        "it is an encoder-decoder model": bool(config.is_encoder_decoder),
        "its weights are quantised": getattr(config, "quantization_config", None) is not None,
        # These scale positions by the length of the whole request, so that a prefix has no KV of its own.
        f"its {rope.get('rope_type')} rotary embedding makes the KV of a prefix depend on what follows": (
            rope.get("rope_type") in ("dynamic", "longrope")
        ),
        f"its KV cache is not one K and one V for each token in every layer (transformers keeps {', '.join(kinds)}): "
        "sliding window, recurrent state or shared KV": kinds != ["DynamicLayer"],
    }
    return next((reason for reason, holds in obstacles.items() if holds), None)


def _load_model(directory: Path, config: Any, *, dtype: str) -> Any:
    model, loading = _transformers().AutoModelForCausalLM.from_pretrained(
        directory, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True, **_LOCAL_ONLY
    )
    # transformers fills a missing tensor with random numbers, and only warns.
    missing = sorted(str(key) for kind in ("missing_keys", "mismatched_keys") for key in loading.get(kind) or ())
    if missing:
        raise DamagedFile(
            f"loading the weights of {directory} in process: {len(missing)} tensors that its configuration demands are "
            f"missing or of another shape, the first is {missing[0]}"
        )
    return model.eval()


def _eos_ids(model: Any) -> frozenset[int]:
    """The end tokens, from generation_config.json, else from config.json."""
    for source in (model.generation_config, model.config):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            return frozenset([value] if isinstance(value, int) else value)
    return frozenset()
