"""The same run again: the options of a recorded run as a config file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from rlplug.checkpoint.trust import OF_RUN, admit
from rlplug.config.secrets import MASK
from rlplug.config.toml import flat
from rlplug.errors import PluginError, RequestError
from rlplug.registry import ADDON, ALGORITHM, Registry
from rlplug.review.provenance import PROVENANCE, Provenance, read_provenance
from rlplug.review.record import RunRecord
from rlplug.runs.prepare import Prepared
from rlplug.runs.request import Request
from rlplug.tracking.location import runs_folder, tracking_uri
from rlplug.tracking.provenance import Likeness
from rlplug.tracking.resolve import resolve_one
from rlplug.tracking.store import fetch_file

__all__ = ["LikeRun"]


@attrs.frozen(kw_only=True)
class LikeRun:
    """A recorded run that is to be run again."""

    config: Path
    """The file with all its options."""
    likeness: Likeness
    """What the new run is compared with when it starts."""

    @classmethod
    def of(cls, run: str, registry: Registry, *, trust: bool) -> LikeRun:
        """Find it, or raise what of it is not here.

        Without `trust`, that of somebody else is refused if its options name code to import.
        """
        record = resolve_one(run, best_of_group=False)
        config, provenance = _files(record)
        named = f"run {record.run_id} ({record.name})"
        if config is None or provenance is None or not provenance.plugins:
            raise RequestError(
                f"{named} has no record of its plugins and options.",
                f"try: rlplug run --config {config or 'config.toml, from its artifacts'}",
            )
        admit(config.parent, OF_RUN, trust=trust)
        if not provenance.rerunnable:
            raise RequestError(
                f"{named} was started from Python with its own classes or environment.",
                "try: run that program again",
            )
        for plugin in provenance.plugins:
            kind = ADDON if plugin.kind == ADDON else ALGORITHM
            try:
                registry.find(kind, f"{plugin.distribution}:{plugin.name}")
            except PluginError as error:
                raise RequestError(
                    f"{named} was made with {plugin.shown}, which is not installed.",
                    f"try: pip install {plugin.distribution}=={plugin.version}",
                ) from error
        return cls(config=config, likeness=Likeness(run_id=record.run_id, provenance=provenance))

    def request(self, given: Request) -> Request:
        """What was given, over the options of the run."""
        # All that a preset sets is in the file; it may have changed since.
        flags: dict[str, Any] = {
            **given.flags,
            "run": {"preset": "", **given.flags.get("run", {})},
        }
        if all(setting.key != "tracking.run_name" for setting in given.settings):
            flags["tracking"] = {"run_name": "", **given.flags.get("tracking", {})}
        return attrs.evolve(given, config=self.config, flags=flags)

    def checked(self, new: Prepared) -> Prepared:
        """The run, refused if it lacks a secret, which was not recorded."""
        for name, value in flat(new.config).items():
            if MASK in str(value) and not name.startswith("tracking."):
                raise RequestError(
                    f"the secret in {name} of run {self.likeness.run_id} was not recorded.",
                    f"try: --set {name}=VALUE",
                )
        return new


def _files(record: RunRecord) -> tuple[Path | None, Provenance | None]:
    """The file with the options of a run, and its provenance: from its folder, else from MLflow."""
    if record.folder is not None and (record.folder / "config.toml").is_file():
        return record.folder / "config.toml", read_provenance(record.folder)
    root = runs_folder()
    uri = tracking_uri("", root)
    config = fetch_file(record.run_id, uri, "config/config.toml", root)
    fetched = fetch_file(record.run_id, uri, f"config/{PROVENANCE}", root)
    return config, None if fetched is None else read_provenance(fetched.parent)
