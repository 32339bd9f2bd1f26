"""A Ray cluster: an existing one, or a local one that ends with the run."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rlplug.config.sections import ScaleSection
from rlplug.errors import RequestError

__all__ = ["connected", "learner_resources", "refuse_unmet", "this_node", "why_gone"]

_REACH_SECONDS = 5.0
_NAMES = {"CPU": "cpus", "GPU": "gpus"}
"""How options name what Ray names so; they have others in a mapping."""
_SETTINGS = b"\x04"
"""The type of HTTP/2's frame of settings, with which a gRPC server greets its clients."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _SETTINGS + bytes(5)
"""How a client begins: by the preface of HTTP/2 and settings of its own, here none."""


def _frame(kind: int, flags: int, body: bytes) -> bytes:
    """A frame of the first stream of an HTTP/2 connection."""
    return len(body).to_bytes(3, "big") + bytes((kind, flags, 0, 0, 0, 1)) + body


def _header(name: bytes, value: bytes) -> bytes:
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


_QUESTION = _frame(
    1,
    4,
    # POST over http.
    b"\x83\x86"
    + _header(b":path", b"/ray.rpc.NodeInfoGcsService/GetClusterId")
    + _header(b":authority", b"ray")
    + _header(b"content-type", b"application/grpc")
    + _header(b"te", b"trailers"),
) + _frame(0, 1, bytes(5))
"""The first call of Ray's clients, without a token, which some clusters ask for."""
_STATUS = re.compile(rb"grpc-status[\x01\x02](\d+)")
_WANTS_TOKEN = {b"0": False, b"16": True}
"""What the statuses of gRPC say: OK and UNAUTHENTICATED."""
_TOKEN_HINT = "try: RAY_AUTH_TOKEN_PATH=FILE, a copy of ~/.ray/auth_token of the cluster's host"


@contextmanager
def connected(section: ScaleSection, *, whole_runs: bool = False) -> Iterator[Any]:
    """The module `ray`, connected to the cluster of the run, which can hold all runners.

    `whole_runs`: what the runners reserve is for runs that are placed as a whole.
    """
    # Asked before the first import: a run does not phone home.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise RequestError(
            f"scale.engine = 'ray' needs Ray, which cannot be imported ({error}).",
            "try: pip install 'rlplug[ray]', or --set scale.engine=local",
        ) from error
    started = not ray.is_initialized()
    if started:
        _connect(ray, section)
    try:
        here = this_node(ray)
        alive = sorted(
            (one for one in ray.nodes() if one["Alive"]), key=lambda one: one["NodeID"] != here
        )
        refuse_unmet([one["Resources"] for one in alive], section, whole_runs=whole_runs)
        yield ray
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, section: ScaleSection) -> None:
    # What concerns a person is said by the run; Ray's log files have the rest.
    logging.getLogger("ray").setLevel(logging.ERROR)
    address = section.address
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address and address != "auto":
        if not (host and port.isdigit()):
            raise RequestError(
                f"scale.address = {address!r} is no address of a Ray cluster.",
                "try: --set scale.address=HOST:PORT, which `ray start --head` prints, or auto",
            )
        wants_token = _reach(address, host, int(port))
        if wants_token is not None:
            _agree_on_tokens(address, wants_token)
    shared: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    # Deaths of workers are printed to stdout without regard to log_to_driver.
    printing: Any = import_module("ray._private.worker")
    printing._worker_logs_enabled = False
    try:
        with _sigterm_kept():
            if address:
                ray.init(address=address, **shared)
            else:
                ray.init(address="local", include_dashboard=False, **shared)
    except (
        *(ConnectionError, RuntimeError, ValueError, OSError, TimeoutError),
        ray.exceptions.RayError,
    ) as error:
        where = address or "a local cluster"
        if _is_about_tokens(error):
            raise RequestError(
                f"Ray at {where} asks for a token, and accepts none that was found here.",
                _TOKEN_HINT,
            ) from error
        raise RequestError(
            f"Ray cannot be reached at {where}: {str(error).splitlines()[0]}.",
            "try: ray status on that host, or leave scale.address out for a local cluster",
        ) from error


def _agree_on_tokens(address: str, wants_token: bool) -> None:
    """Use a token where the cluster asks for one, which `ray start` makes it do if it finds one.

    `ray.init` uses none for an address that it is given, and fails after many seconds; with one,
    a cluster that does not ask for it loses all runners.
    """
    mode = os.environ.get("RAY_AUTH_MODE")
    uses_token = (mode or "").lower() == "token"
    cluster = f"the Ray cluster at scale.address = {address!r}"
    if uses_token and not wants_token:
        raise RequestError(
            f"{cluster} does not use tokens, but RAY_AUTH_MODE is 'token'.",
            "try: RAY_AUTH_MODE=disabled",
        )
    if uses_token or not wants_token:
        return
    if mode is not None:
        raise RequestError(
            f"{cluster} asks for a token, but RAY_AUTH_MODE is {mode!r}.",
            "try: RAY_AUTH_MODE=token",
        )
    try:
        setup: Any = import_module("ray._private.authentication.authentication_token_setup")
        found = setup.maybe_enable_token_auth_if_token_available()
    except (ImportError, AttributeError, TypeError):
        # Ray's own, and not in all versions.
        found = False
    if not found:
        raise RequestError(f"{cluster} asks for a token, and none was found here.", _TOKEN_HINT)


def _is_about_tokens(error: BaseException | None) -> bool:
    """Whether Ray, or what its error comes from, says that a token is wrong or missing."""
    while error is not None:
        if type(error).__name__ == "AuthenticationError" or "InvalidAuthToken" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces by one that exits."""
    handler = signal.getsignal(signal.SIGTERM)
    # Handlers can only be set in the main thread; None is one that Python could not set again.
    if threading.current_thread() is not threading.main_thread() or handler is None:
        yield
        return
    came = False
    try:
        yield
    except SystemExit as error:
        came = error.code == signal.SIGTERM
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
        if came:
            signal.raise_signal(signal.SIGTERM)


def _reach(address: str, host: str, port: int) -> bool | None:
    """Refuse a cluster that does not answer; Ray itself would wait for minutes.

    Tells whether it asks for a token; None: it does not say.
    """
    answer = b""
    try:
        with socket.create_connection((host, port), _REACH_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                # Greetings are encrypted there.
                return None
            connection.sendall(_GREETING + _QUESTION)
            while more := connection.recv(4096):
                answer += more
                status = _STATUS.search(answer)
                if status is not None:
                    return _WANTS_TOKEN.get(status[1])
                if answer[3:4] not in (b"", _SETTINGS):
                    break
    except OSError as error:
        if answer[3:4] != _SETTINGS:
            raise _unreachable(address, error.strerror or str(error)) from error
    if answer[3:4] != _SETTINGS:
        raise _unreachable(address, "what answers there is not Ray")
    return None


def _unreachable(address: str, reason: str) -> RequestError:
    return RequestError(
        f"the Ray cluster at scale.address = {address!r} cannot be reached ({reason}).",
        "try: ray status on that host, or leave scale.address out for a local cluster",
    )


def this_node(ray: Any) -> str:
    """The id of the node that this process is on."""
    node: str = ray.get_runtime_context().get_node_id()
    return node


def why_gone(ray: Any, error: Exception) -> str:
    """Why an actor is gone, without the ids of Ray's text and what it guesses at."""
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return "it cannot be reached"
    if isinstance(error, ray.exceptions.ObjectLostError):
        return "what it sent is lost"
    said = str(error).strip()
    if "its node has died" in said:
        return "its node has left"
    code = re.search(r"Worker exits with an (exit code -?\d+)", said)
    if code is not None:
        return code[1]
    if "its worker process has died" in said:
        return "killed or crashed"
    # The first line says that it is gone; the last one is the exception where there is one.
    return said.splitlines()[-1].strip().rstrip(".:")


def learner_resources(section: ScaleSection) -> dict[str, float]:
    """What each of several learners reserves, by Ray's names."""
    return _resources(section.learner_cpus, section.learner_gpus, section.learner_resources)


def _resources(cpus: float, gpus: float, others: Mapping[str, float]) -> dict[str, float]:
    wanted = {"CPU": cpus, "GPU": gpus, **others}
    return {name: amount for name, amount in wanted.items() if amount}


def refuse_unmet(
    nodes: Sequence[Mapping[str, float]], section: ScaleSection, *, whole_runs: bool = False
) -> None:
    """Refuse learners and runners that the nodes, when idle, could not hold: Ray would wait.

    The first node is that of this process, which one of several learners is.
    """
    runner = _resources(section.runner_cpus, section.runner_gpus, section.runner_resources)
    learner = learner_resources(section)
    names = list(dict.fromkeys([*runner, *(learner if section.learners > 1 else ())]))
    there = ", ".join(f"{name} {sum(node.get(name, 0) for node in nodes):g}" for name in names)
    cluster = f"the cluster has {there} on {len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    runners = f"{section.runners} runners with {_told(runner)} each"
    if section.runners == 1:
        runners = f"{'a run' if whole_runs else '1 runner'} with {_told(runner)}"
    room = sum(_room(node, runner) for node in nodes)
    if not room:
        lacking = _lacking(nodes, runner)
        raise RequestError(
            f"{runners} can never be placed: {cluster}, none with {_told(lacking)}.",
            f"try: {_less(nodes, lacking, 'runner')}",
        )
    if section.learners == 1:
        if room < section.runners:
            # What has no room for all of them even by itself.
            short = [
                name
                for name, amount in runner.items()
                if sum(_room(node, {name: amount}) for node in nodes) < section.runners
            ]
            raise RequestError(
                f"{runners} can never be placed: {cluster}, room for {room}.",
                f"try: --set scale.runners={room}, or a smaller "
                f"{_options(short or runner, 'runner')}",
            )
        return
    if not _room(nodes[0], learner):
        there = ", ".join(f"{name} {nodes[0].get(name, 0):g}" for name in learner)
        raise RequestError(
            f"the first learner is in this process, whose node has {there}: there is no room for "
            f"{_told(learner)}.",
            "try: start the run on another node, or "
            f"{_less(nodes[:1], _lacking(nodes[:1], learner), 'learner')}",
        )
    # Learners placed so far → the most runners that fit beside them.
    most = {0: 0}
    for index, node in enumerate(nodes):
        here: dict[int, int] = {}
        for placed, beside in most.items():
            at_most = min(_room(node, learner), section.learners - placed)
            for count in range(0 if index else 1, at_most + 1):
                left = {
                    name: node.get(name, 0) - count * learner.get(name, 0)
                    for name in {*node, *learner}
                }
                total = beside + _room(left, runner)
                here[placed + count] = max(here.get(placed + count, 0), total)
        most = here
    if most.get(section.learners, -1) < section.runners:
        raise RequestError(
            f"{section.learners} learners with {_told(learner)} each and {runners} can never be "
            f"placed together: {cluster}.",
            f"try: fewer of them, or a smaller {_options(runner, 'runner')} or "
            f"{_options(learner, 'learner')}",
        )


def _lacking(
    nodes: Sequence[Mapping[str, float]], wanted: Mapping[str, float]
) -> Mapping[str, float]:
    """What no node has enough of; all, if nodes only lack one or another."""
    lacking = {
        name: amount
        for name, amount in wanted.items()
        if not any(_room(node, {name: amount}) for node in nodes)
    }
    return lacking or wanted


def _less(nodes: Sequence[Mapping[str, float]], lacking: Mapping[str, float], who: str) -> str:
    """How to ask for no more of these than a node has."""
    most = {name: max(node.get(name, 0) for node in nodes) for name in lacking}
    if all(most[name] >= amount for name, amount in lacking.items()):
        return f"a smaller {_options(lacking, who)}"
    parts = [
        f"--set {_options([name], who)}={amount:g}"
        for name, amount in most.items()
        if name in _NAMES
    ]
    for name, amount in most.items():
        if name not in _NAMES:
            asked = f"{name} = {amount:g}" if amount else f"without {name}"
            parts.append(f"{_options([name], who)} {'with ' if amount else ''}{asked}")
    return " ".join(parts)


def _options(names: Iterable[str], who: str) -> str:
    """The options that ask for these resources for a runner or a learner."""
    options = (f"scale.{who}_{_NAMES.get(name, 'resources')}" for name in names)
    return " or ".join(dict.fromkeys(options))


def _room(node: Mapping[str, float], wanted: Mapping[str, float]) -> int:
    """How many of these fit on a node; Ray counts in ten thousandths."""
    return min(
        (int(node.get(name, 0) / amount + 1e-4) for name, amount in wanted.items()), default=10**9
    )


def _told(wanted: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in wanted.items()) or "nothing"
