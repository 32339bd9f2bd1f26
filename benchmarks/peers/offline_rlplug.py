"""LinUCB learned from a Parquet file by a run of rlplug; prints CPU seconds and peak memory."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time

# Imported before the clock starts, as rlplug's parts are; pyarrow imports pandas when it is used.
import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
import rlplug_linucb  # noqa: F401 # the same

import rlplug
import rlplug.runs.run


def main(file: str) -> None:
    """One pass over the file."""
    options = {"tracking.enabled": False, "checkpoint.minutes": 0.0}
    with tempfile.TemporaryDirectory() as home:
        os.environ["RLPLUG_HOME"] = home
        began, wall = time.process_time(), time.perf_counter()
        result = rlplug.run("linucb", data=file, options=options)
        seconds = time.process_time() - began
        wall = time.perf_counter() - wall
    estimates = result.module.estimates()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    told = {
        "rows": result.step,
        "cpu_seconds": seconds,
        "seconds": wall,
        "peak_mb": peak,
        "theta": float(abs(estimates.theta).sum()),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
