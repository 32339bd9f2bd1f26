"""The same run over processes and hosts: data-parallel learners, and runners on a Ray cluster."""
