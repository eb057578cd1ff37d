"""Servers for tests, as many clients as they like."""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer

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
