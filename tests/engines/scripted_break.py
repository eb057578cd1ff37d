"""The ways in which the scripted engine can misbehave."""

from __future__ import annotations

import enum


class Break(enum.StrEnum):
    """A way to misbehave, of generations only unless `path` says otherwise."""

    HTML = "html"  # 200, a page, declared as JSON
    LOGIN = "login"  # 302 to a login page
    UNAUTHORIZED = "unauthorized"  # 401 that quotes the key it was sent
    FORBIDDEN = "forbidden"  # 403
    NO_ROUTE = "no-route"  # 404 {"detail": "Not Found"}
    BAD_REQUEST = "bad-request"  # 400 that quotes the prompt
    BUSY = "busy"  # 429 with Retry-After
    LOADING = "loading"  # 503, as llama.cpp while it loads
    CRASHING = "crashing"  # 500
    INFINITE = "infinite"  # 500 whenever log-probabilities are asked for, as for minus infinity
    HANG = "hang"  # never answers
    DROP = "drop"  # closes in the middle of the answer, of the stream
    CUT = "cut"  # ends the stream properly, before its last event
    NOT_JSON = "not-json"  # 200, cut JSON
    HUGE = "huge"  # 200, 1 MB more than a small limit
    EMPTY = "empty"  # 200, no token
    NO_CHOICES = "no-choices"  # 200, an empty list
    NAN = "nan"  # NaN, null, -Infinity and -9999 among the log-probabilities
    ERROR_EVENT = "error-event"  # 200, then an error object
    THINKING = "thinking"  # the budget is spent on hidden reasoning: null content, finish reason length
    WRONG_TYPE = "wrong-type"  # a proper answer, declared as text/html
