"""`rlplug serve`: answer requests for actions over HTTP."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import click

from rlplug.cli.command import Command
from rlplug.cli.options import HOST, JSON, RUN, TRUST, is_loopback, option
from rlplug.cli.output import print_rows
from rlplug.cli.process import started
from rlplug.errors import RequestError

if TYPE_CHECKING:
    from rlplug.serving.server import PolicyServer

__all__ = ["serve"]


@click.command("serve", cls=Command)
@RUN
@HOST
@option("--port PORT", "Port; 0: any free port.", type=click.IntRange(0, 65535), default=8000)
@TRUST
@JSON
def serve(run: str, host: str, port: int, trust: bool, as_json: bool) -> None:
    """Serve the policy of a run over HTTP.

    RUN is named as for eval; RUN@STEP is another checkpoint, models:/NAME@ALIAS a model in MLflow.

    \b
    GET  /health   whether it answers
    GET  /info     run, step, spaces, versions, latency, fields of a request
    POST /act      {"observation": ...} gives {"action": ...}
                   {"observations": [..., ...]} gives {"actions": [..., ...]}

    A request may also have action_mask (action_masks), deterministic, and, for policies with
    memory or stacked frames, session (any id) and reset. Ctrl-C stops the server.

    \b
    rlplug serve last
    rlplug serve models:/cart-pole@champion --port 8080
    """
    from rlplug.checkpoint import find_checkpoint
    from rlplug.tracking.console import console_for

    # Before the import of torch, so that a wrong name and a taken port are answered at once.
    path = find_checkpoint(run)
    with _bound(host, port) as bound:
        console_for().say(f"loading {path} …")
        from rlplug.runs.loading import about, load_checkpoint
        from rlplug.runs.signals import Interrupts
        from rlplug.serving.description import latency
        from rlplug.serving.server import PolicyServer

        started()
        with Interrupts():
            loaded = load_checkpoint(path, trust=trust)
            measured = {"1": latency(loaded.policy, 1), "64": latency(loaded.policy, 64)}
            server = PolicyServer(bound, loaded.policy, {**about(loaded), "latency": measured})
            _say_ready(server, host, as_json=as_json)
            server.run()


def _bound(host: str, port: int) -> socket.socket:
    """A bound socket: connections are refused until the policy is loaded."""
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
    info = server.info
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
    print_rows(rows)
    if not is_loopback(host):
        click.echo("There is no login: anyone who can reach this machine can ask for actions.")
    click.echo(f"ready: POST {server.url}/act, GET {server.url}/info; Ctrl-C stops it")
