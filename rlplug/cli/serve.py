"""`rlplug serve`: answer requests for actions over HTTP."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import debug_option, host_option, is_loopback
from rlplug.cli.process import starting
from rlplug.cli.terminal import in_columns

if TYPE_CHECKING:
    from pathlib import Path

    from rlplug.serving.server import PolicyServer

__all__ = ["serve"]


@click.command("serve", cls=Command)
@click.argument("run", shell_complete=complete_runs, metavar="RUN")
@host_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port; 0: a free one.",
)
@click.option(
    "--trust",
    is_flag=True,
    help="Import the code that the config of somebody else's run names: encoders.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON when it is ready.")
@debug_option
def serve(run: str, host: str, port: int, trust: bool, as_json: bool) -> None:
    """Serve the policy of a run over HTTP.

    RUN is named as for eval; its best checkpoint is taken, RUN@STEP is the one at a step,
    models:/NAME@ALIAS a model in MLflow.

    \b
    GET  /health   whether it answers
    GET  /info     run, step, spaces, versions, latency, fields of a request
    POST /act      {"observation": ...} gives {"action": ...}
                   {"observations": [..., ...]} gives {"actions": [..., ...]}

    Dict spaces are objects, Tuple spaces lists. A request may also have action_mask (action_masks),
    deterministic, and, for policies with stacked frames or recurrent state, session (an id of the
    caller's choice) and reset. Without a session, an episode begins with every request. Ctrl-C
    stops it.
    """
    from rlplug.checkpoint import find_checkpoint

    # Before the import of torch, so that a wrong name and a taken port are answered at once.
    path = find_checkpoint(run)
    with _bound(host, port) as bound:
        from rlplug.tracking.console import console_for

        console_for().say(f"loading {path} …")
        with starting():
            from rlplug.runs.signals import Interrupts
        with Interrupts():
            server = _server(bound, path, trust=trust)
            _say_ready(server, host, as_json=as_json)
            server.run()


def _server(bound: socket.socket, path: Path, *, trust: bool) -> PolicyServer:
    from rlplug.runs.loading import about, load_checkpoint
    from rlplug.serving.description import latency
    from rlplug.serving.server import PolicyServer

    loaded = load_checkpoint(path, trust=trust)
    measured = {"1": latency(loaded.policy, 1), "64": latency(loaded.policy, 64)}
    return PolicyServer(bound, loaded.policy, {**about(loaded), "latency": measured})


def _bound(host: str, port: int) -> socket.socket:
    """A bound socket: connections are refused until the policy is loaded."""
    from rlplug.errors import RequestError

    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise RequestError(
            f"cannot listen on {host}:{port}: {error.strerror}.",
            "try: --port 0 for a free port, or another --host",
        ) from error
    return bound


def _say_ready(server: PolicyServer, host: str, *, as_json: bool) -> None:
    info: dict[str, Any] = server.info
    if as_json:
        names = ("run_id", "step", "algorithm", "latency", "stateful")
        print(json.dumps({"url": server.url, **{name: info[name] for name in names}}), flush=True)
        return
    single, batch = (info["latency"][rows] for rows in ("1", "64"))
    rows = {
        "policy": f"{info['algorithm']} of run {info['run_id']}, step {info['step']:,}",
        "latency": f"{single['p50_ms']:.3f} ms, 99 of 100 under {single['p99_ms']:.3f} ms",
        "": f"{batch['p50_ms']:.3f} ms for 64 observations, without HTTP",
    }
    if info["stateful"]:
        rows["session"] = "needed: actions depend on earlier observations of the episode"
    for line in in_columns(rows):
        click.echo(line)
    if not is_loopback(host):
        click.echo("There is no login: anyone who can reach this machine can ask for actions.")
    click.echo(f"ready: POST {server.url}/act, GET {server.url}/info; Ctrl-C stops it")
