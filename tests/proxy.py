"""Proxies, with which a real server comes, goes, hangs and fails at will."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


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


class Gate:
    """An HTTP proxy before a server: it passes requests on, or answers with an error."""

    def __init__(self, port: int) -> None:
        self.code = 0
        """Of the answers to requests for paths that begin with `path`; 0: the server's own."""
        self.path = "/"
        self.refused = b""
        """What makes a request invalid that contains it, if it is not empty."""
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # as in http.server
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if gate.code and self.path.startswith(gate.path):
                    self._answer(gate.code, b"<html>An error</html>")
                elif gate.refused and gate.refused in content:
                    refusal = b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "no"}'
                    self._answer(400, refusal)
                else:
                    self._answer(*gate.passed_on(port, self, content))

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 # as in http.server

            def _answer(self, code: int, content: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments: object) -> None:
                """Silence: the outcome is what is looked at."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def passed_on(
        self, port: int, request: BaseHTTPRequestHandler, content: bytes
    ) -> tuple[int, bytes]:
        onwards = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        kind = request.headers.get("Content-Type", "application/json")
        onwards.request(request.command, request.path, content, {"Content-Type": kind})
        answer = onwards.getresponse()
        found = answer.status, answer.read()
        onwards.close()
        return found
