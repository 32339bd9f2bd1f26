"""`rlplug ui`: look at runs in MLflow's web UI."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import debug_option, host_option, is_loopback

if TYPE_CHECKING:
    from rlplug.tracking.location import RunFolder

__all__ = ["ui"]


@click.command(cls=Command)
@click.argument("run", shell_complete=complete_runs, metavar="[RUN]", required=False)
@host_option
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port; default: 5000, or the next free one."
)
@click.option(
    "--allowed-hosts",
    metavar="NAMES",
    help="Host names by which browsers on other machines reach it, comma-separated.",
)
@debug_option
def ui(run: str | None, host: str, port: int | None, allowed_hosts: str | None) -> None:
    """Start the MLflow UI on the recorded runs, or on one run.

    \b
    rlplug ui                      runs in RLPLUG_HOME, else in ./rlplug_runs
    rlplug ui last                 the page of a run: id, name, last, best:ENV or group
    MLFLOW_TRACKING_URI=… rlplug ui
    """
    from rlplug.errors import RequestError
    from rlplug.tracking.location import (
        is_http,
        runs_folder,
        sqlite_file,
        tracking_uri,
        without_secrets,
    )

    root = runs_folder()
    uri = tracking_uri("", root)
    runs = _tracked_runs(root, uri)
    link = _link_of(run, runs)
    if is_http(uri):
        print(link(without_secrets(uri).replace("***@", "")))
        return
    database = sqlite_file(uri)
    if database is not None and not database.exists():
        raise RequestError(
            f"there are no runs yet: {database} does not exist.",
            "try: rlplug run --algo linucb, or RLPLUG_HOME=/folder/of/runs rlplug ui",
        )
    names = tuple(name.strip() for name in (allowed_hosts or "").split(",") if name.strip())
    if not is_loopback(host) and not names:
        raise RequestError(
            f"--host {host} serves other machines, so MLflow needs the host names they use.",
            "try: --allowed-hosts NAME-OF-THIS-MACHINE",
        )
    _serve(uri, root, runs, link, host, port, names)


def _tracked_runs(root: Path, uri: str) -> list[RunFolder]:
    """The runs in the folder that are recorded at this tracking URI, newest first."""
    from rlplug.tracking.location import runs_in, without_secrets

    shown = without_secrets(uri)
    return [one for one in runs_in(root) if one.uri == shown and one.experiment_id]


def _serve(
    uri: str,
    root: Path,
    runs: list[RunFolder],
    link: Callable[[str], str],
    host: str,
    port: int | None,
    names: tuple[str, ...],
) -> None:
    from rlplug.errors import RequestError
    from rlplug.tracking.server import (
        FIRST_PORT,
        free_port,
        is_free,
        server_command,
        serves_one_of,
    )

    chosen = port or FIRST_PORT
    if not is_free(host, chosen):
        there = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{chosen}"
        if serves_one_of(there, [run.id_in_mlflow for run in runs[:20]]):
            print(f"MLflow already shows these runs on port {chosen}.")
            _print_link(there, link)
            return
        if port is not None:
            raise RequestError(
                f"port {port} is taken by another program.",
                f"try: --port {free_port(host, port + 1)}, or leave --port out",
            )
        chosen = free_port(host, FIRST_PORT + 1)
        print(f"Port {FIRST_PORT} is taken by another program; using {chosen}.")
    if names:
        print("There is no login: anyone who can reach this machine can see and change all runs.")
    print("Starting MLflow, which takes some seconds; Ctrl-C stops it.")
    _print_link(f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{chosen}", link)
    command, environment = server_command(uri, root, host=host, port=chosen, allowed_hosts=names)
    # Signals and the exit code are the server's own.
    os.execve(command[0], command, environment)


def _link_of(run: str | None, runs: list[RunFolder]) -> Callable[[str], str]:
    """From the address of a server, the link to a run, or to the runs of the newest experiment."""
    from functools import partial

    from rlplug.errors import RequestError
    from rlplug.tracking.resolve import resolve
    from rlplug.tracking.server import experiment_link, home_link, run_link

    if run is None:
        experiment = runs[0].experiment_id if runs else ""
        return partial(experiment_link, experiment_id=experiment) if experiment else home_link
    found = resolve(run)
    if not found[0].experiment_id:
        raise RequestError(
            f"run {found[0].run_id} ({found[0].name}) is not recorded in MLflow.",
            f"try: rlplug show {found[0].short} --open",
        )
    if len(found) > 1:
        return partial(experiment_link, experiment_id=found[0].experiment_id)
    return partial(run_link, experiment_id=found[0].experiment_id, run_id=found[0].run_id)


def _print_link(server: str, link: Callable[[str], str]) -> None:
    print(link(server), flush=True)
