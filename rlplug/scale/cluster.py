"""A Ray cluster: an existing one, or a local one that ends with the run."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rlplug.config.scale_section import ScaleSection
from rlplug.errors import RequestError

__all__ = ["connected", "refuse_unmet", "resources_of"]

_REACH_SECONDS = 5.0


@contextmanager
def connected(section: ScaleSection) -> Iterator[Any]:
    """The module `ray`, connected to the cluster of the run, which can hold all runners."""
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
        refuse_unmet([one["Resources"] for one in ray.nodes() if one["Alive"]], section)
        yield ray
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, section: ScaleSection) -> None:
    address = section.address
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address and address != "auto":
        if not (host and port.isdigit()):
            raise RequestError(
                f"scale.address = {address!r} is no address of a Ray cluster.",
                "try: --set scale.address=HOST:PORT, which `ray start --head` prints, or auto",
            )
        _reach(address, host, int(port))
    shared: dict[str, Any] = {
        "log_to_driver": False,
        "configure_logging": False,
        "logging_level": "ERROR",
    }
    try:
        if address:
            ray.init(address=address, **shared)
        else:
            ray.init(address="local", include_dashboard=False, **shared)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        where = address or "a local cluster"
        raise RequestError(
            f"Ray cannot be reached at {where}: {str(error).splitlines()[0]}.",
            "try: ray status on that host, or leave scale.address out for a local cluster",
        ) from error


def _reach(address: str, host: str, port: int) -> None:
    """Refuse a cluster that does not answer; Ray itself would wait for a minute."""
    try:
        socket.create_connection((host, port), _REACH_SECONDS).close()
    except OSError as error:
        raise RequestError(
            f"the Ray cluster at scale.address = {address!r} cannot be reached "
            f"({error.strerror or error}).",
            "try: ray status on that host, or leave scale.address out for a local cluster",
        ) from error


def resources_of(section: ScaleSection) -> dict[str, float]:
    """What one runner reserves, by Ray's names."""
    wanted = {"CPU": section.runner_cpus, "GPU": section.runner_gpus, **section.runner_resources}
    return {name: amount for name, amount in wanted.items() if amount}


def refuse_unmet(nodes: list[Mapping[str, float]], section: ScaleSection) -> None:
    """Refuse runners that the nodes, when idle, could not hold: Ray would wait for ever."""
    wanted = resources_of(section)
    room = [
        min((int(node.get(name, 0) / amount) for name, amount in wanted.items()), default=10**9)
        for node in nodes
    ]
    if sum(room) >= section.runners:
        return
    there = ", ".join(f"{name} {sum(node.get(name, 0) for node in nodes):g}" for name in wanted)
    each = ", ".join(f"{name} {amount:g}" for name, amount in wanted.items())
    raise RequestError(
        f"{section.runners} runners with {each} each can never be placed: the cluster has {there} "
        f"on {len(nodes)} node{'s' if len(nodes) != 1 else ''}, room for {sum(room)}.",
        f"try: --set scale.runners={max(sum(room), 1)}, or a smaller scale.runner_cpus",
    )
