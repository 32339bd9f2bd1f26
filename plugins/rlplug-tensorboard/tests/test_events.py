"""The events that are written are what was reported of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from rlplug import resume, run


def events(file: Path) -> list[Event]:
    content, found = file.read_bytes(), []
    while content:
        # A length of 8 bytes and its checksum of 4; the event and its checksum of 4.
        length = int.from_bytes(content[:8], "little")
        found.append(Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found


def scalars(found: list[Event]) -> set[tuple[str, int]]:
    return {
        (one.tag, event.step)
        for event in found
        for one in event.summary.value
        if not one.tag.startswith("options")
    }


def test_every_metric_that_was_reported_is_an_event(home: Path) -> None:
    result = run("linucb", steps=2_000, seed=1, addons=["tensorboard"])
    (file,) = (result.folder / "tensorboard").iterdir()
    journal = (result.folder / "metrics.jsonl").read_text(encoding="utf-8")
    reports = [json.loads(line) for line in journal.splitlines()]
    assert scalars(events(file)) == {
        (name, report["step"]) for report in reports for name in report["metrics"]
    }


def test_a_resumed_run_goes_on_in_a_second_file(home: Path) -> None:
    first = run("linucb", steps=1_000, seed=1, addons=["tensorboard"])
    result = resume(first.run_id, steps=2_000)
    files = sorted((result.folder / "tensorboard").iterdir())
    assert len(files) == 2
    again = [event for event in events(files[1]) if event.session_log.status]
    # TensorBoard drops what an earlier file has from this step on.
    assert [event.step for event in again] == [1_001]
    assert min(step for _, step in scalars(events(files[1]))) > 1_000


def test_a_run_that_fails_keeps_its_events(home: Path) -> None:
    options = {"tracking.enabled": False}

    class FailsError(Exception):
        pass

    from rlplug import AddOn

    class Fails(AddOn):
        def metrics_reported(self, step):  # type: ignore[no-untyped-def]
            if step > 500:
                raise FailsError

    with pytest.raises(FailsError):
        run("linucb", steps=2_000, seed=1, addons=["tensorboard", Fails()], options=options)
    (file,) = home.glob("work/*/tensorboard/*")
    assert max(step for _, step in scalars(events(file))) > 500
