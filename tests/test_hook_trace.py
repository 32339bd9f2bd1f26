"""`--trace-hooks` reports what each plugin takes and changes, and changes nothing itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from rlplug import AddOn, run

OPTIONS: dict[str, Any] = {"tracking.enabled": False, "sampling.num_envs": 8}


class Halve(AddOn):
    """Halves every gradient, slowly."""

    def postprocess_gradients(self, gradients):  # type: ignore[no-untyped-def]
        time.sleep(0.002)
        for gradient in gradients.values():
            gradient.mul_(0.5)


def test_seconds_and_gradient_norms_are_reported_by_plugin(home: Path) -> None:
    options = {**OPTIONS, "learner.trace_hooks": True}
    result = run("a2c", "CartPole-v1", steps=400, seed=1, addons=[Halve()], options=options)
    found = {name: one for name, one in result.metrics.items() if name.startswith("hooks/")}
    # The last report is of one update, ten of 5 × 8 steps each in all.
    assert found["hooks/halve/postprocess_gradients_seconds"] > 0.0019
    assert found["hooks/halve/seconds"] == found["hooks/halve/postprocess_gradients_seconds"]
    assert 0 < found["hooks/a2c/compute_loss_for_module_seconds"] < found["hooks/a2c/seconds"]
    before, after = (found[f"hooks/halve/grad_norm_{when}"] for when in ("before", "after"))
    assert after == pytest.approx(before / 2)
    # Trackers are no plugins of the run.
    assert {name.split("/")[1] for name in found} == {"a2c", "halve"}


def test_a_trace_changes_nothing(home: Path) -> None:
    plain, traced = (
        run("a2c", "CartPole-v1", steps=400, seed=1, options={**OPTIONS, **more})
        for more in ({}, {"learner.trace_hooks": True})
    )
    assert not any(name.startswith("hooks/") for name in plain.metrics)
    names = [name for name in plain.metrics if not name.startswith("time/")]
    assert {name: plain.metrics[name] for name in names} == {
        name: traced.metrics[name] for name in names
    }


def test_the_flag_is_the_option(rlplug: Any, home: Path) -> None:
    done = rlplug("run", "--algo", "a2c", "--trace-hooks", "--dry-run")
    assert (done.code, "trace_hooks" in done.out) == (0, True)
