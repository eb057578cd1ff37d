"""Servers for tests, as many clients as they like."""

from __future__ import annotations

from http.server import ThreadingHTTPServer


class ManyClientsServer(ThreadingHTTPServer):
    """Takes connections that come at once; one that meets a full queue, usually of five, tries again after a second."""

    daemon_threads = True
    request_queue_size = 128


class QuietServer(ManyClientsServer):
    """Says nothing about clients that hang up early, as ours does on answers it does not want."""

    def handle_error(self, *_: object) -> None:
        pass
