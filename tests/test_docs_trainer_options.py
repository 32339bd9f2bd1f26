"""docs/trainer-options.md names options that there are, and every field of the other trainer."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from rlplug.config.sections import CORE_SECTIONS, ProfilerSection, SamplingSection

PAGE = (Path(__file__).parent.parent / "docs" / "trainer-options.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.M)
SAMPLING = [
    "num_epoch_samples",
    "min_batch_size",
    "max_batch_size",
    "max_wait_time",
    "min_trajectory_length",
    "max_trajectory_length",
    "force_sync",
    "optimal",
]
TRAINER = [
    "name",
    "exp_name",
    "exp_dir",
    "log_dir_name",
    "use_double_weight_precision",
    "checkpoint.save_every_n_steps",
    "checkpoint.save_every_n_seconds",
    "checkpoint.only_save_most_recent",
    "checkpoint.load_from_ckpt_path",
    "checkpoint.load_strict",
    "compiler.model",
    "compiler.func",
    "compiler.fullgraph",
    "compiler.dynamic",
    "compiler.backend",
    "compiler.model_mode",
    "compiler.func_mode",
    "cpu_stats_ping_interval",
    "cpu_stats_only_log_once",
    "gpu_stats_ping_interval",
    "gpu_stats_only_log_once",
    "mixed_precision.enabled",
    "mixed_precision.init_scale",
    "mixed_precision.growth_factor",
    "mixed_precision.backoff_factor",
    "mixed_precision.growth_interval",
    "mixed_precision.min_grad_scale",
    "mixed_precision.foreach",
    "clip_grad_norm",
    "clip_grad_norm_type",
    "balance_grad_norms",
    "profiler.enabled",
    "profiler.record_shapes",
    "profiler.profile_memory",
    "profiler.with_stack",
    "profiler.with_flops",
    "profiler.with_modules",
    "profiler.wait",
    "profiler.warmup",
    "profiler.active",
    "profiler.repeat",
    "profiler.skip_first",
    "profiler.table_size",
    "set_to_none",
    "deterministic",
    "use_tf32",
    "detect_anomaly",
]
CONSTANT = {"log_dir_name", "mixed_precision.foreach", "set_to_none"}
"""What the other trainer can be told and this one does in one way."""


def theirs() -> dict[str, str]:
    return {there.strip("`"): here for there, here, _ in ROWS if there.startswith("`")}


@pytest.mark.parametrize("field", [*SAMPLING, *TRAINER])
def test_every_field_of_the_other_trainer_has_a_row(field: str) -> None:
    here = theirs()[field]
    assert (here == "–") == (field in CONSTANT)


def test_the_page_names_no_other_field() -> None:
    assert set(theirs()) == {*SAMPLING, *TRAINER}


def test_every_option_of_the_page_exists() -> None:
    sections = "|".join(CORE_SECTIONS)
    here = {option for _, column, _ in ROWS for option in re.findall(r"`([\w.]+)`", column)}
    beside = set(re.findall(rf"`((?:{sections})\.\w+)[=`]", PAGE)) - set(TRAINER)
    assert len(here) > 40
    for option in here | beside:
        section, _, name = option.partition(".")
        assert name in attrs.fields_dict(CORE_SECTIONS[section]), option


def test_defaults_that_the_page_names_are_the_real_ones() -> None:
    profiler = {there: about for there, _, about in ROWS if there.startswith("`profiler.")}
    for name in ("wait", "warmup", "active", "skip_first", "table_size"):
        default = getattr(ProfilerSection(), name)
        assert profiler[f"`profiler.{name}`"].split(".")[0] == str(default)
    sampling = SamplingSection()
    assert (sampling.num_epoch_samples, sampling.max_batch_size, sampling.max_wait_time) == (0,) * 3
