"""One run: preparation, training, its result, and what to do with a tracked one."""
