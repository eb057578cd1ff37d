"""Between requests and token ids: the release's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelease.engines.base import Request
from kvrelease.engines.local_release import LoadedRelease
from kvrelease.engines.prompt_body import ChatPrompt, TextPrompt, TokenPrompt, prompt_of
from kvrelease.errors import Refused

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what decoding makes of an incomplete character
_MAX_REASON_CHARS = 200


class TokenCodec:
    """Encodes requests and decodes generations of one release."""

    def __init__(self, release: LoadedRelease, *, name: str) -> None:
        self._tokenizer = release.tokenizer
        self._vocabulary = release.vocabulary
        self._name = name

    def encode(self, request: Request) -> tuple[int, ...]:
        """[prompt] token ids, at least one, each in the vocabulary.

        Raises:
            Refused: the body is malformed, the template refuses the messages, or an id is not in the vocabulary.
        """
        prompt = prompt_of(request)
        match prompt:
            case ChatPrompt():
                token_ids = self._encode_chat(prompt)
            case TextPrompt():
                encoded = self._tokenizer(prompt.text, add_special_tokens=prompt.adds_special_tokens)
                token_ids = tuple(encoded["input_ids"])
            case TokenPrompt():
                token_ids = prompt.token_ids
        if not token_ids:
            raise self._refused("the prompt has no token")
        if min(token_ids) < 0 or max(token_ids) >= self._vocabulary:
            raise self._refused(f"a token id is outside 0 to {self._vocabulary - 1}")
        return token_ids

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of generated tokens, without special ones."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def text_before(self, stop_texts: Sequence[str], token_ids: Sequence[int]) -> str | None:
        """The text before the first stop text, None when there is none in it."""
        if not stop_texts:
            return None
        text = self.text(token_ids)
        ends = [end for end in (text.find(stop_text) for stop_text in stop_texts) if end >= 0]
        return text[: min(ends)] if ends else None

    def spell(self, token_id: int) -> str:
        """One token as text; in the vocabulary's spelling where it is only a part of a character."""
        text = self._tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return self._tokenizer.convert_ids_to_tokens(token_id) if REPLACEMENT in text else text

    def _encode_chat(self, prompt: ChatPrompt) -> tuple[int, ...]:
        from jinja2 import TemplateError  # noqa: PLC0415 - comes with torch, not with the base install

        if self._tokenizer.chat_template is None:
            raise self._refused(
                "a chat request, and the release has no chat template",
                hint="send /v1/completions bodies, or add the chat template to the release",
            )
        try:
            encoded = self._tokenizer.apply_chat_template(
                list(prompt.messages),
                tools=None if prompt.tools is None else list(prompt.tools),
                return_dict=True,
                **prompt.options,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise self._refused(f"the chat template refuses the messages: {str(error)[:_MAX_REASON_CHARS]}") from error
        return tuple(encoded["input_ids"])

    def _refused(self, reason: str, *, hint: str | None = None) -> Refused:
        return Refused(f"{self._name} in process: {reason}", status=None, hint=hint)
