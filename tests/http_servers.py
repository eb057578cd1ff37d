"""Servers for tests, as many clients as they like."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Between looks at whether to end, so that ending takes milliseconds.
_POLL_S = 0.002


class ManyClientsServer(ThreadingHTTPServer):
    """Takes connections that come at once; one that meets a full queue, usually of five, tries again after a second."""

    daemon_threads = True
    request_queue_size = 128
    _thread: threading.Thread

    def start(self) -> None:
        """Serves in a thread of its own."""
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_S,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends, and frees the port."""
        self.shutdown()
        self.server_close()
        self._thread.join()


class QuietServer(ManyClientsServer):
    """Says nothing about clients that hang up early, as ours does on answers it does not want."""

    def handle_error(self, *_: object) -> None:
        pass


class QuickHandler(BaseHTTPRequestHandler):
    """One connection, kept open, of a client that writes proper HTTP/1.1. Prints nothing."""

    protocol_version = "HTTP/1.1"
    # Headers and body leave in one segment, else Nagle's algorithm costs 40 ms a request.
    wbufsize = -1
    disable_nagle_algorithm = True
    raw_requestline: bytes

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def parse_request(self) -> bool:
        """Reads the headers. The base class has them parsed as a mail's, which takes longer than most answers."""
        self.requestline = self.raw_requestline.decode("latin-1").rstrip("\r\n")
        self.command, self.path, self.request_version = self.requestline.split()
        self.headers = self.MessageClass()
        while (line := self.rfile.readline().decode("latin-1").rstrip("\r\n")) != "":
            name, _, value = line.partition(":")
            self.headers[name] = value.strip()
        self.close_connection = self.headers.get("connection", "").lower() == "close"
        return True
