"""The checks, by what they look at; `rlplug.testing.table` lists them all."""
