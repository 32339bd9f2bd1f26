"""`rlplug serve`: a policy behind HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from rlplug import Acted, Module, Policy
from rlplug.serving.description import latency, sampled_observations, space_as_json
from rlplug.serving.server import LARGEST_BODY, PolicyServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Outcome

ROW = spaces.Box(0, 100, (3,), numpy.float32)
Answer = tuple[int, dict[str, Any]]


class Sum(Module):
    """Chooses the sum of what it sees, or the first allowed action; explores by choosing 7."""

    def forward_inference(self, act: Any) -> Acted:
        if act.action_mask is not None:
            return Acted(act.action_mask.argmax(1))
        leaves = act.observations
        if isinstance(leaves, dict):
            leaves = leaves["a"], *leaves["b"]
        if isinstance(leaves, tuple):
            leaves = numpy.concatenate([part.reshape(len(part), -1) for part in leaves], 1)
        return Acted(leaves.reshape(len(leaves), -1).sum(1).astype(numpy.int64))

    def forward_exploration(self, act: Any) -> Acted:
        return Acted(numpy.full(len(act.observations), 7))


class Clock(Module):
    """Chooses how many steps of the episode it remembers."""

    def initial_state(self, n: int) -> Any:
        return {"steps": torch.zeros(n, 1, dtype=torch.int64)}

    def forward_inference(self, act: Any) -> Acted:
        return Acted(act.state["steps"][:, 0], state={"steps": act.state["steps"] + 1})


class Failing(Module):
    """Raises what no policy should."""

    def forward_inference(self, act: Any) -> Acted:
        raise ZeroDivisionError("division by zero")


class Client:
    """One connection that is kept."""

    def __init__(self, server: PolicyServer) -> None:
        self.server = server
        self.connection = http.client.HTTPConnection(*server.socket.getsockname(), timeout=30)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        text = body if isinstance(body, str | bytes | None) else json.dumps(body)
        self.connection.request(method, path, text, headers)
        answer = self.connection.getresponse()
        assert answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(answer.read() or b"{}")

    def act(self, **fields: Any) -> Any:
        status, answer = self.ask("POST", "/act", fields)
        assert status == 200, answer
        return answer

    def refused(self, body: Any) -> str:
        status, answer = self.ask("POST", "/act", body)
        assert status == 400
        assert answer["error"].startswith("POST /act: ")
        assert answer["try"]
        return str(answer["error"])


Serve = Callable[..., Client]


@pytest.fixture
def serving() -> Iterator[Serve]:
    """Serve a policy on a free port: `serving(policy)` is a client."""
    servers: list[PolicyServer] = []
    clients: list[Client] = []

    def serve(policy: Policy, **more: Any) -> Client:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        server = PolicyServer(bound, policy, {"step": 5}, **more)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        clients.append(Client(server))
        return clients[-1]

    yield serve
    for client in clients:
        client.connection.close()
    for server in servers:
        server.shutdown()
        server.server_close()


def policy(space: Any = ROW, module: Module | None = None, **more: Any) -> Policy:
    return Policy(module or Sum(), space, more.pop("actions", spaces.Discrete(4)), **more)


def test_one_observation_gives_one_action_and_a_list_gives_as_many(serving: Serve) -> None:
    client = serving(policy())
    assert client.act(observation=[1, 2, 3]) == {"action": 6}
    assert client.act(observations=[[1, 2, 3]]) == {"actions": [6]}
    assert client.act(observations=[[1, 2, 3], [4, 5, 6]]) == {"actions": [6, 15]}
    assert client.act(observation=[1, 2, 3], deterministic=False) == {"action": 7}


def test_dict_spaces_are_objects_and_tuple_spaces_lists(serving: Serve) -> None:
    client = serving(policy(spaces.Dict(a=ROW, b=spaces.Tuple((ROW, ROW)))))
    one = {"a": [1, 0, 0], "b": [[2, 0, 0], [3, 0, 0]]}
    other = {"a": [10, 0, 0], "b": [[20, 0, 0], [30, 0, 0]]}
    assert client.act(observation=one) == {"action": 6}
    assert client.act(observations=[one, other]) == {"actions": [6, 60]}
    assert "observations[1] must be an object with the keys a, b" in client.refused(
        {"observations": [one, {"a": [1, 0, 0]}]}
    )
    assert "observations[...]['b'][0] must be a list of 2 parts" in client.refused(
        {"observations": [{"a": [1, 0, 0], "b": []}]}
    )


def test_several_tuples_are_told_from_one_by_their_first_part(serving: Serve) -> None:
    client = serving(policy(spaces.Tuple((ROW, spaces.Box(-9, 9, (2, 3))))))
    one = [[1, 2, 3], [[0, 0, 0], [0, 0, 1]]]
    assert client.act(observation=one) == {"action": 7}
    told = client.refused({"observation": [one, one]})
    assert "observation holds several observations" in told


def test_a_mask_comes_beside_each_observation(serving: Serve) -> None:
    client = serving(policy())
    assert client.act(observation=[0, 0, 0], action_mask=[0, 0, 1, 0]) == {"action": 2}
    masks = [[False, True, True, False], [False, False, False, True]]
    assert client.act(observations=[[0, 0, 0]] * 2, action_masks=masks) == {"actions": [1, 3]}


def test_a_mask_may_come_beside_observations_of_several_parts(serving: Serve) -> None:
    parts = spaces.Dict(near=ROW, far=ROW)
    client = serving(policy(parts))
    seen = {"near": [0, 0, 0], "far": [1, 1, 1]}
    assert client.act(observation=seen, action_mask=[0, 1, 1, 0]) == {"action": 1}


def test_a_session_keeps_recurrent_state_until_reset(serving: Serve) -> None:
    client = serving(policy(module=Clock()))
    said = [client.act(observation=[0, 0, 0], session="a") for _ in range(2)]
    assert said == [{"action": 0, "new_session": True}, {"action": 1, "new_session": False}]
    assert client.act(observation=[0, 0, 0], session="b")["action"] == 0
    assert client.act(observation=[0, 0, 0], session="a", reset=True)["action"] == 0
    # Without a session, every request begins an episode.
    assert [client.act(observation=[0, 0, 0])["action"] for _ in range(2)] == [0, 0]
    rows = {"observations": [[0, 0, 0]] * 2, "session": "two"}
    assert client.act(**rows)["actions"] == [0, 0]
    assert client.act(**rows, reset=[False, True])["actions"] == [1, 0]
    assert "remembers 2 episodes, and got 1" in client.refused(
        {"observation": [0, 0, 0], "session": "two"}
    )


def test_a_session_keeps_frames(serving: Serve) -> None:
    client = serving(policy(spaces.Box(0, 100, (3, 2), numpy.float32), frame_stack=3))
    said = [client.act(observation=[n, n], session="a")["action"] for n in (1, 2, 5)]
    assert said == [6, 8, 16]
    assert client.act(observation=[5, 5])["action"] == 30


def test_the_session_unused_for_longest_is_forgotten_and_its_caller_is_told(
    serving: Serve,
) -> None:
    client = serving(policy(module=Clock()), most_sessions=2)
    for session in ("a", "b", "a", "c"):
        client.act(observation=[0, 0, 0], session=session)
    assert client.ask("GET", "/info")[1]["sessions"] == {"open": 2, "evicted": 1}
    assert client.act(observation=[0, 0, 0], session="a") == {"action": 2, "new_session": False}
    assert client.act(observation=[0, 0, 0], session="b") == {"action": 0, "new_session": True}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("hello", "the body is not JSON"),
        (b"\xff\xfe", "the body is not JSON"),
        ("[" * 100_000, "the body is not JSON"),
        ("", "the body is empty"),
        ([1], "must be a JSON object, found a list"),
        ({}, "expected observation or observations, found neither"),
        ({"observation": [0, 0, 0], "observations": []}, "found both"),
        ({"observaton": [0, 0, 0]}, "unknown field 'observaton'. Did you mean 'observation'?"),
        ({"observation": [0, 0]}, "has shape (2,), expected (3,)"),
        ({"observation": [[0, 0, 0]]}, "holds several observations"),
        ({"observations": [0, 0, 0]}, "have shape () each, expected (3,)"),
        ({"observations": [[0, 0, 0], [0]]}, "differ in shape"),
        ({"observations": []}, "found an empty list"),
        ('{"observation": [NaN, 0, 0]}', "holds NaN, which is no number of JSON"),
        ('{"observation": [1e999, 0, 0]}', "not finite"),
        ({"observation": [1e300, 0, 0]}, "not finite"),
        ({"observation": [10**400, 0, 0]}, "cannot be read as float32"),
        ({"observation": ["1", 0, 0]}, "holds text, '1'"),
        ({"observation": {"a": 1}}, "cannot be read as float32"),
        ({"observation": [0, 0, 0], "deterministic": 1}, "must be true or false, found a number"),
        ({"observation": [0, 0, 0], "session": 7}, "session must be text, found a number"),
        ({"observation": [0, 0, 0], "session": "x" * 201}, "session has 201 characters"),
        ({"observation": [0, 0, 0], "reset": [True]}, "reset must be true or false, found a list"),
        ({"observations": [[0, 0, 0]], "reset": [1]}, "reset must hold nothing but true and false"),
        ({"observation": [0, 0, 0], "action_mask": [0] * 4}, "forbids every action"),
        ({"observation": [0, 0, 0], "action_mask": [1]}, "action_mask must be a list of 4"),
        ({"observation": [0, 0, 0], "action_mask": [2] * 4}, "action_mask must be a list of 4"),
        ({"observation": [0, 0, 0], "action_mask": ["a"] * 4}, "action_mask must be a list of 4"),
        ({"observation": [0, 0, 0], "action_masks": [[1] * 4]}, "action_masks does not go with"),
    ],
)
def test_wrong_input_is_answered_with_what_was_found_and_the_connection_goes_on(
    serving: Serve, body: Any, said: str
) -> None:
    client = serving(policy())
    assert said in client.refused(body)
    assert client.act(observation=[1, 2, 3]) == {"action": 6}


def test_the_longest_session_and_the_largest_body_are_accepted(serving: Serve) -> None:
    client = serving(policy(), largest_body=400)
    body = json.dumps({"observation": [1, 2, 3], "session": "x" * 200})
    assert client.ask("POST", "/act", body + " " * (400 - len(body))) == (200, {"action": 6})
    assert client.ask("POST", "/act", body + " " * (401 - len(body)))[0] == 413


def test_a_mask_for_actions_without_choices_is_refused(serving: Serve) -> None:
    client = serving(policy(actions=spaces.Box(-1, 1, (2,), numpy.float32)))
    assert "cannot use a mask" in client.refused({"observation": [0, 0, 0], "action_mask": [1, 1]})


def test_other_paths_methods_and_sizes_have_their_own_status(serving: Serve) -> None:
    client = serving(policy(), largest_body=100)
    assert client.ask("GET", "/acts") == (
        404,
        {"error": "there is no /acts.", "try": "did you mean '/act'?"},
    )
    status, answer = client.ask("GET", "/act")
    assert (status, answer["try"]) == (405, "POST /act")
    assert client.ask("DELETE", "/health")[0] == 405
    assert client.ask("BREW", "/health")[0] == 405
    assert client.ask("POST", "/act", " " * 101)[0] == 413
    assert client.ask("POST", "/act", "{}", **{"Transfer-Encoding": "chunked"})[0] == 411
    assert client.ask("GET", "/health") == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("POST /act HTTP/1.1", "Transfer-Encoding: chunked", 411),
        ("POST /act HTTP/1.1", "Content-Length: nine", 400),
        ("POST /act HTTP/1.1", f"Content-Length: {LARGEST_BODY + 1}", 413),
        ("BREW /act HTTP/1.1", "Content-Length: 0", 405),
    ],
)
def test_a_connection_is_closed_where_what_follows_cannot_be_told_from_a_body(
    serving: Serve, request_line: str, headers: str, status: int
) -> None:
    server = serving(policy()).server
    with socket.create_connection(server.socket.getsockname(), timeout=30) as connection:
        connection.sendall(f"{request_line}\r\n{headers}\r\n\r\n".encode())
        answer = b""
        # Until the server closes it, which is at once.
        while more := connection.recv(4096):
            answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"\r\nConnection: close" in head
    assert json.loads(body)["error"]


def test_other_methods_are_answered_with_those_that_are_allowed(serving: Serve) -> None:
    connection = serving(policy()).connection
    for method, path, allowed in (("GET", "/act", "POST"), ("POST", "/health", "GET, HEAD")):
        connection.request(method, path)
        answer = connection.getresponse()
        answer.read()
        assert (answer.status, answer.headers["Allow"]) == (405, allowed)


@pytest.mark.parametrize(("family", "host"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "[::1]")])
def test_the_url_of_a_server_has_brackets_where_it_must(family: str, host: str) -> None:
    bound = socket.socket(getattr(socket, family))
    try:
        bound.bind((host.strip("[]"), 0))
    except OSError:
        pytest.skip(f"this host has no {family}")
    server = PolicyServer(bound, policy(), {})
    assert server.url == f"http://{host}:{bound.getsockname()[1]}"
    server.server_close()


def test_the_largest_body_has_32_mebibytes() -> None:
    assert LARGEST_BODY == 2**25


def test_only_errors_of_ours_are_logged(serving: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serving(policy()).server
    for error in (ConnectionResetError("left"), BrokenPipeError("left"), ValueError("odd")):
        try:
            raise error
        except Exception:
            server.handle_error(None, ("127.0.0.1", 1))
    assert caplog.messages == ["rlplug serve: ValueError: odd"]


def test_a_policy_that_fails_is_answered_without_a_traceback(
    serving: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    client = serving(policy(module=Failing()))
    status, answer = client.ask("POST", "/act", {"observation": [0, 0, 0]})
    assert (status, answer["error"]) == (
        500,
        "the policy failed: ZeroDivisionError: division by zero",
    )
    assert caplog.messages == ["rlplug serve: ZeroDivisionError: division by zero"]


def test_many_clients_at_once_get_each_their_own_answer(serving: Serve) -> None:
    server = serving(policy(module=Clock())).server

    def steps(name: int) -> list[int]:
        client = Client(server)
        given = {"observation": [0, 0, 0], "session": str(name)}
        try:
            return [client.act(**given)["action"] for _ in range(20)]
        finally:
            client.connection.close()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(steps, range(8))) == [list(range(20))] * 8


def test_a_space_as_json_has_no_infinite_numbers() -> None:
    space = spaces.Dict(
        a=spaces.Box(
            numpy.array([-1, -numpy.inf]), numpy.array([1, numpy.inf]), dtype=numpy.float64
        ),
        b=spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 3]))),
        c=spaces.Box(0, 255, (4, 4), numpy.uint8),
    )
    described = json.loads(json.dumps(space_as_json(space), allow_nan=False))
    assert described["parts"]["a"]["low"] == [-1.0, None]
    assert described["parts"]["b"]["parts"][0]["start"] == 1
    assert described["parts"]["c"]["high"] == 255.0


def test_latency_is_measured_on_observations_of_the_space_whose_masks_allow_everything() -> None:
    space = spaces.Dict(seen=ROW, action_mask=spaces.MultiBinary(4))
    space.seed(3)
    expected = space.sample()
    space.seed(3)
    assert sampled_observations(space, 5)["action_mask"].all()
    # Who owns the space draws from it as before.
    assert data_equivalence(space.sample(), expected)
    measured = latency(policy(space), 2, calls=10)
    assert 0 < measured["p50_ms"] <= measured["p99_ms"]


def test_latency_is_that_of_one_prediction_after_twenty_that_are_not_counted() -> None:
    class Slow(Sum):
        calls = 0

        def forward_inference(self, act: Any) -> Acted:
            self.calls += 1
            time.sleep(0.2 if self.calls == 20 else 0.002)
            return super().forward_inference(act)

    acts = policy(module=Slow())
    measured = latency(acts, calls=1)
    assert acts.module.calls == 21
    # Sleeps do not end early; the one of 200 ms was the last that is not counted.
    assert 2 <= measured["p50_ms"] == measured["p99_ms"] < 200


# -- the command --------------------------------------------------------------------------------


def test_a_run_is_served_by_its_process_until_it_is_told_to_end(
    rlplug: Callable[..., Outcome], store_root: Path
) -> None:
    trained = rlplug("run", "--algo", "linucb", "--steps", "40", "--quiet")
    assert trained.code == 0, trained.err
    process = subprocess.Popen(
        [sys.executable, "-m", "rlplug", "serve", "last", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RLPLUG_HOME": str(store_root)},
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["step"], ready["algorithm"], ready["stateful"]) == (40, "linucb", False)
        port = int(ready["url"].rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/info")
        info = json.loads(connection.getresponse().read())
        assert info["latency"]["64"]["p50_ms"] > 0
        assert info["trained_with"]["linucb"].startswith("rlplug-linucb ")
        shape = info["observation_space"]["shape"]
        observation = numpy.ones(shape).tolist()
        connection.request("POST", "/act", json.dumps({"observation": observation}))
        answer = json.loads(connection.getresponse().read())
        assert 0 <= answer["action"] < info["action_space"]["n"]
        # The connection stays: it does not keep the process from ending.
        taken = rlplug("serve", "last", "--port", str(port))
        assert taken.code == 2
        assert f"cannot listen on 127.0.0.1:{port}" in taken.err
        assert "loading" not in taken.err
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        assert "Traceback" not in process.communicate()[1]
        connection.close()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "arguments", [pytest.param("serve --help", marks=pytest.mark.long), "serve nosuch"]
)
def test_help_and_unknown_runs_are_answered_without_torch(arguments: str, store_root: Path) -> None:
    program = (
        "import sys\n"
        "from rlplug.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as left: print('torch' in sys.modules, left.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments.split()],
        capture_output=True,
        text=True,
        env={**os.environ, "RLPLUG_HOME": str(store_root)},
        check=False,
    )
    code = 2 if "nosuch" in arguments else 0
    assert done.stdout.splitlines()[-1] == f"False {code}", done
