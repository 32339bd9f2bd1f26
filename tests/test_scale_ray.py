"""Runs on a local Ray cluster: runners, and what a cluster can hold."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

import rlplug
from rlplug.config.sections import ScaleSection
from rlplug.errors import EnvironmentFailedError, RequestError
from rlplug.scale.cluster import connected, learner_resources, refuse_unmet, why_gone
from tests.scale_runs import largest_difference, linucb_in_one_process_and, ppo, resumed_equals

# -- scale ray -------------------------------------------------------------------------------------


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
    with pytest.raises(EnvironmentFailedError) as raised:
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
    """Connect as a process that is connected to no cluster yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.is_initialized", lambda: False)
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
def answering(*parts: bytes) -> Iterator[int]:
    """The port of a server that says this to its first client, then reads until that hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(ConnectionError):
                for part in parts:
                    connection.sendall(part)
                    # So that it is received by itself.
                    time.sleep(0.1)
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
    status: bytes,
    mode: str | None,
    said: str,
    shared_cluster: contextlib.ExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What Ray 2.60 answers to the call of a client without a token."""
    # A process that is connected to a cluster ends where its tokens change.
    shared_cluster.close()
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
    assert "other processes cannot make what was given as an object" in said

    class FromANotebook(A2C): ...

    said = refused(FromANotebook)
    assert "other processes cannot make what was given as an object" in said


def test_options_that_do_not_fit_are_refused(store_root: Path) -> None:
    assert "sampling.num_envs = 2 cannot be shared equally by 3 runners" in refused(
        **{"scale.runners": 3}
    )
    assert "scale.runners × envs_per_runner = 4 is not sampling.num_envs = 2" in refused(
        **{"scale.envs_per_runner": 4}
    )
    with pytest.raises(RequestError) as raised:
        rlplug.run("ppo", "CartPole-v1", options={"scale.runners": 2})
    said = "runners would have no effect with engine = 'local': add --runners N"
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


# -- scale resources -------------------------------------------------------------------------------


def section(**options: Any) -> ScaleSection:
    return ScaleSection(engine="ray", **options)


def unmet(nodes: Sequence[Mapping[str, float]], **options: Any) -> str:
    with pytest.raises(RequestError) as raised:
        refuse_unmet(nodes, section(**options))
    return str(raised.value)


def ways(count: int, places: int) -> Iterator[tuple[int, ...]]:
    """All ways to put so many alike things into places."""
    for cuts in itertools.combinations(range(count + places - 1), places - 1):
        ends = (-1, *cuts, count + places - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(ends))


def can_be_placed(nodes: Sequence[Mapping[str, int]], asked: Mapping[str, Any]) -> bool:
    """By trying all: one of several learners is on the first node."""
    runner = {"CPU": asked["runner_cpus"], **asked["runner_resources"]}
    learner = {"CPU": asked["learner_cpus"]} if asked["learners"] > 1 else {}
    learners = asked["learners"] if learner else 0
    for put in ways(learners, len(nodes)):
        if learners and not put[0]:
            continue
        for placed in ways(asked["runners"], len(nodes)):
            if all(
                count * learner.get(name, 0) + others * runner.get(name, 0) <= node.get(name, 0)
                for node, count, others in zip(nodes, put, placed, strict=True)
                for name in {*runner, *learner}
            ):
                return True
    return False


def test_what_can_be_placed_in_some_way_and_nothing_else_is_accepted() -> None:
    drawn = random.Random(3)
    answers = []
    for _ in range(300):
        nodes = [
            {"CPU": drawn.randint(0, 7), "big": drawn.randint(0, 3)}
            for _ in range(drawn.randint(1, 3))
        ]
        asked: dict[str, Any] = {
            "runners": drawn.randint(1, 4),
            "runner_cpus": drawn.randint(1, 3),
            "runner_resources": {"big": drawn.randint(1, 2)} if drawn.random() < 0.3 else {},
            "learners": drawn.randint(1, 3),
            "learner_cpus": 1,
        }
        if asked["learners"] > 1:
            asked["learner_cpus"] = drawn.randint(0, 2)
        possible = can_be_placed(nodes, asked)
        answers.append(possible)
        with contextlib.nullcontext() if possible else pytest.raises(RequestError):
            refuse_unmet(nodes, section(**asked))
    assert 80 < sum(answers) < 240


def test_runners_that_reserve_nothing_fit_everywhere() -> None:
    refuse_unmet([{}], section(runners=1000, runner_cpus=0))
    refuse_unmet([{"CPU": 2.0}], section(runners=50, runner_cpus=0, learners=2))
    assert learner_resources(section(learners=2, learner_cpus=0)) == {}


def test_amounts_are_counted_in_ten_thousandths() -> None:
    # In floats, 3 · 0.1 is more than 0.3, and 0.3 / 0.1 less than 3.
    refuse_unmet([{"CPU": 0.3}], section(runners=3, runner_cpus=0.1))
    assert "room for 2" in unmet([{"CPU": 0.299}], runners=3, runner_cpus=0.1)


TWO = [{"CPU": 2.0, "big": 2.0}, {"CPU": 4.0}]
FIRST = [{"CPU": 1.0, "fast": 1.0}, {"CPU": 8.0, "fast": 8.0}]


@pytest.mark.parametrize(
    ("nodes", "options", "said", "hint"),
    [
        (TWO, {"runner_gpus": 1}, "CPU 1, GPU 1 can never", "--set scale.runner_gpus=0"),
        (TWO, {"runner_cpus": 5}, "CPU 6 on 2 nodes, none with CPU 5", "scale.runner_cpus=4"),
        (TWO, {"runner_resources": {"nix": 1.0}}, "none with nix 1", "without nix"),
        (TWO, {"runner_resources": {"big": 3.0}}, "none with big 3", "with big = 2"),
        # Each is there, but not on one node.
        (
            TWO,
            {"runner_cpus": 3, "runner_resources": {"big": 1.0}},
            "none with CPU 3, big 1",
            "a smaller scale.runner_cpus or scale.runner_resources",
        ),
        (TWO, {"runners": 3, "runner_cpus": 2.5}, "3 runners with CPU 2.5 each", "runners=1, or"),
        (TWO, {"runners": 5, "runner_cpus": 2.0}, "room for 3", "scale.runners=3, or"),
        # The first learner is in this process, on the first node.
        (
            FIRST,
            {"learners": 2, "learner_cpus": 2.0, "learner_resources": {"fast": 1.0}},
            "the first learner is in this process, whose node has CPU 1, fast 1",
            "scale.learner_cpus=1",
        ),
        (
            FIRST,
            {"learners": 2, "learner_resources": {"fast": 2.0}},
            "no room for CPU 1, fast 2",
            "scale.learner_resources with fast = 1",
        ),
        (
            [{"CPU": 2.0, "GPU": 1.0}],
            {"learners": 2, "learner_gpus": 0.5},
            "2 learners with CPU 1, GPU 0.5 each and 1 runner with CPU 1 can never be placed tog",
            "scale.learner_gpus",
        ),
    ],
)
def test_what_can_never_be_placed_is_named_with_what_to_ask_for(
    nodes: Any, options: dict[str, Any], said: str, hint: str
) -> None:
    told = unmet(nodes, **options)
    assert said in told
    assert hint in told.partition("try: ")[2]


def test_several_runs_that_are_placed_as_a_whole_are_called_runs() -> None:
    with pytest.raises(RequestError, match=r"^a run with CPU 3 can never be placed"):
        refuse_unmet([{"CPU": 2.0}], section(runner_cpus=3), whole_runs=True)
