"""Runs on an existing Ray cluster of several nodes: raylets on this machine."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import rlplug
from rlplug.errors import RequestError
from tests.scale_runs import PPO

SMALL = {"object_store_memory": 100 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, where this process is."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={**SMALL, "num_cpus": 0}
    )
    yield made
    made.shutdown()


def test_a_run_survives_a_node_that_leaves_and_uses_one_that_joins(
    cluster: Any, store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leaving, staying = (cluster.add_node(**SMALL, num_cpus=1) for _ in range(2))
    options = {
        **PPO,
        "scale.engine": "ray",
        "scale.address": cluster.address,
        "scale.runners": 2,
        "scale.max_restarts": 10,
    }
    # Nodes can only be started in the main thread.
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING, "rlplug"):
        run = pool.submit(rlplug.run, "ppo", "CartPole-v1", steps=10_000, options=options)
        while not list(store_root.glob("work/*/checkpoints/step-*")):
            assert not run.done(), run.result()
            time.sleep(0.02)
        cluster.remove_node(leaving, allow_graceful=False)
        joining = cluster.add_node(**SMALL, num_cpus=1)
        found = run.result(timeout=120)
    assert found.step >= 10_000
    assert found.metrics["sampling/restarts"] >= 1.0
    assert "died and is replaced; its episodes start anew" in caplog.text
    # The node that stayed has room for one runner: the other one was on that which joined.
    cluster.remove_node(joining)
    with pytest.raises(RequestError, match=r"2 runners with CPU 1 each can never be placed: .*"):
        rlplug.run("ppo", "CartPole-v1", options=options)
    cluster.remove_node(staying)


def test_a_plugin_of_another_version_on_a_node_is_refused_with_host_and_both_versions(
    cluster: Any, store_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "rlplug_ppo-9.9.dist-info").mkdir()
    about = tmp_path / "rlplug_ppo-9.9.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rlplug-ppo\nVersion: 9.9\n")
    (about / "entry_points.txt").write_text("[rlplug.algorithms]\nppo = rlplug_ppo:PPO\n")
    node = cluster.add_node(**SMALL, num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path)})
    options = {**PPO, "scale.engine": "ray", "scale.address": cluster.address}
    with pytest.raises(RequestError) as raised:
        rlplug.run("ppo", "CartPole-v1", steps=128, options=options)
    said = str(raised.value)
    assert said.startswith("runner 0 on host ")
    assert "plugin 'ppo' is rlplug-ppo 9.9 on host" in said
    assert "but rlplug-ppo 0.1.0 where the run was started" in said
    cluster.remove_node(node)
