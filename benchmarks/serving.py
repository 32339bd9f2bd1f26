"""How fast a policy answers: in this process, as a pyfunc, over HTTP, and in batches.

python benchmarks/serving.py [--seconds 3] [--clients 4]

PPO on CartPole and LinUCB on LinearBandit, trained for a moment. HTTP is over loopback, with
connections that are kept, from a process of its own.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import mlflow.pyfunc
import numpy

import rlplug
from rlplug.batch.nested import tree_map
from rlplug.serving.act_requests import plain
from rlplug.serving.description import sampled_observations
from rlplug.serving.server import PolicyServer
from rlplug.tracking.status import known_models

RUNS = {"ppo": ("CartPole-v1", 4096), "linucb": ("", 500)}
BATCH = 64


def main() -> None:
    """Print a table: requests per second, median and 99th percentile in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--clients", type=int, default=4, help="of the last measurement")
    given = parser.parse_args()
    home = tempfile.mkdtemp()
    os.environ |= {"RLPLUG_HOME": home, "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db"}
    print(f"{'':<34}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}")
    for name, (env, steps) in RUNS.items():
        options = {"evaluation.episodes": 1, "evaluation.every": 0}
        result = rlplug.run(name, env=env, steps=steps, options=options)
        policy = rlplug.load(result.folder)
        rows = sampled_observations(policy.observation_space, BATCH)
        one = tree_map(lambda leaf: leaf[0], rows)
        report(f"{name}, in process", calls(partial(policy.predict, one), given.seconds))
        report(
            f"{name}, in process, {BATCH} rows",
            calls(partial(policy.predict, rows), given.seconds),
        )
        (model_id,) = known_models(result.folder).values()
        model = mlflow.pyfunc.load_model(f"models:/{model_id}")
        report(f"{name}, pyfunc", calls(partial(model.predict, one[None]), given.seconds))
        report(f"{name}, pyfunc, {BATCH} rows", calls(partial(model.predict, rows), given.seconds))
        server = serve(policy)
        address = server.socket.getsockname()
        for label, body in (
            ("single", {"observation": plain(one)}),
            (f"{BATCH} rows", {"observations": plain(rows)}),
        ):
            report(f"{name}, HTTP, {label}", clients(1, address, body, given.seconds))
        report(
            f"{name}, HTTP, single, {given.clients} clients",
            clients(given.clients, address, {"observation": plain(one)}, given.seconds),
        )
        server.should_exit = True


def serve(policy: Any) -> PolicyServer:
    """A server in a thread of this process."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = PolicyServer(bound, policy, {})
    threading.Thread(target=server.run, daemon=True).start()
    return server


def calls(call: Callable[[], Any], seconds: float) -> tuple[float, list[float]]:
    """Seconds in all, and of each call."""
    for _ in range(20):
        call()
    taken: list[float] = []
    begun = before = time.perf_counter()
    while before - begun < seconds:
        call()
        after = time.perf_counter()
        taken.append(after - before)
        before = after
    return before - begun, taken


def clients(count: int, address: Any, body: Any, seconds: float) -> tuple[float, list[float]]:
    """The same of requests from processes of their own."""
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        each = pool.starmap(requests, [(address, body, seconds)] * count)
    return max(took for took, _ in each), [one for _, taken in each for one in taken]


def requests(address: Any, body: Any, seconds: float) -> tuple[float, list[float]]:
    """Requests over one connection, one after the other."""
    connection = http.client.HTTPConnection(*address)
    text = json.dumps(body)

    def ask() -> None:
        connection.request("POST", "/act", text)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()

    return calls(ask, seconds)


def report(label: str, measured: tuple[float, list[float]]) -> None:
    """One row."""
    seconds, taken = measured
    p50, p99 = numpy.percentile(taken, [50, 99]) * 1e3
    print(f"{label:<34}{len(taken) / seconds:>12,.0f}{p50:>9.3f}{p99:>9.3f}", flush=True)


if __name__ == "__main__":
    main()
