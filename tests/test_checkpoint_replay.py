"""The rows of a replay buffer are written once, and what comes back is what was there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.batch.nested import leaves
from rlplug.checkpoint import read_manifest
from rlplug.checkpoint.checkpoints import Checkpoints
from rlplug.checkpoint.state import newest_valid, read_training, restore_feed
from rlplug.feeds import Experience, FeedSetting, FinalObservations, Replay
from rlplug.feeds.replay import OpenReplay
from tests.checkpoint_files import write

PLAIN = spaces.Box(0, 9, (2,), numpy.float32)
NESTED = spaces.Dict(place=spaces.Box(0, 9, (2,), numpy.float32), kind=spaces.Discrete(9))
STACK = spaces.Box(0, 255, (3, 2, 2), numpy.uint8)


def setting(space: Any = PLAIN, num_envs: int = 1) -> FeedSetting:
    return FeedSetting(
        observation_space=space,
        action_space=spaces.Discrete(3),
        num_envs=num_envs,
        steps=100_000,
        seed=7,
        frame_stack=3 if space is STACK else 1,
    )


def opened(
    space: Any = PLAIN, num_envs: int = 1, size: int = 300, *, prioritized: bool = False
) -> OpenReplay:
    described = Replay(
        buffer_size=size, batch_size=8, learning_starts=0, n_step=2, prioritized=prioritized
    )
    return described.open(setting(space, num_envs))


class Story:
    """Experience of some environments, of any length, in which episodes end anyhow."""

    def __init__(self, seed: int, space: Any = PLAIN, num_envs: int = 1, **options: Any) -> None:
        self.space, self.num_envs = space, num_envs
        self.random = numpy.random.default_rng(seed)
        self.step = 0

    def goes_on(self, *feeds: OpenReplay, rows: int = 40, tells: bool = True) -> None:
        """All feeds take the same experience; masks and extras come where it `tells` of them."""
        steps = int(self.random.integers(1, rows))
        experience = self._experience(steps, tells)
        errors = self.random.random(8)
        self.step += steps * self.num_envs
        for feed in feeds:
            for work in feed.take(experience, self.step):
                rows_of = {"indices": work.batch["indices"]} if "indices" in work.batch else {}
                feed.learned(work, {**rows_of, "priority": errors})

    def _experience(self, steps: int, tells: bool) -> Experience:
        random, n = self.random, steps * self.num_envs
        ends = random.random(n)
        places = numpy.flatnonzero(ends < 0.1)
        shapes = [n, self.num_envs, len(places)]
        seen, after, last = [{"observations": self._seen(size)} for size in shapes]
        columns = {
            **seen,
            "actions": random.integers(3, size=n),
            "rewards": random.random(n),
            "terminated": ends < 0.05,
            "truncated": (ends >= 0.05) & (ends < 0.1),
        }
        if tells:
            columns["drawn"] = random.random((n, 2))
            for part, size in zip((columns, after, last), shapes, strict=True):
                part["action_mask"] = random.random((size, 3)) < 0.8
        return Experience(
            columns,
            steps=steps,
            num_envs=self.num_envs,
            following=after,
            finals=FinalObservations(places, last) if len(places) else None,
            after_reset=bool(random.random() < 0.1),
        )

    def _seen(self, size: int) -> Any:
        random = self.random
        if self.space is NESTED:
            place = random.random((size, 2), numpy.float32)
            return {"place": place, "kind": random.integers(9, size=size)}
        if self.space is STACK:
            return random.integers(255, size=(size, 3, 2, 2)).astype(numpy.uint8)
        return random.random((size, 2), numpy.float32)


def parts(feed: OpenReplay) -> dict[str, Any]:
    return {
        "run_id": "work",
        "policy": {"modules": {}, "extra": {}, "plugin_states": {}},
        "training": {"feed": feed.get_state_without_rows(), "run": {}, "periodic": {}},
    }


def save(checkpoints: Checkpoints, feed: OpenReplay, step: int) -> Path:
    return write(checkpoints, step, replay=checkpoints.copy_replay(feed), **parts(feed))


def restored(path: Path, feed: OpenReplay) -> str:
    """Why the buffer is empty."""
    return restore_feed(path, feed, read_training(path)["feed"])


def kept(feed: OpenReplay) -> Iterator[tuple[str, Any]]:
    """All that a batch may be made of: rows, without what was overwritten, and priorities."""
    ring = feed.rows
    for env, (first, newest) in enumerate(ring.kept()):
        yield f"rows of {env}", (first, newest)
        for number, leaf in enumerate(leaves(ring.copy_rows(env, first, newest + 1))):
            # As text: a number that is unknown equals itself.
            yield f"column {number} of {env}", repr(leaf.tolist())
    yield "draws", repr(feed.get_state_without_rows()["random"])
    priorities = feed.get_state_of_rows()["priorities"]
    yield "priorities", None if priorities is None else priorities["leaves"].tolist()


def same(one: OpenReplay, other: OpenReplay) -> None:
    assert dict(kept(one)) == dict(kept(other))


SETTINGS: Mapping[str, dict[str, Any]] = {
    "one": {},
    "several": {"num_envs": 3},
    "nested": {"space": NESTED, "num_envs": 2},
    "frames": {"space": STACK},
    "frames of several": {"space": STACK, "num_envs": 2, "prioritized": True},
    "by priority": {"prioritized": True},
    "smaller than a block": {"size": 12},
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
@pytest.mark.parametrize("which", SETTINGS)
def test_whenever_it_is_saved_what_comes_back_is_what_was_there_and_draws_the_same(
    tmp_path: Path, which: str, seed: int
) -> None:
    feed = opened(**SETTINGS[which])
    story = Story(seed, **SETTINGS[which])
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    for number in range(30):
        story.goes_on(feed, tells=seed > 0 or number > 10)
        if story.random.random() < 0.4:
            path = save(checkpoints, feed, story.step)
            back = opened(**SETTINGS[which])
            assert not restored(path, back)
            same(feed, back)
    # It has wrapped around.
    assert (feed.rows.heads > 2 * feed.rows.rows).all()
    back = opened(**SETTINGS[which])
    restored(save(checkpoints, feed, 9_999_999), back)
    for _ in range(20):
        story.goes_on(feed, back)
        same(feed, back)


def test_rows_are_written_once_and_deleted_with_the_last_checkpoint_that_needs_them(
    tmp_path: Path,
) -> None:
    feed = opened(size=1_600)
    assert feed.rows.block == 100
    story = Story(0)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    written: set[str] = set()
    for step in range(1, 60):
        for _ in range(4):
            story.goes_on(feed, rows=60)
        manifest = read_manifest(save(checkpoints, feed, step))
        here = {one.name for one in (tmp_path / "replay").iterdir()}
        # Each save adds the rows that are new, and the newest ones.
        assert len(here - written) <= 2
        assert set(manifest.replay) <= here
        written |= here
    assert feed.rows.heads[0] > 3 * feed.rows.rows
    needed = {
        name for path in (tmp_path / "checkpoints").iterdir() for name in read_manifest(path).replay
    }
    assert here == needed
    size = sum(one.stat().st_size for one in (tmp_path / "replay").iterdir())
    whole = sum(leaf.nbytes for leaf in leaves(feed.rows.copy_rows(0, *feed.rows.kept()[0])))
    assert size < 2 * whole


def test_a_run_goes_on_from_an_older_checkpoint_when_the_newest_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3)
    feed = opened(num_envs=2, prioritized=True)
    story = Story(1, num_envs=2)
    for step in (1, 2, 3):
        for _ in range(5):
            story.goes_on(feed)
        save(checkpoints, feed, step)
    second, third = sorted((tmp_path / "checkpoints").iterdir())[1:]
    (tmp_path / "replay" / next(iter(read_manifest(third).replay))).write_bytes(b"cut")
    assert newest_valid(tmp_path, "work") == second
    assert "does not match its digest" in caplog.text
    assert "The run goes on from step 2." in caplog.text
    back = opened(num_envs=2, prioritized=True)
    assert not restored(second, back)
    again = Checkpoints(tmp_path / "checkpoints", keep=3)
    assert again.resume_from(second) == ["set-aside-step-000000000003"]
    story = Story(2, num_envs=2)
    for step in (3, 4, 5):
        for _ in range(5):
            story.goes_on(back)
        path = save(again, back, step)
        found = opened(num_envs=2, prioritized=True)
        assert not restored(path, found)
        same(back, found)
    assert newest_valid(tmp_path, "work") == path


def test_a_checkpoint_without_its_replay_buffer_leaves_the_feed_empty(tmp_path: Path) -> None:
    feed, back = opened(), opened()
    story = Story(1)
    for _ in range(5):
        story.goes_on(feed)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    path = write(checkpoints, 5, **parts(feed))
    assert restored(path, back).startswith("it has no files in ")
    assert not back.rows.holds_any()
    # The draws go on, from rows that come.
    assert back.get_state_without_rows()["random"] == feed.get_state_without_rows()["random"]


def test_rows_that_cannot_be_used_are_told_and_the_buffer_is_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feed = opened()
    story = Story(1)
    for _ in range(20):
        story.goes_on(feed)
    path = save(Checkpoints(tmp_path / "checkpoints", keep=1), feed, 5)
    other, back = opened(size=200), opened()
    reason = restored(path, other)
    assert "1 environments with 301 rows each, here there are 1 with 201" in reason
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["replay"] = dict([next(iter(manifest["replay"].items()))])
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert "blocks of the replay buffer are in none of its files" in restored(path, back)
    assert not back.rows.holds_any()
    assert not other.rows.holds_any()
    # Its numbers start anew: nothing of it is taken for saved.
    again = Checkpoints(tmp_path / "checkpoints", keep=1)
    again.resume_from(path, replay=False)
    story = Story(2)
    for _ in range(20):
        story.goes_on(other)
    found = opened(size=200)
    assert not restored(save(again, other, 6), found)
    same(other, found)


def test_only_the_latest_checkpoints_keep_their_replay_buffers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1, keep_every=1)
    feed = opened()
    story = Story(1)
    for step in (1, 2):
        for _ in range(20):
            story.goes_on(feed)
        save(checkpoints, feed, step)
    first, second = sorted((tmp_path / "checkpoints").iterdir())
    assert {one.name for one in (tmp_path / "replay").iterdir()} == set(
        read_manifest(second).replay
    )
    shutil.rmtree(second)
    # There is no other: rather the weights alone than nothing.
    assert newest_valid(tmp_path) == first
    back = opened()
    assert restored(first, back).startswith("it has no files in ")
    assert not back.rows.holds_any()
