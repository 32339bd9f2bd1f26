"""The MLflow server for the UI: how it is started, and links into it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlencode

from rlplug.errors import RequestError
from rlplug.review.record import BEST_RETURN, BEST_STEP, REGRET, RETURN, REWARD

FIRST_PORT = 5000
"""The default port of the UI."""
PORTS_TO_TRY = 50

_NAME = "rlplug-by-seed"
VIEW_TAG = f"mlflow.sharedViewState.{_NAME}"
"""MLflow reads views from such tags, which its documentation does not mention."""
# Without it, the UI opens in its GenAI mode.
_MODE = "workflowType=machine_learning"


def server_command(
    uri: str, root: Path, *, host: str, port: int, allowed_hosts: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """The command that serves a store in one worker process, and its environment."""
    options = {
        "--artifacts-destination": (root / "artifacts-proxied").as_uri(),
        "--host": host,
        "--port": str(port),
        "--workers": "1",
        # Otherwise, each request is a line.
        "--uvicorn-opts": "--log-level warning",
    }
    if allowed_hosts:
        names = [*allowed_hosts, "localhost", "127.0.0.1"]
        # Browsers send the port with the name, except port 80; it may be forwarded.
        shown = [f"{name}{end}" for name in names for end in ("", ":*")]
        options["--allowed-hosts"] = ",".join(shown)
        options["--cors-allowed-origins"] = ",".join(f"http://{name}:*" for name in names)
    words = [word for option in options.items() for word in option]
    environment = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        **os.environ,
        # Anybody may see command lines, and a URI may have a password.
        "MLFLOW_BACKEND_STORE_URI": uri,
        # The job runner would start five unused processes.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    return [sys.executable, "-m", "mlflow", "server", *words], environment


def is_free(host: str, port: int) -> bool:
    """Whether the port is free; raises if it is not permitted, for example below 1024."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # Ports in TIME_WAIT count as free, as they do for servers.
        socket.create_server((host, port), family=family).close()
    except (PermissionError, socket.gaierror, OverflowError) as error:
        raise RequestError(
            f"cannot listen on {host}:{port}: {error}.",
            "try: another --port (1024 to 65535), or another --host",
        ) from error
    except OSError:
        return False
    return True


def free_port(host: str, first: int) -> int:
    """The first free port from `first` on."""
    for port in range(first, first + PORTS_TO_TRY):
        if is_free(host, port):
            return port
    raise RequestError(
        f"ports {first} to {first + PORTS_TO_TRY - 1} are all in use.", "try: --port N"
    )


def serves_one_of(url: str, run_ids: Iterable[str]) -> bool:
    """Whether an MLflow server at this URL has one of the runs, and so shows the same store."""
    # Proxies are bypassed.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for run_id in run_ids:
        query = urlencode({"run_id": run_id})
        try:
            opener.open(f"{url}/api/2.0/mlflow/runs/get?{query}", timeout=2.0).close()
        except (OSError, http.client.HTTPException):
            continue
        return True
    return False


def view_of(*, evaluated: bool) -> str:
    """The view of runs by group, the best first; whether they are evaluated."""
    # Bandits are not evaluated: their result is what they got while they learned.
    results = (BEST_RETURN, BEST_STEP) if evaluated else (RETURN, REWARD, REGRET)
    options = ("params.`run.steps`", "tags.`rlplug.algo`", "tags.`rlplug.options`")
    by_group = {"mode": "tag", "groupByData": "rlplug.group"}
    state = {
        "orderByKey": f"metrics.`{BEST_RETURN if evaluated else REWARD}`",
        "orderByAsc": False,
        # Not the summaries of several seeds, which would be one more run of their group.
        "searchFilter": "tags.`rlplug.kind` = 'run'",
        "selectedColumns": [*(f"metrics.`{name}`" for name in results), *options],
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [by_group]},
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
    }
    return json.dumps(state, separators=(",", ":"))


def experiment_link(server: str, experiment_id: str) -> str:
    """Link to the runs of an experiment, grouped by seed."""
    view = f"{_MODE}&viewStateShareKey={_NAME}&compareRunsMode=CHART"
    return f"{server}/#/experiments/{experiment_id}/runs?{view}"


def home_link(server: str) -> str:
    """Link to all experiments."""
    return f"{server}/#/experiments?{_MODE}"


def run_link(server: str, experiment_id: str, run_id: str) -> str:
    """Link to one run."""
    return f"{server}/#/experiments/{experiment_id}/runs/{run_id}?{_MODE}"
