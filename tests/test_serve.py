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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from gymnasium import spaces

from rlplug import Acted, Module, Policy
from rlplug.logs.encoding import Encoder, Feature
from rlplug.serving.description import space_as_json
from rlplug.serving.server import PolicyServer

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

    def __init__(self, address: Any) -> None:
        self.address = address
        self.connection = http.client.HTTPConnection(*address, timeout=30)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        text = body if isinstance(body, str | bytes | None) else json.dumps(body)
        self.connection.request(method, path, text, headers)
        answer = self.connection.getresponse()
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

    def raw(self, request: bytes) -> bytes:
        """The answer to a request that may be none, on a connection of its own."""
        with socket.create_connection(self.address, timeout=30) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(4096), b""))


Serve = Callable[..., Client]


@pytest.fixture
def serving() -> Iterator[Serve]:
    """Serve a policy on a free port: `serving(policy)` is a client."""
    servers: list[tuple[PolicyServer, threading.Thread]] = []
    clients: list[Client] = []

    def serve(policy: Policy, **more: Any) -> Client:
        bound = socket.create_server(("127.0.0.1", 0))
        server = PolicyServer(bound, policy, {"step": 5}, **more)
        servers.append((server, threading.Thread(target=server.run)))
        servers[-1][1].start()
        clients.append(Client(bound.getsockname()))
        return clients[-1]

    yield serve
    for client in clients:
        client.connection.close()
    for server, thread in servers:
        server.should_exit = True
        thread.join()
        server.socket.close()


def policy(space: Any = ROW, module: Module | None = None, **more: Any) -> Policy:
    return Policy(module or Sum(), space, more.pop("actions", spaces.Discrete(4)), **more)


def test_features_and_arms_are_given_by_name(serving: Serve) -> None:
    """The sum of one feature for each color and of the number of items: 0 to 3."""
    encoder = Encoder(
        features=(
            Feature(name="color", is_category=True, levels=("blue", "red")),
            Feature(name="items"),
        ),
        arms=("none", "one", "two", "three"),
    )
    client = serving(Policy(Sum(), ROW, spaces.Discrete(4), encoder=encoder))
    assert client.act(observation={"items": 2, "color": "red"}) == {"action": "three"}
    rows = [{"color": "pink", "items": 0}, {"color": "blue", "items": 1}]
    assert client.act(observations=rows) == {"actions": ["none", "two"]}
    assert client.act(observation=[0, 1, 0]) == {"action": "one"}
    assert client.ask("GET", "/info")[1]["unseen_levels"] == {"color=pink": 1}
    for given, told in (
        ({"items": 2}, "observation has no 'color' of the features"),
        ({"items": "many", "color": "red"}, "observation['items'] cannot be read as float32"),
        ({"items": None, "color": "red"}, "observation['items'] is missing"),
        ({"items": 1, "color": None}, "observation['color'] is missing"),
        ({"items": [1, 2], "color": "red"}, "features of different lengths"),
        ([1], "observation has shape (1,), expected features by name"),
    ):
        assert told in client.refused({"observation": given})


def test_one_observation_gives_one_action_and_a_list_gives_as_many(serving: Serve) -> None:
    client = serving(policy())
    assert client.act(observation=[1, 2, 3]) == {"action": 6}
    assert client.act(observations=[[1, 2, 3]]) == {"actions": [6]}
    assert client.act(observations=[[1, 2, 3], [4, 5, 6]]) == {"actions": [6, 15]}
    assert client.act(observation=[1, 2, 3], deterministic=False) == {"action": 7}
    masks = [[False, True, True, False], [False, False, False, True]]
    assert client.act(observation=[0, 0, 0], action_mask=[0, 0, 1, 0]) == {"action": 2}
    assert client.act(observations=[[0, 0, 0]] * 2, action_masks=masks) == {"actions": [1, 3]}


def test_dict_spaces_are_objects_and_tuple_spaces_lists(serving: Serve) -> None:
    client = serving(policy(spaces.Dict(a=ROW, b=spaces.Tuple((ROW, ROW)))))
    one = {"a": [1, 0, 0], "b": [[2, 0, 0], [3, 0, 0]]}
    other = {"a": [10, 0, 0], "b": [[20, 0, 0], [30, 0, 0]]}
    assert client.act(observation=one) == {"action": 6}
    assert client.act(observation=one, action_mask=[0, 1, 1, 0]) == {"action": 1}
    assert client.act(observations=[one, other]) == {"actions": [6, 60]}
    for wrong, named in (
        ({"a": [1, 0, 0]}, "each of observations must be an object with the parts a, b"),
        ({"a": [1, 0, 0], "b": []}, "each of observations[...]['b'] must be a list"),
    ):
        assert named in client.refused({"observations": [one, wrong]})
    pairs = serving(policy(spaces.Tuple((ROW, spaces.Box(-9, 9, (2, 3))))))
    pair = [[1, 2, 3], [[0, 0, 0], [0, 0, 1]]]
    assert pairs.act(observation=pair) == {"action": 7}
    assert "shape" in pairs.refused({"observation": [pair, pair]})


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


def test_wrong_input_is_answered_with_what_was_found_and_the_connection_goes_on(
    serving: Serve,
) -> None:
    client = serving(policy())
    row = [0, 0, 0]
    for body, named in (
        ("hello", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("", "empty"),
        ([1], "a list"),
        ({}, "neither"),
        ({"observation": row, "observations": [row]}, "both"),
        ({"observaton": row}, "'observation'"),
        ({"observation": [0, 0]}, "(2,)"),
        ({"observation": [row]}, "several"),
        ({"observations": row}, "one observation"),
        ({"observations": [row, [0]]}, "cannot be read as float32"),
        ({"observations": []}, "empty"),
        ('{"observation": [NaN, 0, 0]}', "NaN"),
        ('{"observation": [1e999, 0, 0]}', "not finite"),
        ({"observation": [1e300, 0, 0]}, "not finite"),
        ({"observation": [10**400, 0, 0]}, "cannot be read as float32"),
        ({"observation": ["1", 0, 0]}, "text"),
        ({"observation": {"a": 1}}, "cannot be read as float32"),
        ({"observation": row, "deterministic": 1}, "deterministic"),
        ({"observation": row, "session": 7}, "session"),
        ({"observation": row, "session": "x" * 201}, "session"),
        ({"observation": row, "reset": [True]}, "reset"),
        ({"observations": [row], "reset": [1]}, "reset"),
        ({"observation": row, "action_mask": [0] * 4}, "forbids every action"),
        ({"observation": row, "action_mask": [1]}, "mask has shape (1,), expected (4,)"),
        ({"observation": row, "action_mask": [2] * 4}, "the action mask must be"),
        ({"observation": row, "action_mask": ["a"] * 4}, "the action mask cannot be read"),
        ({"observation": row, "action_masks": [[1] * 4]}, "action_masks"),
    ):
        said = client.refused(body)
        assert named in said, (body, said)
        assert len(said) < 1000
    assert client.act(observation=[1, 2, 3]) == {"action": 6}
    continuous = serving(policy(actions=spaces.Box(-1, 1, (2,), numpy.float32)))
    assert "mask" in continuous.refused({"observation": row, "action_mask": [1, 1]})


def test_other_paths_methods_and_sizes_have_their_own_status(serving: Serve) -> None:
    client = serving(policy(), largest_body=100)
    status, answer = client.ask("GET", "/acts")
    assert (status, "'/act'" in answer["try"]) == (404, True)
    assert client.ask("GET", "/act")[0] == 405
    for method in ("DELETE", "PATCH"):
        client.connection.request(method, "/health")
        refused = client.connection.getresponse()
        refused.read()
        assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")
    client.connection.request("HEAD", "/health")
    head = client.connection.getresponse()
    assert (head.status, head.read(), int(head.headers["Content-Length"]) > 0) == (200, b"", True)
    body = json.dumps({"observation": [1, 2, 3]})
    assert client.ask("POST", "/act", f"{body:100}") == (200, {"action": 6})
    assert client.ask("GET", "/health") == (200, {"status": "ok"})
    assert client.ask("POST", "/act", f"{body:101}")[0] == 413


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (f"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Length: {'9' * 5000}\r\n\r\n", 400),
        ("POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Length: nine\r\n\r\n", 400),
        ("POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{", 400),
        ("POST /act HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", 400),
        (f"POST /act HTTP/1.1\r\nHost: localhost\r\nX: {'x' * 70_000}\r\n\r\n", 400),
        ("what is this\r\n\r\n", 400),
        ("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        ("GET /health HTTP/1.1\r\nHost: evil.example:8000\r\n\r\n", 403),
        ("GET /health HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", 200),
        ("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    ],
    ids=range(10),
)
def test_what_is_no_request_or_for_another_host_is_refused_without_an_error_of_ours(
    serving: Serve, request_text: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = serving(policy())
    assert client.raw(request_text.encode()).startswith(f"HTTP/1.1 {status} ".encode())
    assert client.act(observation=[1, 2, 3]) == {"action": 6}
    assert not caplog.messages


def test_more_connections_than_the_limit_are_turned_away_until_others_end(serving: Serve) -> None:
    client = serving(policy(), most_connections=3)
    held = [socket.create_connection(client.address) for _ in range(2)]
    assert client.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(
        b"HTTP/1.1 503 "
    )
    for one in held:
        one.close()
    assert client.ask("GET", "/health") == (200, {"status": "ok"})


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
    address = serving(policy(module=Clock())).address

    def steps(name: int) -> list[int]:
        client = Client(address)
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
        client = Client(("127.0.0.1", port))
        info = client.ask("GET", "/info")[1]
        assert info["latency"]["64"]["p50_ms"] > 0
        assert info["trained_with"]["linucb"].startswith("rlplug-linucb ")
        observation = numpy.ones(info["observation_space"]["shape"]).tolist()
        assert 0 <= client.act(observation=observation)["action"] < info["action_space"]["n"]
        # The connection stays: it does not keep the process from ending.
        taken = rlplug("serve", "last", "--port", str(port))
        assert taken.code == 2
        assert f"cannot listen on 127.0.0.1:{port}" in taken.err
        assert "loading" not in taken.err
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        assert "Traceback" not in process.communicate()[1]
        client.connection.close()
    finally:
        process.kill()
        process.communicate()


def test_unknown_runs_are_answered_without_torch(store_root: Path) -> None:
    program = (
        "import sys\n"
        "from rlplug.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as left: print('torch' in sys.modules, left.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", "nosuch"],
        capture_output=True,
        text=True,
        env={**os.environ, "RLPLUG_HOME": str(store_root)},
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "False 2", done
