"""Runs whose environments are stepped by runners on a local Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import rlplug
from rlplug.config.sections import ScaleSection
from rlplug.errors import RequestError
from rlplug.registry import Registry
from rlplug.runs.prepare import prepare
from rlplug.runs.rebuilding import job_of
from rlplug.runs.request import Request
from rlplug.runs.runners import Runner
from rlplug.scale.cluster import (
    _agree_on_tokens,
    _connect,
    _is_about_tokens,
    _reach,
    _sigterm_kept,
    connected,
    refuse_unmet,
    why_gone,
)
from tests.scale_runs import (
    blas_threads,
    largest_difference,
    linucb_in_one_process_and,
    ppo,
    resumed_equals,
    threads_per_process,
)

RAY = {"scale.engine": "ray", "scale.runner_cpus": 0.5}
VTRACE = {"advantages": "vtrace"}


@pytest.mark.usefixtures("cluster")
def test_one_runner_gives_bit_for_bit_what_this_process_gives_also_when_resumed(
    store_root: Path,
) -> None:
    resumed_equals(ppo(steps=1024, **{"run.max_updates": 6}), **RAY)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_linucb_over_two_runners_equals_one_process(store_root: Path) -> None:
    linucb_in_one_process_and(**RAY, **{"scale.runners": 2, "scale.max_staleness": 0})


@pytest.mark.usefixtures("cluster")
def test_v_trace_learns_from_collections_of_older_weights(store_root: Path) -> None:
    options = {"run.max_updates": 6, **VTRACE}
    newest = ppo(steps=1024, **options)
    older = ppo(steps=1024, **options, **RAY, **{"scale.max_staleness": 2})
    assert largest_difference(newest.module, older.module) > 1e-4


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_v_trace_corrects_for_collections_of_older_weights(store_root: Path) -> None:
    """One runner, two collections ahead: which weights act depends on no clock."""
    ahead = {**RAY, "scale.max_staleness": 2, "run.max_updates": 6}
    plain = ppo(steps=1024, **ahead)
    corrected, again = (ppo(steps=1024, **ahead, **VTRACE) for _ in range(2))
    assert largest_difference(corrected.module, again.module) == 0.0
    assert largest_difference(corrected.module, plain.module) > 1e-4


@pytest.mark.usefixtures("cluster")
def test_a_runner_that_dies_is_replaced_and_the_run_goes_on(
    store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not killed:
            if list(store_root.glob("work/*/checkpoints/step-*")):
                for one in psutil.Process().children(recursive=True):
                    if one.name().startswith("ray::Runner"):
                        one.kill()
                        killed.append(one.pid)
                        return
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one)
    killer.start()
    with caplog.at_level(logging.WARNING, "rlplug"):
        # Runners of replay are one collection ahead: those under way come from the next one.
        found = rlplug.run(
            "dqn",
            "CartPole-v1",
            steps=10_000,
            options={
                **RAY,
                "scale.runners": 2,
                "num_envs": 2,
                "train_freq": 50,
                "evaluation.episodes": 0,
                "checkpoint.every": 1000,
                "tracking.enabled": False,
            },
        )
    killer.join()
    assert killed
    assert found.step >= 10_000
    assert "died and is replaced; its episodes start anew (killed or crashed)." in caplog.text
    assert found.metrics["sampling/restarts"] == 1.0


def test_what_fails_in_a_runner_is_told_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_env.py").write_text(FAILING)
    flags = {"run": {"algorithm": "ppo", "env": "failing_env:Failing"}}
    job = job_of(prepare(Request(flags=flags), Registry.installed()), "failing_env:Failing")
    job |= {"runners": 1, "several": False, "threads": 1, "path": []}
    wanted = {"steps_per_collect": 8, "by_environment": True, "on_policy": True}

    def runner(**more: Any) -> Runner:
        return Runner({**job, "wanted": wanted, "stale": False, **more}, 0, life=0)

    elsewhere = runner().build()[1]
    assert elsewhere is not None
    assert elsewhere[0].startswith(f"runner 0 on host {socket.gethostname()}: environment")
    assert "cannot be imported: No module named 'failing_env'" in elsewhere[0]
    older = {**job["versions"], "plugin 'ppo'": "rlplug-ppo 0.0.1"}
    said = runner(versions=older).build()[1]
    assert said is not None
    assert "plugin 'ppo' is rlplug-ppo 0.1.0 on host" in said[0]
    assert "but rlplug-ppo 0.0.1 where the run was started" in said[0]
    monkeypatch.syspath_prepend(tmp_path)
    made = runner()
    with threads_per_process(2):
        assert made.build() == (None, None)
        assert (torch.get_num_threads(), blas_threads()) == (1, 1)
    assert made.start(None, None) == (None, None)
    weights = {name: one.numpy() for name, one in made._modules["default"].state_dict().items()}
    told, failed = made.collect(
        {"version": 0, "modules": {"default": weights}, "normalization": None}, 0, None
    )
    assert told is None
    assert failed is not None
    assert "boom at step 3" in failed[0]


def test_a_successor_steps_other_episodes_than_the_runner_before() -> None:
    flags = {"run": {"algorithm": "ppo", "env": "CartPole-v1", "seed": 3}}
    job = job_of(prepare(Request(flags=flags), Registry.installed()), "CartPole-v1")
    job |= {"runners": 1, "several": False, "threads": 1, "path": []}
    wanted = {"steps_per_collect": 8, "by_environment": True, "on_policy": True}

    def first(life: int, seed: int | None = None) -> list[float]:
        """The first observation."""
        made = Runner({**job, "wanted": wanted, "stale": False}, 0, life=life)
        assert made.build() == (None, None)
        assert made.start(seed, None) == (None, None)
        state = made._modules["default"].state_dict()
        weights = {"default": {name: one.numpy() for name, one in state.items()}}
        told, failed = made.collect(
            {"version": 0, "modules": weights, "normalization": None}, 0, None
        )
        made._stack.close()
        assert failed is None
        found: list[float] = told["experience"].columns["observations"][0].tolist()
        return found

    assert first(0) == first(0, 3)
    # Again those of the same successor, and each one's own.
    assert first(1) == first(1)
    assert first(0) != first(1) != first(2) != first(0)
    # Unless it is told which.
    assert first(1, 7) == first(0, 7) != first(0)


FAILING = """
from gymnasium.envs.classic_control import CartPoleEnv

class Failing(CartPoleEnv):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            raise ValueError("boom at step 3")
        return super().step(action)
"""


def refused(algorithm: Any = "ppo", env: Any = "CartPole-v1", **options: Any) -> str:
    with pytest.raises(RequestError) as raised:
        rlplug.run(
            algorithm, env, options={"num_envs": 2, "tracking.enabled": False, **RAY, **options}
        )
    return str(raised.value)


def test_without_ray_the_message_says_what_to_install(
    store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refused()
    assert said.startswith("scale.engine = 'ray' needs Ray, which cannot be imported")
    assert "pip install 'rlplug[ray]'" in said


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:9", "the Ray cluster at scale.address = '127.0.0.1:9' cannot be reached"),
        *(
            (address, f"scale.address = {address!r} is no address of a Ray cluster.")
            for address in ("nowhere", "nowhere:", ":6379", "ray://nowhere:x")
        ),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_refused_at_once(address: str, said: str) -> None:
    began = time.monotonic()
    section = ScaleSection(engine="ray", address=address)
    with pytest.raises(RequestError) as raised:
        _connect(None, section)
    assert said in str(raised.value)
    assert time.monotonic() - began < 8


def test_a_cluster_answers_at_once_whether_it_asks_for_a_token(cluster: str) -> None:
    host, _, port = cluster.rpartition(":")
    # It does where the person who started it has one.
    assert _reach(cluster, host, int(port)) in (True, False)
    # Asked before Ray was imported.
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


SETTINGS = bytes(3) + b"\x04" + bytes(5)
"""With which Ray greets a client."""


@contextlib.contextmanager
def answering(*parts: bytes, hangs_up: bool = False) -> Iterator[int]:
    """The port of a server that says this to its first client, then reads until that hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(ConnectionError):
                for part in parts:
                    connection.sendall(part)
                    # So that it is received by itself.
                    time.sleep(0.1)
                if hangs_up:
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(1000):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("silent", [False, True])
def test_a_cluster_need_not_say_whether_it_asks_for_a_token(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlplug.scale.cluster._REACH_SECONDS", 0.5)
    with answering(SETTINGS, hangs_up=not silent) as port:
        assert _reach(f"127.0.0.1:{port}", "127.0.0.1", port) is None


@pytest.mark.usefixtures("cluster")
def test_what_a_run_asks_for_is_compared_with_the_cluster_before_anything_starts() -> None:
    asked = ScaleSection(engine="ray", runner_cpus=1e6)
    for options, who in (({}, "1 runner"), ({"whole_runs": True}, "a run")):
        with (
            pytest.raises(RequestError, match=rf"^{who} with CPU 1e\+06 can never be placed: the "),
            connected(asked, **options),
        ):
            pass
    # The cluster goes on, which others have started.
    assert import_module("ray").is_initialized()


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [(b"HTTP/1.0 400 Bad Request\r\n", "not Ray"), (b"HTTP", "not Ray"), (b"", "timed out")],
)
def test_an_address_at_which_something_else_answers_is_refused(
    greeting: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlplug.scale.cluster._REACH_SECONDS", 0.5)
    with answering(greeting) as port:
        address = f"127.0.0.1:{port}"
        said = rf"^the Ray cluster at scale\.address = '{address}' cannot be reached \(.*{reason}"
        with pytest.raises(RequestError, match=rf"{said}.*\)\.\n  try: ray status on that host"):
            _connect(None, ScaleSection(engine="ray", address=address))


@pytest.mark.parametrize(
    ("status", "mode", "said"),
    [
        # Of a Ray whose own way to look for one is another.
        (b"\x0216", "other Ray", "asks for a token, and none was found here.\n  try: RAY_AUTH_T"),
        (b"\x0216", "disabled", "asks for a token, but RAY_AUTH_MODE is 'disabled'.\n  try: RAY_A"),
        (
            b"\x0216",
            None,
            "asks for a token, and none was found here.\n  try: RAY_AUTH_TOKEN_PATH=",
        ),
        (b"\x010", "token", "does not use tokens, but RAY_AUTH_MODE is 'token'.\n  try: RAY_AUTH_"),
    ],
)
def test_a_cluster_with_which_this_process_does_not_agree_on_tokens_is_refused_at_once(
    status: bytes, mode: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Ray 2.60 answers to the call of a client without a token."""
    tokens = import_module("ray._raylet").AuthenticationTokenLoader.instance()
    logging.getLogger("ray").setLevel(logging.NOTSET)
    with monkeypatch.context() as patch:
        for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(tmp_path))
        tokens.reset_cache()
        if mode == "other Ray":
            setup = "ray._private.authentication.authentication_token_setup"
            patch.setitem(sys.modules, setup, None)
        elif mode is not None:
            patch.setenv("RAY_AUTH_MODE", mode)

        answer = b"\x00\x00\x1e\x01\x05\x00\x00\x00\x01\x88@\x0bgrpc-status" + status
        with answering(SETTINGS, answer) as port:
            address = f"127.0.0.1:{port}"
            with pytest.raises(RequestError) as raised:
                _connect(None, ScaleSection(engine="ray", address=address))
    # Ray would warn of a cluster that this process starts without a token.
    assert logging.getLogger("ray").level == logging.ERROR
    tokens.reset_cache()
    assert str(raised.value).startswith(f"the Ray cluster at scale.address = {address!r} {said}")


def test_resources_that_can_never_be_met_are_named() -> None:
    nodes = [{"CPU": 2.0}, {"CPU": 4.0, "big": 1.0}]
    refuse_unmet(nodes, ScaleSection(engine="ray", runners=6))
    with pytest.raises(RequestError) as raised:
        refuse_unmet(nodes, ScaleSection(engine="ray", runners=3, runner_cpus=2.5))
    assert str(raised.value) == (
        "3 runners with CPU 2.5 each can never be placed: the cluster has CPU 6 on 2 nodes, room "
        "for 1.\n  try: --set scale.runners=1, or a smaller scale.runner_cpus"
    )
    with pytest.raises(RequestError, match=r"runners=1, or a smaller scale.runner_resources$"):
        refuse_unmet(nodes, ScaleSection(engine="ray", runners=2, runner_resources={"big": 1.0}))
    section = ScaleSection(engine="ray", runners=2, runner_resources={"big": 1.0}, runner_gpus=1)
    with pytest.raises(RequestError, match=r"CPU 1, GPU 1, big 1 each .* CPU 6, GPU 0, big 1 on 2"):
        refuse_unmet(nodes, section)


@pytest.mark.parametrize(
    ("options", "asked", "there", "lacking", "hint"),
    [
        (
            {"runner_gpus": 1},
            "CPU 1, GPU 1",
            "CPU 6, GPU 0",
            "GPU 1",
            "--set scale.runner_gpus=0",
        ),
        ({"runner_cpus": 5}, "CPU 5", "CPU 6", "CPU 5", "--set scale.runner_cpus=4"),
        (
            {"runner_resources": {"nix": 1.0}},
            "CPU 1, nix 1",
            "CPU 6, nix 0",
            "nix 1",
            "scale.runner_resources without nix",
        ),
        (
            {"runner_resources": {"big": 3.0}},
            "CPU 1, big 3",
            "CPU 6, big 2",
            "big 3",
            "scale.runner_resources with big = 2",
        ),
        # Each is there, but not on one node.
        (
            {"runner_cpus": 3, "runner_resources": {"big": 1.0}},
            "CPU 3, big 1",
            "CPU 6, big 2",
            "CPU 3, big 1",
            "a smaller scale.runner_cpus or scale.runner_resources",
        ),
    ],
)
def test_a_resource_of_which_no_node_has_enough_for_one_is_named(
    options: dict[str, Any], asked: str, there: str, lacking: str, hint: str
) -> None:
    nodes = [{"CPU": 2.0, "big": 2.0}, {"CPU": 4.0}]
    for who, whole_runs in (("1 runner", False), ("a run", True)):
        with pytest.raises(RequestError) as raised:
            refuse_unmet(nodes, ScaleSection(engine="ray", **options), whole_runs=whole_runs)
        assert str(raised.value) == (
            f"{who} with {asked} can never be placed: the cluster has {there} on 2 nodes, none "
            f"with {lacking}.\n  try: {hint}"
        )


def test_what_other_hosts_cannot_make_is_refused(store_root: Path) -> None:
    import gymnasium
    from rlplug_ppo import A2C

    said = refused(env=lambda: gymnasium.make("CartPole-v1"))
    assert "a run with 1 runner: the environment, a callable, was given as an object" in said
    assert "'package.module:function'" in said

    class FromANotebook(A2C): ...

    said = refused(FromANotebook)
    assert "a run with 1 runner: a plugin was given as an object of this process" in said
    assert "try: rlplug plugins new NAME for a plugin that is installed" in said


def test_options_that_do_not_fit_are_refused(store_root: Path) -> None:
    assert "sampling.num_envs = 2 cannot be shared equally by 3 runners" in refused(
        **{"scale.runners": 3}
    )
    assert "scale.runners × envs_per_runner = 4 is not sampling.num_envs = 2" in refused(
        **{"scale.envs_per_runner": 4}
    )
    with pytest.raises(RequestError) as raised:
        rlplug.run("ppo", "CartPole-v1", options={"scale.runners": 2})
    said = "runners would have no effect with engine = 'local': add --scale ray"
    assert said in str(raised.value)


def test_what_ray_says_of_an_actor_that_is_gone_is_told_in_short() -> None:
    import ray

    lost = ray.exceptions.ActorUnavailableError(
        "RpcError: RPC error: Socket closed rpc_code: 14", None
    )
    assert why_gone(ray, lost) == "it cannot be reached"
    left = "The actor died because its node has died. Node Id: 0ab, Ip address: 10.0.0.2, Port: 7."
    assert why_gone(ray, ray.exceptions.RayError(left)) == "its node has left"
    crashed = "The worker died. Worker exits with an exit code 3. Worker exit type: SYSTEM_ERROR"
    assert why_gone(ray, ray.exceptions.RayError(crashed)) == "exit code 3"
    assert why_gone(ray, ray.exceptions.ObjectLostError("0ab", None, "")) == "what it sent is lost"


def test_a_connection_without_a_fault_of_tokens_is_told_as_it_is(cluster: str) -> None:
    """A process that is connected already is refused by Ray itself."""
    ray = import_module("ray")
    for address, where in ((cluster, cluster), ("", "a local cluster")):
        said = rf"^Ray cannot be reached at {where}: .*ray.init"
        with pytest.raises(RequestError, match=said):
            _connect(ray, ScaleSection(engine="ray", address=address))


def test_faults_of_tokens_are_found_in_what_an_error_comes_from() -> None:
    class AuthenticationError(Exception):
        """Named as Ray's own."""

    assert not _is_about_tokens(None)
    assert not _is_about_tokens(RuntimeError("gone"))
    assert _is_about_tokens(AuthenticationError("no"))
    assert _is_about_tokens(RuntimeError("InvalidAuthToken: what was given"))
    caused, beside = RuntimeError("gone"), RuntimeError("gone")
    caused.__cause__, beside.__context__ = AuthenticationError("no"), AuthenticationError("no")
    assert _is_about_tokens(caused)
    assert _is_about_tokens(beside)


def test_who_agrees_on_tokens_with_a_cluster_is_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for mode, wants in (("token", True), ("TOKEN", True), ("disabled", False), (None, False)):
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        if mode is not None:
            monkeypatch.setenv("RAY_AUTH_MODE", mode)
        _agree_on_tokens("host:1", wants)
        assert os.environ.get("RAY_AUTH_MODE") == mode


@pytest.mark.parametrize("value", ["1", "True"])
def test_a_cluster_behind_tls_is_only_connected_to(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USE_TLS", value)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert _reach(f"127.0.0.1:{port}", "127.0.0.1", port) is None
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1000) == b""


def test_a_thread_that_cannot_set_handlers_keeps_none() -> None:
    ran = []

    def connect() -> None:
        with _sigterm_kept():
            ran.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    assert ran == [before] == [signal.getsignal(signal.SIGTERM)]
