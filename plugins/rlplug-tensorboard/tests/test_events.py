"""The events that are written are what was reported of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event

from rlplug import AddOn, hookimpl, resume, run


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


def test_what_the_thread_of_the_writer_does_meanwhile_is_no_state_of_the_plugin(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_text = SummaryWriter.add_text
    writers: list[Any] = []

    def kept(self: Any, *told: Any) -> None:
        writers.append(self)
        add_text(self, *told)

    class Meanwhile(AddOn):
        @hookimpl
        def additional_update(self) -> None:
            # As a thread that is slow would, in the middle of an update.
            for one in writers:
                one.changed = getattr(one, "changed", 0) + 1

    monkeypatch.setattr(SummaryWriter, "add_text", kept)
    addons = ["tensorboard", Meanwhile()]
    result = run("linucb", steps=100, seed=1, addons=addons)
    assert result.status == "FINISHED"
    assert writers[0].changed > 1


def test_a_run_that_fails_keeps_its_events(home: Path) -> None:
    options = {"tracking.enabled": False}

    class FailsError(Exception):
        pass

    class Fails(AddOn):
        def metrics_reported(self, step):  # type: ignore[no-untyped-def]
            if step > 500:
                raise FailsError

    with pytest.raises(FailsError):
        run("linucb", steps=2_000, seed=1, addons=["tensorboard", Fails()], options=options)
    (file,) = home.glob("work/*/tensorboard/*")
    assert max(step for _, step in scalars(events(file))) > 500
