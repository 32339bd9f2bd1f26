"""A proxy, with which a real server comes, goes and hangs at will."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """A TCP proxy before a server: it lets connections through, or hangs.

    Before it is made and after `close`, its port refuses them.
    """

    def __init__(self, port: int, own: int = 0) -> None:
        self._port = port
        self.hangs = threading.Event()
        self.waiting = threading.Event()
        """A request came that gets no answer."""
        self._listener = socket.create_server(("127.0.0.1", own))
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._held: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in (self._listener, *self._held):
            # A thread that waits for one keeps it open.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._held.append(client)
            if self.hangs.is_set():
                self.waiting.set()
            else:
                server = socket.create_connection(("127.0.0.1", self._port))
                self._held.append(server)
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while content := source.recv(65_536):
                if self.hangs.is_set():
                    self.waiting.set()
                    return  # what was sent is swallowed, and no answer comes
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return
