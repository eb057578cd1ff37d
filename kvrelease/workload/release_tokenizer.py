"""Token ids of prompts by a release's own tokenizer and chat template, without an engine.

`tokenizer.json` is run as it stands, with the special tokens that its own post-processor adds to completions prompts;
chat prompts are the rendered template, to which nothing is added, as vLLM does by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile, InputError, NotFound
from kvrelease.workload.body import images_of
from kvrelease.workload.chat_template import ChatTemplate
from kvrelease.workload.prompt_set import PromptKind

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_FILE_BYTES = 256 * 1024 * 1024
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class Uncountable(Exception):
    """Why a prompt's tokens are not known."""


class ReleaseTokenizer:
    """A tokenizer, and the chat template where the release has one.

    Attributes:
        name: how messages call it.
        bos_id: id of the token that begins a text; None when the release names none.
        context_tokens: the longest sequence that its configuration allows; None when not told.
    """

    def __init__(self, path: Path, *, name: str) -> None:
        """Reads the files of a release's directory, or one `tokenizer.json`, which has no template.

        Raises:
            NotFound: no such file or directory.
            InputError: no tokenizer in it, or one that cannot be read.
        """
        self.name = name
        directory = path if path.is_dir() else path.parent
        is_release = path.is_dir()
        config = _object(directory / "tokenizer_config.json") if is_release else {}
        self._tokenizer = _tokenizer(path / "tokenizer.json" if is_release else path, name=name)
        special = _special_tokens(config)
        source = _template(directory, config) if is_release else None
        self._template = None if source is None else ChatTemplate(source, special_tokens=special, name=name)
        bos = special.get("bos_token")
        self.bos_id: int | None = None if bos is None else self._tokenizer.token_to_id(bos)
        limit = _object(directory / "config.json").get("max_position_embeddings") if is_release else None
        self.context_tokens = limit if isinstance(limit, int) else None

    @property
    def reads_clock(self) -> bool:
        """Whether the chat template wrote the current date into a prompt."""
        return self._template is not None and self._template.reads_clock

    def tokens(self, body: JsonObject, *, kind: PromptKind) -> tuple[int, ...]:
        """[tokens] ids of a checked body.

        Raises:
            Uncountable: there is no template, it refuses the messages, or an engine decides more than the text.
        """
        if kind is PromptKind.COMPLETIONS:
            prompt = body["prompt"]
            match prompt:
                case str() | [str()]:
                    text = prompt if isinstance(prompt, str) else str(prompt[0])
                    return tuple(self._tokenizer.encode(text, add_special_tokens=True).ids)
                case list():
                    return tuple(int(token) for token in prompt)
                case _:
                    raise AssertionError("completions bodies are checked")
        if images_of(body):
            raise Uncountable("it has images, whose tokens the engine decides")
        if self._template is None:
            raise Uncountable(f"{self.name} has no chat template")
        try:
            text = self._template.render(body)
        except ValueError as error:
            raise Uncountable(f"the chat template refuses it ({error})") from error
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _tokenizer(path: Path, *, name: str) -> Tokenizer:
    from tokenizers import Tokenizer  # noqa: PLC0415 - late: heavy

    data = _read(path)
    if data is None:
        raise NotFound(
            f"reading the tokenizer of {name}: no {path.name} there",
            hint="name a model directory with tokenizer.json, or that file, or an engine with --engine-url",
        )
    try:
        tokenizer: Tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:
        raise DamagedFile(f"reading the tokenizer of {name}: {path.name} is none ({str(error)[:120]})") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _template(directory: Path, config: JsonObject) -> str | None:
    """The template that transformers takes: the file of its own before the configuration's."""
    data = _read(directory / "chat_template.jinja")
    if data is not None:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise DamagedFile(f"reading {directory / 'chat_template.jinja'}: invalid UTF-8") from error
    beside = _object(directory / "chat_template.json").get("chat_template")
    match beside if beside is not None else config.get("chat_template"):
        case str(source):
            return source
        case list(named):
            found = {one.get("name"): one.get("template") for one in named if isinstance(one, dict)}
            default = found.get("default")
            return default if isinstance(default, str) else None
        case _:
            return None


def _special_tokens(config: JsonObject) -> Mapping[str, str]:
    found = {}
    for name in _SPECIAL:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _object(path: Path) -> JsonObject:
    """The JSON object of a file; empty without the file."""
    data = _read(path)
    if data is None:
        return {}
    try:
        value: object = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise DamagedFile(f"reading {path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"reading {path}: not a JSON object")
    return value


def _read(path: Path) -> bytes | None:
    """The bytes of a file; None when there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"reading {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise DamagedFile(f"reading {path}: more than {MAX_FILE_BYTES} bytes, which no tokenizer has")
    return data
