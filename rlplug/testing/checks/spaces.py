"""Checks of `supports`, and of several modules with different spaces."""

from __future__ import annotations

from gymnasium import spaces

from rlplug.testing.cases import Case
from rlplug.testing.comparison import require_close
from rlplug.testing.harness import make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, as_failure, location
from rlplug.testing.subject import Subject

__all__ = ["check_builds_for_the_spaces_it_supports", "check_modules_of_several_spaces"]


def check_builds_for_the_spaces_it_supports(subject: Subject) -> None:
    """It acts and learns in every space that it supports, and names the space that it refuses."""
    if not subject.cases:
        raise CheckFailed(
            "spaces that it supports among those of the kit",
            "none; of a Box and Discrete actions it says: "
            + next((reason for _, reason in subject.refusals()), "nothing"),
            location(subject.kind, "supports") + ": or give the conformance class an `environment`",
        )
    for case in subject.cases:
        try:
            make_harness(subject, case).train(2)
        except CheckFailed:
            raise
        except Exception as error:
            failure = as_failure(error, "", subject.kind)
            raise CheckFailed(
                f"that it acts and learns in {case.name!r}, which `supports` accepts",
                failure.found,
                f"{failure.look_at}, or {location(subject.kind, 'supports')}",
            ) from error
    for case, reason in [] if subject.is_addon else subject.refusals():
        _check_reason(subject, case, reason)


def check_modules_of_several_spaces(subject: Subject) -> None:
    """A module learns the same beside a module of other spaces as alone."""
    names = ("box, discrete", "box of another size, discrete")
    chosen = [case for case in subject.cases if case.name in names] or list(subject.cases[:2])
    if not chosen:
        raise DoesNotApply("it supports none of the kit's spaces")
    left, right = chosen[0], chosen[-1]
    alone = make_harness(subject, {"left": left})
    both = make_harness(subject, {"left": left, "right": right})
    for _ in range(12):
        batch, batches = alone.collect(), both.collect()
        # Schedules count the steps of all modules.
        alone.timestep += sum(one.rows for one in batches.values()) - batch["left"].rows
        alone.update(batch)
        both.update(batches)
    require_close(
        alone.weights()["left"],
        both.weights()["left"],
        1e-5,
        "a module that learns the same beside another one as alone",
        location(subject.kind) + ": what is kept on `self` is shared by modules; key it by "
        "module_id, or keep it in the module",
    )


def _check_reason(subject: Subject, case: Case, reason: object) -> None:
    space = case.observation_space, case.action_space
    words = {part for one in space for part in _words(one)}
    text = str(reason)
    if not isinstance(reason, str) or "\n" in text or not any(word in text for word in words):
        raise CheckFailed(
            "a reason in one line that names the space it found",
            f"for {case.name!r}: {text!r}",
            location(subject.kind, "supports"),
        )


def _words(space: spaces.Space[object]) -> list[str]:
    parts = list(space.spaces) if isinstance(space, spaces.Dict) else []
    return [type(space).__name__, str(space), *parts]
