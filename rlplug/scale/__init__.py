"""The same run over several processes: data-parallel learners."""
