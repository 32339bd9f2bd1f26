"""LinUCB learned from a Parquet file by MABWiser, read by pyarrow in blocks of the same size."""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy
import pyarrow.dataset
from mabwiser.mab import MAB, LearningPolicy

ROWS = 32_768


def main(file: str) -> None:
    """One pass over the file."""
    began, wall = time.process_time(), time.perf_counter()
    data = pyarrow.dataset.dataset(file)
    names = [name for name in data.schema.names if name.startswith("context_")]
    bandit = MAB(list(range(20)), LearningPolicy.LinUCB(alpha=1.0, l2_lambda=1.0))
    rows, first = 0, True
    # As rlplug reads: by default, pyarrow keeps what it has read.
    scanner = data.scanner(
        batch_size=ROWS,
        batch_readahead=2,
        fragment_readahead=1,
        fragment_scan_options=pyarrow.dataset.ParquetFragmentScanOptions(
            pre_buffer=False, use_buffered_stream=True
        ),
    )
    for batch in scanner.to_batches():
        contexts = numpy.column_stack([batch.column(name).to_numpy() for name in names])
        actions = batch.column("action").to_numpy()
        rewards = batch.column("reward").to_numpy()
        learn = bandit.fit if first else bandit.partial_fit
        learn(actions, rewards, contexts)
        first = False
        rows += len(actions)
    seconds = time.process_time() - began
    models = bandit._imp.arm_to_model
    told = {
        "rows": rows,
        "cpu_seconds": seconds,
        "seconds": time.perf_counter() - wall,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "theta": float(sum(abs(one.beta).sum() for one in models.values())),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
