"""Runs whose environments are stepped by runners on a local Ray cluster."""

from __future__ import annotations

import contextlib
import logging
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

import rlplug
from rlplug.config.scale_section import ScaleSection
from rlplug.errors import RequestError, RunFailedError
from rlplug.scale.cluster import connected, why_gone
from tests.scale_runs import (
    largest_difference,
    linucb_in_one_process_and,
    ppo,
    resumed_equals,
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


@pytest.mark.usefixtures("cluster")
def test_what_fails_in_a_runner_is_told_and_where(
    store_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_env.py").write_text(FAILING)
    with pytest.raises(RunFailedError) as raised:
        rlplug.run("ppo", "failing_env:Failing", options={"tracking.enabled": False, **RAY})
    said = str(raised.value)
    assert said.startswith(f"runner 0 on host {socket.gethostname()}: environment")
    assert "boom at step 3" in said


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


def open_and_close(section: ScaleSection) -> None:
    with connected(section):
        pass


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
        open_and_close(section)
    assert said in str(raised.value)
    assert time.monotonic() - began < 8


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


@pytest.mark.parametrize("greeting", [b"HTTP/1.0 400 Bad Request\r\n", b"HTTP"])
def test_an_address_at_which_something_else_answers_is_refused(greeting: bytes) -> None:
    with answering(greeting) as port:
        address = f"127.0.0.1:{port}"
        said = rf"^the Ray cluster at scale\.address = '{address}' cannot be reached \(.*not Ray"
        with pytest.raises(RequestError, match=rf"{said}.*\)\.\n  try: ray status on that host"):
            open_and_close(ScaleSection(engine="ray", address=address))


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
                open_and_close(ScaleSection(engine="ray", address=address))
    # Ray would warn of a cluster that this process starts without a token.
    assert logging.getLogger("ray").level == logging.ERROR
    tokens.reset_cache()
    assert str(raised.value).startswith(f"the Ray cluster at scale.address = {address!r} {said}")


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
    assert str(raised.value).endswith(
        "runners would have no effect with engine = 'local': add --scale ray\n  see: rlplug options"
    )


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
