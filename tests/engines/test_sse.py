from __future__ import annotations

import pytest

from kvrelease.engines.sse import EventReader

STREAM = 'event: x\r\ndata: {"a":\r\ndata: 1}\r\n\r\n: ping\n\ndata:{"b": "é\u2028"}\n\ndata: [DONE]\n\n'.encode()
EVENTS = ['{"a":\n1}', '{"b": "é\u2028"}']


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_do_not_depend_on_how_the_bytes_are_cut(size: int) -> None:
    reader, found = EventReader(), []
    for start in range(0, len(STREAM), size):
        found += reader.feed(STREAM[start : start + size])
    assert found + reader.close() == EVENTS
    assert reader.is_done


def test_a_last_event_without_its_blank_line_is_given_at_the_end() -> None:
    reader = EventReader()
    assert reader.feed(b'data: {"a": 1}') == []
    assert reader.close() == ['{"a": 1}']
    assert not reader.is_done


def test_an_event_is_given_as_soon_as_it_is_complete() -> None:
    reader = EventReader()
    assert reader.feed(b"data: 1\n") == []
    assert reader.feed(b"\n") == ["1"]


def test_lone_carriage_returns_end_lines_too() -> None:
    reader = EventReader()
    assert reader.feed(b"data: 1\r\rdata: 2\r\r") + reader.close() == ["1", "2"]


def test_comments_and_other_fields_are_no_events() -> None:
    reader = EventReader()
    assert reader.feed(b": hello\n\nid: 7\nretry: 3\n\n<html>\n\n") + reader.close() == []
