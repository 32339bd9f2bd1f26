"""The same run again: what a recorded run was made from, as a request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from rlplug.checkpoint.trust import OF_RUN, is_own_run, refuse_foreign_imports
from rlplug.config.secrets import MASK
from rlplug.config.toml import flat
from rlplug.errors import PluginError, RequestError
from rlplug.registry import ADDON, ALGORITHM, Registry
from rlplug.review.provenance import PROVENANCE, PluginRecord, Provenance, read_provenance
from rlplug.review.record import RunRecord
from rlplug.runs.prepare import Prepared
from rlplug.runs.request import Request
from rlplug.tracking.artifacts import fetch_file
from rlplug.tracking.location import runs_folder, tracking_uri
from rlplug.tracking.provenance import Likeness
from rlplug.tracking.resolve import resolve_one

__all__ = ["LikeRun"]


@attrs.frozen(kw_only=True)
class LikeRun:
    """A recorded run that is to be run again."""

    run_id: str
    config: Path
    """The file with all its options."""
    provenance: Provenance

    @classmethod
    def of(cls, run: str, registry: Registry, *, trust: bool) -> LikeRun:
        """Find it, or raise what of it is not here.

        Without `trust`, that of somebody else is refused if its options name code to import.
        """
        record = resolve_one(run, best_of_group=False)
        config, provenance = _files(record)
        if config is None or provenance is None or not provenance.plugins:
            raise RequestError(
                f"run {record.run_id} ({record.name}) has no record of its plugins and options.",
                f"try: rlplug run --config {config or 'config.toml, from its artifacts'}",
            )
        if not (trust or is_own_run(config.parent)):
            refuse_foreign_imports(config.parent, OF_RUN)
        found = cls(run_id=record.run_id, config=config, provenance=provenance)
        if not provenance.rerunnable:
            raise RequestError(
                f"run {record.run_id} ({record.name}) was started from Python with its own classes "
                "or environment.",
                "try: run that program again",
            )
        for plugin in provenance.plugins:
            found._refuse_missing(plugin, registry)
        return found

    @property
    def likeness(self) -> Likeness:
        """What the new run is compared with when it starts."""
        return Likeness(run_id=self.run_id, provenance=self.provenance)

    def request(self, given: Request) -> Request:
        """The options of the run, under what was given."""
        names = {kind: list(self._names(kind)) for kind in (ALGORITHM, ADDON)}
        plugins = {"algorithm": names[ALGORITHM][0], "addons": names[ADDON]}
        flags: dict[str, Any] = {
            **given.flags,
            # All that a preset sets is in the file; it may have changed since.
            "run": {**plugins, "preset": "", **given.flags.get("run", {})},
        }
        if all(setting.key != "tracking.run_name" for setting in given.settings):
            flags["tracking"] = {"run_name": "", **given.flags.get("tracking", {})}
        return attrs.evolve(given, config=self.config, flags=flags)

    def prepared(self, new: Prepared) -> Prepared:
        """The run with the origins and defaults that its options had."""
        options = self.provenance.options
        missing = [
            name
            for name, value in flat(new.config).items()
            if MASK in str(value) and not name.startswith("tracking.")
        ]
        if missing:
            raise RequestError(
                f"the secret in {missing[0]} of run {self.run_id} was not recorded.",
                f"try: --set {missing[0]}=VALUE",
            )
        ours = ("run.algorithm", "run.addons", "run.preset")
        origins = {
            name: options[name].origin
            if name in options and (name in ours or origin == str(self.config))
            else origin
            for name, origin in new.origins.items()
        }
        defaults = {name: one.default for name, one in options.items()}
        preset = options["run.preset"].value if "run.preset" in options else ""
        section = attrs.evolve(new.config.run, preset=str(preset))
        return attrs.evolve(
            new,
            config=attrs.evolve(new.config, run=section),
            origins=origins,
            defaults={**new.defaults, **defaults, "run.steps": section.steps},
        )

    def _names(self, kind: str) -> Iterator[str]:
        for one in self.provenance.plugins:
            if one.kind == kind:
                yield f"{one.distribution}:{one.name}"

    def _refuse_missing(self, plugin: PluginRecord, registry: Registry) -> None:
        kind = ADDON if plugin.kind == ADDON else ALGORITHM
        try:
            registry.find(kind, f"{plugin.distribution}:{plugin.name}")
        except PluginError as error:
            raise RequestError(
                f"run {self.run_id} was made with {plugin.shown}, which is not installed.",
                f"try: pip install {plugin.distribution}=={plugin.version}",
            ) from error


def _files(record: RunRecord) -> tuple[Path | None, Provenance | None]:
    """The file with the options of a run, and its provenance: from its folder, else from MLflow."""
    if record.folder is not None and (record.folder / "config.toml").is_file():
        return record.folder / "config.toml", read_provenance(record.folder)
    root = runs_folder()
    uri = tracking_uri("", root)
    config = fetch_file(record.run_id, uri, "config/config.toml", root)
    fetched = fetch_file(record.run_id, uri, f"config/{PROVENANCE}", root)
    return config, None if fetched is None else read_provenance(fetched.parent)
