"""A policy behind HTTP: `GET /health`, `GET /info`, `POST /act`."""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn

from rlplug.errors import RequestError, RlplugError, did_you_mean
from rlplug.serving.act_requests import FIELDS, ActRequests
from rlplug.serving.policy import Policy
from rlplug.serving.sessions import MOST

__all__ = ["LARGEST_BODY", "PolicyServer"]

_LOG = logging.getLogger("rlplug")

LARGEST_BODY = 32 * 2**20
"""Bytes of a request; a batch of 64 stacks of Atari frames takes 7 MiB as JSON."""

_PATHS = {"/health": ("GET", "HEAD"), "/info": ("GET", "HEAD"), "/act": ("POST",)}

_SEE_INFO = "GET /info tells what a request looks like"

_IDLE_SECONDS = 60
"""How long a connection without requests is kept."""


class PolicyServer(ThreadingHTTPServer):
    """Serves a policy on a socket that is bound already; `serve_forever` answers.

    Connections have a thread each; the policy is asked by one at a time.
    """

    # An idle connection must not keep the process from ending.
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        bound: socket.socket,
        policy: Policy,
        info: Mapping[str, Any],
        *,
        largest_body: int = LARGEST_BODY,
        most_sessions: int = MOST,
    ) -> None:
        super().__init__(bound.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.requests = ActRequests(policy, most_sessions)
        self.info = {**info, "stateful": self.requests.stateful, "fields": FIELDS}
        self.largest_body = largest_body
        self.server_activate()

    @property
    def url(self) -> str:
        """Where it can be reached."""
        host, port = self.socket.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection early is no error of ours."""
        error = sys.exception()
        if not isinstance(error, OSError):
            _LOG.error("rlplug serve: %s: %s", type(error).__name__, error)


class _RefusedError(Exception):
    """An answer that is not 200."""

    def __init__(
        self,
        status: HTTPStatus,
        error: str,
        hint: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(error)
        self.status = status
        self.body = {"error": error, **({"try": hint} if hint else {})}
        self.headers = headers or {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    # Else the answer would wait for the acknowledgement of its headers, 40 ms.
    disable_nagle_algorithm = True
    wbufsize = -1
    server: PolicyServer

    def do_GET(self) -> None:
        try:
            self._write(HTTPStatus.OK, self._answer())
        except _RefusedError as refused:
            self._write(refused.status, refused.body, refused.headers)
        except RlplugError as error:
            hint = "; ".join(error.hints).removeprefix("try: ") or _SEE_INFO
            body = {"error": f"{self.command} {self._path}: {error.message}", "try": hint}
            self._write(HTTPStatus.BAD_REQUEST, body)
        except Exception as error:
            _LOG.error("rlplug serve: %s: %s", type(error).__name__, error)
            self._write(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                {
                    "error": f"the policy failed: {type(error).__name__}: {error}",
                    "try": "rlplug eval, which runs the same policy in its environment",
                },
            )

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET  # noqa: N815

    @property
    def _path(self) -> str:
        return self.path.partition("?")[0]

    def _answer(self) -> dict[str, Any]:
        path, server = self._path, self.server
        # Before anything is refused: what is left unread would be taken for the next request.
        body = self._read()
        if path not in _PATHS:
            near = did_you_mean(path, _PATHS)
            hint = near or ", ".join(f"{methods[0]} {one}" for one, methods in _PATHS.items())
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is no {path}.", hint)
        methods = _PATHS[path]
        if self.command not in methods:
            raise _RefusedError(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{path} does not answer {self.command}.",
                f"{methods[0]} {path}",
                {"Allow": ", ".join(methods)},
            )
        if path == "/health":
            return {"status": "ok"}
        if path == "/info":
            return {**server.info, "sessions": server.requests.status()}
        return server.requests.answer(_parsed(body))

    def _read(self) -> bytes:
        """The body; a request whose body is not read closes the connection."""
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise _RefusedError(
                HTTPStatus.LENGTH_REQUIRED,
                "the body has no Content-Length.",
                "send the body at once, not in chunks",
            )
        if not length:
            return b""
        if not (length.isascii() and length.isdecimal()):
            self.close_connection = True
            raise _RefusedError(HTTPStatus.BAD_REQUEST, f"Content-Length is {length!r}.")
        if int(length) > self.server.largest_body:
            self.close_connection = True
            raise _RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body has {int(length):,} bytes, more than {self.server.largest_body:,}.",
                "send fewer observations at a time",
            )
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise ConnectionAbortedError("the client left before it had sent the body")
        return body

    def _write(
        self, status: HTTPStatus, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        written = json.dumps(body, allow_nan=False).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(written)))
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(written)
        self.wfile.flush()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no HTTP request in JSON as well."""
        self.close_connection = True
        status = HTTPStatus(code)
        if status == HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self._write(status, {"error": message or status.phrase, "try": _SEE_INFO})

    def version_string(self) -> str:
        """Without the version of Python."""
        return "rlplug"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged."""


def _parsed(body: bytes) -> Any:
    def refuse(name: str) -> NoReturn:
        raise RequestError(
            f"the body holds {name}, which is no number of JSON.",
            "give what the policy was trained on",
        )

    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        found = f"not JSON: {error}" if body else "empty"
        raise RequestError(
            f"the body is {found}.", "try: -d '{\"observation\": [...]}', as GET /info describes it"
        ) from error
