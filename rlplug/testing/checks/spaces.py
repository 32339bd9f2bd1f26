"""Checks of the spaces that a plugin says it supports."""

from __future__ import annotations

from gymnasium import spaces

from rlplug.testing.bench import bench_of
from rlplug.testing.cases import Case, refusals
from rlplug.testing.report import CheckFailed, DoesNotApply, as_failure, place
from rlplug.testing.subject import Subject

__all__ = ["check_builds_for_the_spaces_it_supports", "check_modules_of_several_spaces"]


def check_builds_for_the_spaces_it_supports(subject: Subject) -> None:
    """Where `supports` says nothing it acts and learns; where it refuses it names what it found."""
    if not subject.cases:
        raise CheckFailed(
            "spaces that it supports among those of the kit",
            "none; of a Box and Discrete actions it says: "
            + next((reason for _, reason in refusals(subject)), "nothing"),
            place(subject.kind, "supports") + ": or give the conformance class an `environment`",
        )
    for case in subject.cases:
        try:
            bench_of(subject, case).live(2)
        except CheckFailed:
            raise
        except Exception as error:
            failure = as_failure(error, "", subject.kind)
            raise CheckFailed(
                f"that it acts and learns in {case.name!r}, which `supports` accepts",
                failure.found,
                f"{failure.look_at}, or {place(subject.kind, 'supports')}",
            ) from error
    for case, reason in [] if subject.is_addon else refusals(subject):
        _check_reason(subject, case, reason)


def check_modules_of_several_spaces(subject: Subject) -> None:
    """Two modules of different spaces learn side by side as each does alone."""
    names = ("box, discrete", "box of another size, discrete")
    chosen = [case for case in subject.cases if case.name in names] or list(subject.cases[:2])
    if not chosen:
        raise DoesNotApply("it supports none of the kit's spaces")
    left, right = chosen[0], chosen[-1]
    alone = bench_of(subject, {"left": left})
    both = bench_of(subject, {"left": left, "right": right})
    for _ in range(12):
        batch, batches = alone.play(), both.play()
        # The steps of both modules together are the time of a schedule.
        alone.timestep += sum(one.rows for one in batches.values()) - batch["left"].rows
        alone.update(batch)
        both.update(batches)
    _check_alike(subject, alone.weights()["left"], both.weights()["left"])


def _check_alike(subject: Subject, alone: object, beside: object) -> None:
    from rlplug.testing.comparing import largest_difference

    path, apart = largest_difference(alone, beside)
    if apart > 1e-5:
        raise CheckFailed(
            "a module that learns the same beside another one as alone",
            f"{path} differs by {apart:.1%} of its size",
            place(subject.kind) + ": what is kept on `self` is shared by modules; key it by "
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
            place(subject.kind, "supports"),
        )


def _words(space: spaces.Space[object]) -> list[str]:
    parts = list(space.spaces) if isinstance(space, spaces.Dict) else []
    return [type(space).__name__, str(space), *parts]
