"""What is known of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlplug.tracking.provenance import cores


def test_a_process_has_the_cores_that_it_may_run_on_within_the_quota_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpu.max"
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5}, raising=False)
    assert cores(file) == 3
    for text, count in (("150000 100000", 2), ("900000 100000", 3), ("max 100000", 3)):
        file.write_text(text)
        assert cores(file) == count
    # There is none on macOS.
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores(file) == 9
