"""How git is asked about the source code of a run."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from rlplug.tracking import source_code


def test_a_process_that_is_forked_meanwhile_does_not_hold_what_git_answers_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Environments are, while a thread asks git: it would wait for them to end."""
    begun, started = threading.Event(), threading.Event()

    class Slow(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            begun.set()
            time.sleep(0.5)
            super().__init__(*arguments, **options)
            started.set()

    monkeypatch.setattr(subprocess, "Popen", Slow)
    asking = threading.Thread(target=source_code.git_state, args=(Path(__file__).parent,))
    asking.start()
    assert begun.wait(60)
    with warnings.catch_warnings():
        # Of forks in processes with threads, from Python 3.12 on.
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        os._exit(0)
    was_started = started.is_set()
    assert os.waitpid(child, 0) == (child, 0)
    asking.join()
    assert was_started
