"""Policies as programs that need no rlplug: PyTorch's `.pt2`, and ONNX."""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy
import torch
from gymnasium import spaces
from torch import nn

from rlplug.batch.nested import tree_map
from rlplug.errors import RequestError
from rlplug.plugin import ActInput
from rlplug.serving.agents import AgentPolicy
from rlplug.serving.description import named_leaves, sampled_observations
from rlplug.serving.policy import Policy
from rlplug.spaces import ACTION_MASK, mask_width

__all__ = ["Exported", "Format", "Port", "export_policy"]

Format = Literal["pt2", "onnx"]

_ROWS = (1, 2, 7, 256)
"""Numbers of observations with which a file is compared with the policy."""
_STEPS = 3
"""Consecutive steps of each, for policies with recurrent state."""
_TOLERANCE = 1e-4
"""Largest difference of continuous actions, relative to the largest action."""

Compared = Callable[[dict[str, Any]], list[Any]]
"""Calls the program in a file: inputs → outputs, arrays."""


@attrs.frozen
class Port:
    """An input or output of a program: a tensor whose first dimension is the batch."""

    name: str
    shape: tuple[int, ...]
    """Without the batch."""
    dtype: str


@attrs.frozen(kw_only=True)
class Exported:
    """A program in a file, compared with the policy it was made of."""

    file: Path
    format: Format
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    difference: float
    """Largest difference of an action from the policy's, over `rows` observations."""
    rows: int


def export_policy(
    policy: Policy,
    file: Path,
    format: Format,
    *,
    action_mask: bool = False,
    about: Mapping[str, Any] | None = None,
) -> Exported:
    """Write a policy's greedy actions as a program, and compare the file with the policy.

    Its inputs are observations as the environment returns them (stacked, if the policy stacks
    frames), with `action_mask` a mask of allowed actions, and recurrent state; its outputs are
    actions and the next recurrent state. `about` is kept in the file.
    """
    if isinstance(policy, AgentPolicy):
        raise RequestError(
            f"the policy has several agents ({', '.join(policy.agents)}), and a file is of one.",
            f"try: --agent {next(iter(policy.agents))}",
        )
    if action_mask and mask_width(policy.action_space) is None:
        raise RequestError(
            f"actions {policy.action_space} have no mask.", "try: without --action-mask"
        )
    policy = policy.without_names()
    program = _Program(policy)
    given = _inputs(policy, 2, action_mask=action_mask)
    # What a module computes when it first acts, such as an inverse, is not part of the program.
    policy.reset()
    policy.predict(tree_map(lambda leaf: leaf.numpy(), given["observation"]))
    exported = _traced(program, given)
    with torch.no_grad():
        found = program(**given)
    inputs = _ports(given)
    outputs = _ports(
        {"action": found[0], "next_state": found[1]} if "state" in given else {"action": found}
    )
    ports = {"inputs": list(map(attrs.asdict, inputs)), "outputs": list(map(attrs.asdict, outputs))}
    facts = json.dumps({**(about or {}), **ports})
    partial = file.with_name(f".unfinished-{file.name}")
    try:
        run = _saved_pt2 if format == "pt2" else _saved_onnx
        compared = run(exported, partial, facts, inputs, outputs)
        difference, rows = _difference(policy, compared, action_mask=action_mask)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return Exported(
        file=file, format=format, inputs=inputs, outputs=outputs, difference=difference, rows=rows
    )


class _Program(nn.Module):
    """What is traced: normalisation, the module, and the bounds of actions."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        # The program is for acting: its actions need no graph.
        self.policy_module = policy.module.requires_grad_(False)
        self._paths: list[tuple[Any, ...]] = []
        self._clip = 0.0
        if policy.normalization is not None:
            self._clip = policy.normalization.clip
            for number, (path, (mean, factor)) in enumerate(policy.normalization.scales.items()):
                self._paths.append(path)
                self.register_buffer(f"mean_{number}", torch.as_tensor(mean))
                self.register_buffer(f"factor_{number}", torch.as_tensor(factor))
        space = policy.action_space
        self._bounded = _is_continuous(space)
        if isinstance(space, spaces.Box):
            self.register_buffer("low", torch.as_tensor(space.low))
            self.register_buffer("high", torch.as_tensor(space.high))
        self._step = policy.step

    def forward(self, observation: Any, action_mask: Any = None, state: Any = None) -> Any:
        """The actions, and the next recurrent state of policies that have one."""
        if action_mask is None and isinstance(observation, Mapping):
            action_mask = observation.get(ACTION_MASK)
        act = ActInput(
            self._normalized(observation, ()),
            action_mask=action_mask,
            state=state,
            timestep=self._step,
        )
        acted = self.policy_module.forward_export(act)
        actions = acted.actions
        if self._bounded:
            actions = actions.to(self.low.dtype).clamp(self.low, self.high)
        return actions if state is None else (actions, dict(acted.state))

    def _normalized(self, part: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(part, Mapping):
            return {key: self._normalized(one, (*path, key)) for key, one in part.items()}
        if isinstance(part, tuple):
            return tuple(self._normalized(one, (*path, key)) for key, one in enumerate(part))
        if path not in self._paths:
            return part
        number = self._paths.index(path)
        mean, factor = getattr(self, f"mean_{number}"), getattr(self, f"factor_{number}")
        scaled = (part - mean).to(torch.float32) * factor
        return scaled.clamp(-self._clip, self._clip) if self._clip else scaled


def _inputs(policy: Policy, rows: int, seed: int = 0, *, action_mask: bool) -> dict[str, Any]:
    """What a program is called with for so many observations, tensors."""
    random = numpy.random.default_rng(seed)
    space = policy.action_space
    counts = space.nvec.reshape(-1) if isinstance(space, spaces.MultiDiscrete) else [0]

    def mask(width: int) -> Any:
        """Most is allowed, and never nothing: the first of each choice is."""
        drawn = random.random((rows, width)) < 0.7
        drawn[:, numpy.cumsum([0, *counts[:-1]])] = True
        return drawn

    observation = sampled_observations(policy.observation_space, rows, seed)
    if isinstance(observation, dict) and ACTION_MASK in observation:
        own = observation[ACTION_MASK]
        observation[ACTION_MASK] = mask(own.shape[-1]).astype(own.dtype)
    given = {"observation": observation}
    if action_mask:
        given["action_mask"] = mask(mask_width(space) or 0)
    state = policy.module.initial_state(rows)
    if state is not None:
        given["state"] = {name: numpy.asarray(part) for name, part in state.items()}
    tensors: dict[str, Any] = tree_map(
        lambda leaf: torch.from_numpy(numpy.ascontiguousarray(leaf)), given
    )
    return tensors


def _ports(tree: Any) -> tuple[Port, ...]:
    """Names, shapes and types, in the order in which the program has them."""
    return tuple(
        Port(name, tuple(leaf.shape[1:]), str(leaf.dtype).removeprefix("torch."))
        for name, leaf in named_leaves(tree)
    )


def _traced(program: _Program, example: dict[str, Any]) -> Any:
    batch = torch.export.Dim("batch", min=1)
    shapes = tree_map(lambda leaf: {0: batch}, example)
    module = type(program.policy_module).__name__
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(program, (), example, dynamic_shapes=shapes, strict=False)
    # Whatever tracing somebody's code raises.
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise RequestError(
            f"{module} cannot be exported: {type(error).__name__}: {(lines or [''])[0]}",
            f"try: {module}.forward_export(act) with torch operations alone; see docs/hooks.md",
        ) from error


def _saved_pt2(
    exported: Any, file: Path, facts: str, inputs: tuple[Port, ...], outputs: tuple[Port, ...]
) -> Compared:
    with file.open("wb") as stream:
        torch.export.save(exported, stream, extra_files={"rlplug.json": facts})
    with file.open("rb") as written:
        loaded = torch.export.load(written).module()

    def run(given: dict[str, Any]) -> list[Any]:
        with torch.no_grad():
            return [leaf.numpy() for _, leaf in named_leaves(loaded(**given))]

    return run


def _saved_onnx(
    exported: Any, file: Path, facts: str, inputs: tuple[Port, ...], outputs: tuple[Port, ...]
) -> Compared:
    import onnxruntime
    import onnxscript  # noqa: F401 # torch's exporter needs it

    with _quiet():
        made = torch.onnx.export(
            exported,
            (),
            input_names=[one.name for one in inputs],
            output_names=[one.name for one in outputs],
            dynamo=True,
            verbose=False,
        )
    assert made is not None
    made.model.metadata_props["rlplug"] = facts
    made.save(str(file))
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    # What no action depends on is no input of the graph.
    used = {one.name for one in session.get_inputs()}

    def run(given: dict[str, Any]) -> list[Any]:
        named = {name: leaf.numpy() for name, leaf in named_leaves(given) if name in used}
        found: list[Any] = session.run(None, named)
        return found

    return run


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of the exporter about itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _difference(policy: Policy, run: Compared, *, action_mask: bool) -> tuple[float, int]:
    """The largest difference of actions, and over how many observations."""
    largest, seen = 0.0, 0
    for rows in _ROWS:
        policy.reset()
        state: Any = None
        for step in range(_STEPS if policy.has_memory else 1):
            given = _inputs(policy, rows, 100 * step + rows, action_mask=action_mask)
            if state is not None:
                given["state"] = state
            observation = tree_map(lambda leaf: leaf.numpy(), given["observation"])
            mask = given["action_mask"].numpy() if action_mask else None
            wanted = policy.predict(observation, action_mask=mask)
            found, *after = run(given)
            if policy.has_memory:
                state = dict(zip(given["state"], map(torch.from_numpy, after), strict=True))
            difference = abs(numpy.asarray(found, float) - numpy.asarray(wanted, float)).max()
            limit = 0.0
            if _is_continuous(policy.action_space):
                limit = _TOLERANCE * max(1.0, float(abs(numpy.asarray(wanted)).max()))
            if not difference <= limit:
                raise RequestError(
                    f"the exported program acts otherwise than the policy: {found[:3]} where "
                    f"{wanted[:3]} is right, a difference of {difference:g}.",
                    "nothing was kept; if the plugin defines forward_export, compare it with "
                    "forward_inference",
                )
            largest, seen = max(largest, float(difference)), seen + rows
    policy.reset()
    return largest, seen


def _is_continuous(space: Any) -> bool:
    return isinstance(space, spaces.Box) and space.dtype.kind == "f"
