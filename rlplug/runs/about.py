"""What is told of a policy that leaves the framework: by a server, or in an exported file."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from rlplug.registry import core_version
from rlplug.runs.loading import Loaded
from rlplug.serving.description import space_as_json

__all__ = ["about"]

_LIBRARIES = ("torch", "numpy", "gymnasium")


def about(loaded: Loaded) -> dict[str, Any]:
    """Run, step, algorithm, environment, spaces and versions, as values that JSON has."""
    config, policy = loaded.prepared.config, loaded.policy
    return {
        "run_id": loaded.manifest.run_id,
        "step": loaded.manifest.step,
        "checkpoint": loaded.path.name,
        "algorithm": config.run.algorithm,
        "environment": loaded.saved.environment["name"],
        "observation_space": space_as_json(policy.observation_space),
        "action_space": space_as_json(policy.action_space),
        "frame_stack": policy.frame_stack,
        "normalizes_observations": policy.normalization is not None
        and policy.normalization.changes_observations,
        "versions": {
            "rlplug": core_version(),
            **{name: metadata.version(name) for name in _LIBRARIES},
        },
        "trained_with": dict(loaded.manifest.plugins),
    }
