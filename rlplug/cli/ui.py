"""`rlplug ui`: look at runs in MLflow's web UI."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.options import HOST, is_loopback, option
from rlplug.errors import RequestError

if TYPE_CHECKING:
    from rlplug.tracking.location import RunFolder

__all__ = ["ui"]


@click.command(cls=Command)
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_runs)
@HOST
@option("--port PORT", "Default: 5000, or the next free one.", type=click.IntRange(1, 65535))
@option("--allowed-hosts NAMES", "Names by which other machines reach it, comma-separated.")
def ui(run: str | None, host: str, port: int | None, allowed_hosts: str | None) -> None:
    """Start the MLflow UI on the recorded runs, or on one run.

    \b
    rlplug ui                          runs in RLPLUG_HOME, else in ./rlplug_runs
    rlplug ui best:CartPole-v1         the page of one run
    """
    from rlplug.tracking import location, server

    root = location.runs_folder()
    uri = location.tracking_uri("", root)
    shown = location.without_secrets(uri)
    runs = [one for one in location.runs_in(root) if one.uri == shown and one.experiment_id]
    link = _link_of(run, runs)
    if location.is_http(uri):
        print(link(shown.replace("***@", "")))
        return
    database = location.sqlite_file(uri)
    if database is not None and not database.exists():
        raise RequestError(
            f"there are no runs yet: {database} does not exist.",
            "try: rlplug run --algo NAME, or RLPLUG_HOME=/folder/of/runs rlplug ui",
        )
    names = tuple(name.strip() for name in (allowed_hosts or "").split(",") if name.strip())
    if not is_loopback(host) and not names:
        raise RequestError(
            f"--host {host} serves other machines, so MLflow needs the host names they use.",
            "try: --allowed-hosts NAME-OF-THIS-MACHINE",
        )
    local = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    chosen = port or server.FIRST_PORT
    if not server.is_free(host, chosen):
        if server.serves_one_of(
            f"http://{local}:{chosen}", [one.id_in_mlflow for one in runs[:20]]
        ):
            print(f"MLflow already shows these runs on port {chosen}.")
            print(link(f"http://{local}:{chosen}"), flush=True)
            return
        if port is not None:
            raise RequestError(
                f"port {port} is taken by another program.",
                f"try: --port {server.free_port(host, port + 1)}, or leave --port out",
            )
        chosen = server.free_port(host, chosen + 1)
        print(f"Port {server.FIRST_PORT} is taken by another program; using {chosen}.")
    if names:
        print("There is no login: anyone who can reach this machine can see and change all runs.")
    print("Starting MLflow, which takes some seconds; Ctrl-C stops it.")
    print(link(f"http://{local}:{chosen}"), flush=True)
    command, environment = server.server_command(
        uri, root, host=host, port=chosen, allowed_hosts=names
    )
    # Signals and the exit code are the server's own.
    os.execve(command[0], command, environment)


def _link_of(run: str | None, runs: Sequence[RunFolder]) -> Callable[[str], str]:
    """From the address of a server, the link to a run, or to the runs of the newest experiment."""
    from rlplug.tracking.resolve import resolve
    from rlplug.tracking.server import experiment_link, home_link, run_link

    if run is None:
        experiment = runs[0].experiment_id if runs else ""
        return partial(experiment_link, experiment_id=experiment) if experiment else home_link
    first, *others = resolve(run)
    if not first.experiment_id:
        raise RequestError(
            f"run {first.run_id} ({first.name}) is not recorded in MLflow.",
            f"try: rlplug show {first.short} --open",
        )
    if others:
        return partial(experiment_link, experiment_id=first.experiment_id)
    return partial(run_link, experiment_id=first.experiment_id, run_id=first.run_id)
