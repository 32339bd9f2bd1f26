"""Runs on an existing Ray cluster of several nodes: raylets on this machine."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

import rlplug
from rlplug.errors import RequestError
from tests.scale_runs import PPO

# Each node is four processes. `test_scale_ray_sampler.py` has runners that wait for a place, and
# `test_scale_ray.py` a runner with another version of a plugin, without a second node.
pytestmark = pytest.mark.long

SMALL = {"object_store_memory": 100 * 2**20, "include_dashboard": False}

LASTING = """
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

class Lasting(CartPoleEnv):
    def step(self, action):
        enough = Path(__file__).with_name("enough").exists()
        seen, _, *rest = super().step(action)
        return seen, 1000.0 if enough else 1.0, *rest
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose modules the nodes find."""
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def cluster(site: Path, shared_cluster: ExitStack) -> Iterator[Any]:
    """A head without CPUs, where this process is; that it has GPUs is only said."""
    shared_cluster.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # How often nodes are asked if they are there; five times in vain, and they have left.
        patch.setenv("RAY_health_check_initial_delay_ms", "1000")
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        made = import_module("ray.cluster_utils").Cluster(
            initialize_head=True, head_node_args={**SMALL, "num_cpus": 0, "num_gpus": 2}
        )
        yield made
        made.shutdown()


def runners_on(node: Any) -> int:
    """The processes of runners on a node."""
    (raylet,) = node.all_processes["raylet"]
    names = [one.name() for one in psutil.Process(raylet.process.pid).children(recursive=True)]
    return len([name for name in names if name.startswith("ray::Runner")])


def test_a_runner_whose_node_leaves_goes_on_beside_another_and_moves_to_a_node_that_joins(
    cluster: Any,
    site: Path,
    store_root: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlplug.scale.ray_sampler._ROOM_SECONDS", 2.0)
    monkeypatch.syspath_prepend(str(site))
    (site / "lasting_env.py").write_text(LASTING)
    leaving, staying = (cluster.add_node(**SMALL, num_cpus=1) for _ in range(2))
    options = {
        **PPO,
        "scale.engine": "ray",
        "scale.address": cluster.address,
        "scale.runners": 2,
        "run.stop_when": "rollout/return_mean > 900",
    }

    def saved() -> int:
        """The step of the newest checkpoint."""
        found = store_root.glob("work/*/checkpoints/step-*")
        return max((int(one.name.removeprefix("step-")) for one in found), default=0)

    # Nodes can only be started in the main thread.
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING, "rlplug"):
        run = pool.submit(
            rlplug.run, "ppo", "lasting_env:Lasting", steps=10_000_000, options=options
        )

        def wait_until(is_so: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 120
            while not is_so():
                assert not run.done(), run.result()
                assert time.monotonic() < deadline, caplog.text
                time.sleep(0.02)

        try:
            wait_until(lambda: saved() > 0)
            cluster.remove_node(leaving, allow_graceful=False)
            wait_until(lambda: "goes on beside another until there is" in caplog.text)
            before = saved()
            wait_until(lambda: saved() >= before + 512)
            assert runners_on(staying) == 2
            joining = cluster.add_node(**SMALL, num_cpus=1)
            wait_until(lambda: "has a place of its own again." in caplog.text)
            before = saved()
            wait_until(lambda: saved() >= before + 512)
            assert (runners_on(staying), runners_on(joining)) == (1, 1)
        finally:
            (site / "enough").touch()
        found = run.result(timeout=120)
    assert "died and is replaced; its episodes start anew (it" in caplog.text
    assert "RpcError" not in caplog.text
    assert found.stopped.startswith("rollout/return_mean = ")
    assert found.metrics["sampling/restarts"] >= 1.0
    with pytest.raises(RequestError, match=r"CPU 2 each can never be placed: .* CPU 2 on 3 nodes"):
        rlplug.run("ppo", "CartPole-v1", options={**options, "scale.runner_cpus": 2.0})
    for node in (joining, staying):
        cluster.remove_node(node)


def test_a_plugin_that_a_node_lacks_or_has_in_another_version_is_refused_with_its_host(
    cluster: Any, store_root: Path, tmp_path: Path
) -> None:
    about = tmp_path / "rlplug_ppo-9.9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rlplug-ppo\nVersion: 9.9\n")
    # What was installed also has a2c; this version hides it.
    (about / "entry_points.txt").write_text("[rlplug.algorithms]\nppo = rlplug_ppo:PPO\n")
    node = cluster.add_node(
        **SMALL, num_cpus=1, resources={"odd": 1}, env_vars={"PYTHONPATH": str(tmp_path)}
    )
    options = {
        "tracking.enabled": False,
        "scale.engine": "ray",
        "scale.address": cluster.address,
        "scale.runner_resources": {"odd": 1.0},
    }

    def refused(algorithm: str) -> str:
        with pytest.raises(RequestError) as raised:
            rlplug.run(algorithm, "CartPole-v1", steps=128, options=options)
        said = str(raised.value)
        assert said.startswith("runner 0 on host ")
        return said

    said = refused("ppo")
    assert "plugin 'ppo' is rlplug-ppo 9.9 on host" in said
    assert "but rlplug-ppo 0.1.0 where the run was started" in said
    assert "'a2c'" in refused("a2c")
    cluster.remove_node(node)
