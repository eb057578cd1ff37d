"""A server for tests that says nothing about clients that hang up early, as ours does on answers it does not want."""

from __future__ import annotations

from http.server import ThreadingHTTPServer


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass
