"""Server-sent events of OpenAI-compatible streams, as text arrives.

Source: WHATWG HTML, section 9.2.6 (fields, comments, blank line ends an event), and the `[DONE]` convention of the
OpenAI API.
"""

from __future__ import annotations

import codecs

DONE = "[DONE]"


class EventReader:
    """Collects bytes and gives back the data of the events that are complete.

    Attributes:
        is_done: `[DONE]` was seen.
    """

    def __init__(self) -> None:
        self.is_done = False
        # Only line ends split: U+2028 inside a JSON text must not. A character may be cut across two chunks.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """The data of each event that this chunk completes, `[DONE]` left out."""
        text = self._rest + self._decoder.decode(chunk)
        # A final "\r" may be half of "\r\n"; keep it until more arrives.
        keep = "\r" if text.endswith("\r") else ""
        lines = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = lines.pop() + keep
        return [data for line in lines if (data := self._line(line)) is not None]

    def close(self) -> list[str]:
        """What is left when the stream ends without a final blank line, which some servers leave out."""
        rest, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        return [data for line in (rest, "") if (data := self._line(line.removesuffix("\r"))) is not None]

    def _line(self, line: str) -> str | None:
        if line:
            name, _, value = line.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
            return None
        data, self._data = "\n".join(self._data), []
        if data.strip() == DONE:
            self.is_done = True
            return None
        return data or None
