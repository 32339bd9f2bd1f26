"""A policy behind HTTP: `GET /health`, `GET /info`, `POST /act`."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Mapping
from typing import Any, NoReturn

import attrs
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rlplug.errors import RequestError, RlplugError, did_you_mean
from rlplug.serving.act_requests import FIELDS, MOST, ActRequests
from rlplug.serving.policy import Policy

__all__ = ["LARGEST_BODY", "PolicyServer"]

_LOG = logging.getLogger("rlplug")

LARGEST_BODY = 32 * 2**20
"""Bytes of a request; a batch of 64 stacks of Atari frames takes 7 MiB as JSON."""
_MOST_CONNECTIONS = 512
_IDLE_SECONDS = 60
"""How long a connection without requests is kept."""
_METHODS = {"/health": "GET, HEAD", "/info": "GET, HEAD", "/act": "POST"}
_LOCAL_NAMES = ("127.0.0.1", "[::1]", "localhost")
_PORT = re.compile(r":\d*$")


class PolicyServer(uvicorn.Server):
    """Serves a policy on a socket that is bound already; `run` answers until a signal ends it.

    Requests are answered one after the other, in one thread.
    """

    def __init__(
        self,
        bound: socket.socket,
        policy: Policy,
        info: Mapping[str, Any],
        *,
        largest_body: int = LARGEST_BODY,
        most_connections: int = _MOST_CONNECTIONS,
        most_sessions: int = MOST,
    ) -> None:
        # Else the body of an answer would wait for the acknowledgement of its headers, 40 ms.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.listen()
        self.socket = bound
        self._policy = policy
        self.requests = ActRequests(policy, most_sessions)
        self.info = {**info, "stateful": self.requests.stateful, "fields": FIELDS}
        self._largest_body = largest_body
        self._is_local = bound.getsockname()[0] in ("127.0.0.1", "::1")
        super().__init__(
            uvicorn.Config(
                self._answer,
                http=_Protocol,
                interface="asgi3",
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                limit_concurrency=most_connections,
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=1,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer until a signal ends it, or `should_exit` is set."""
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        super().run(sockets or [self.socket])

    @property
    def url(self) -> str:
        """Where it can be reached."""
        host, port = self.socket.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request; uvicorn calls this."""
        path, method, status, more = scope["path"], scope["method"], 200, []
        try:
            answer = self._content(path, method, scope["headers"], await self._body(receive))
        except _Refused as refused:
            status, more = refused.status, refused.headers
            answer = {"error": refused.error, "try": refused.hint}
        except RlplugError as error:
            status = 400
            hint = "; ".join(error.hints).removeprefix("try: ") or "GET /info"
            answer = {"error": f"{method} {path}: {error.message}", "try": hint}
        except ConnectionAbortedError:
            return
        except Exception as error:
            status = 500
            failed = f"{type(error).__name__}: {error}"
            _LOG.error("rlplug serve: %s", failed)
            hint = "rlplug eval, which runs the same policy in its environment"
            answer = {"error": f"the policy failed: {failed}", "try": hint}
        content = json.dumps(answer, allow_nan=False).encode() + b"\n"
        length = (b"content-length", b"%d" % len(content))
        headers = [(b"content-type", b"application/json"), length, *more]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _content(
        self, path: str, method: str, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> dict[str, Any]:
        if self._is_local:
            host = next((value.decode() for name, value in headers if name == b"host"), "")
            if _PORT.sub("", host) not in _LOCAL_NAMES:
                # A page that a browser on this machine shows may point its own name here.
                raise _Refused(403, f"this server is not {host[:100]!r}.", "its address")
        if path not in _METHODS:
            hint = did_you_mean(path, _METHODS) or ", ".join(_METHODS)
            raise _Refused(404, f"there is no {path[:100]}.", hint)
        allowed = _METHODS[path]
        if method not in allowed:
            allow = [(b"allow", allowed.encode())]
            raise _Refused(405, f"{path} does not answer {method}.", f"{allowed} {path}", allow)
        if path == "/health":
            return {"status": "ok"}
        if path == "/info":
            unseen = {f"{name}={level}": n for (name, level), n in self._policy.unseen.items()}
            return {**self.info, "sessions": self.requests.status(), "unseen_levels": unseen}
        return self.requests.answer(_parsed(body))

    async def _body(self, receive: Any) -> bytes:
        """All of the body; of one that is too large, no more than that shows it."""
        body, is_more = bytearray(), True
        while is_more:
            part = await receive()
            if part["type"] == "http.disconnect":
                raise ConnectionAbortedError
            body += part["body"]
            is_more = part["more_body"]
            if len(body) > self._largest_body:
                raise _Refused(
                    413,
                    f"the body has more than {self._largest_body:,} bytes.",
                    "send fewer observations at a time",
                    [(b"connection", b"close")],
                )
        return bytes(body)


@attrs.frozen
class _Refused(Exception):  # noqa: N818 # an answer, not a failure
    """An answer that is not 200."""

    status: int
    error: str
    hint: str
    headers: list[tuple[bytes, bytes]] = attrs.field(factory=list)


class _Protocol(HttpToolsProtocol):
    def eof_received(self) -> None:
        """Answer a body that is cut short, as it is not a valid request."""
        if self.cycle is not None and self.cycle.more_body:
            self.send_400_response("The body is shorter than its content-length.")


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
