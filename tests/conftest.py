"""What several tests need: the command line in this process, and distributions to install."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import attrs
import pytest

from tests.mlflow_server import MlflowServer
from tests.warm import Warm


@attrs.frozen
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> str:
        """Standard error without the line that says what is being prepared."""
        first, _, rest = self.err.partition("\n")
        return rest if first.startswith("preparing ") else self.err


@pytest.fixture
def rlplug(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command of rlplug in this process: `rlplug("plugins", "list")`."""
    from rlplug.cli import main

    def invoke(*arguments: str) -> Outcome:
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main(arguments)
        captured = capfd.readouterr()
        code = left.value.code
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    return invoke


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[ExitStack]:
    """What ends the Ray cluster of `cluster`, for tests that need another one."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def cluster(shared_cluster: ExitStack) -> str:
    """The address of a Ray cluster, which runs of this process use instead of one of their own.

    It is the same for all tests of a process, as it takes seconds to start.
    """
    from rlplug.config.sections import ScaleSection
    from rlplug.scale.cluster import connected

    ray = import_module("ray")
    if not ray.is_initialized():
        section = ScaleSection(engine="ray", runner_cpus=0.5)
        shared_cluster.enter_context(connected(section))
    return str(ray.get_runtime_context().gcs_address)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes of files and folders in the order in which they are synced to the disk."""
    inodes: list[int] = []
    really = os.fsync

    def sync(handle: int) -> None:
        inodes.append(os.fstat(handle).st_ino)
        really(handle)

    monkeypatch.setattr(os, "fsync", sync)
    return inodes


@pytest.fixture(scope="session")
def first_port(worker_id: str) -> int:
    """Where to look for a free port: each process that runs tests looks elsewhere."""
    from rlplug.tracking.server import PORTS_TO_TRY

    process = 0 if worker_id == "master" else int(worker_id.removeprefix("gw"))
    return 5300 + PORTS_TO_TRY * process


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server of `served` keeps everything."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="session")
def served(served_folder: Path, empty_store: Path, first_port: int) -> Iterator[str]:
    """The URI of a real MLflow server.

    It is the same for all tests of a process, as it takes seconds to start.
    """
    from rlplug.tracking.server import free_port

    database = served_folder / "mlflow.db"
    database.write_bytes(empty_store.read_bytes())
    port = free_port("127.0.0.1", first_port + 20)
    server = MlflowServer(f"sqlite:///{database}", served_folder, port)
    yield server.url
    server.stop()


@pytest.fixture
def store_root(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of runs, whose experiment has the default name."""
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return home


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Forks processes that need not import torch and MLflow."""
    one = Warm()
    yield one
    one.close()


@pytest.fixture
def killed(store_root: Path, warm: Warm) -> Callable[..., Path]:
    """Make a run whose process is killed: `killed()` is its folder."""

    def kill(uri: str = "") -> Path:
        done = warm.start(str(store_root), uri, code=KILLED)
        assert done.wait() == -signal.SIGKILL, done.err
        return store_root / "work" / done.out.strip()

    return kill


@attrs.frozen(kw_only=True)
class Distribution:
    """A small distribution with one module."""

    name: str
    module: str
    source: str
    algorithms: dict[str, str] = attrs.field(factory=dict)
    addons: dict[str, str] = attrs.field(factory=dict)
    version: str = "0.1.0"
    requires: str = "rlplug>=0.1,<0.2"
    summary: str = "A plugin for a test"

    def wheel(self, folder: Path) -> Path:
        """Write it as a wheel, as a build backend would."""
        flat = self.name.replace("-", "_")
        info = f"{flat}-{self.version}.dist-info"
        path = folder / f"{flat}-{self.version}-py3-none-any.whl"
        groups = {"rlplug.algorithms": self.algorithms, "rlplug.addons": self.addons}
        points = "".join(
            f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
            for group, entries in groups.items()
            if entries
        )
        metadata = (
            f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n"
            f"Summary: {self.summary}\nRequires-Dist: {self.requires}\n"
        )
        members = {
            f"{self.module}.py": self.source,
            f"{info}/METADATA": metadata,
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n"
            "Tag: py3-none-any\n",
            f"{info}/entry_points.txt": points,
        }
        record = "".join(f"{name},,\n" for name in [*members, f"{info}/RECORD"])
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in {**members, f"{info}/RECORD": record}.items():
                archive.writestr(name, text)
        return path


KILLED = """
import os, signal, sys, time
from pathlib import Path
from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
config = RunConfig(
    run=RunSection(algorithm="none", steps=40),
    algorithm=NoOptions(),
    tracking=TrackingSection(uri=sys.argv[2]),
)
tracking = open_tracking(config, environment="Nowhere-v0", root=Path(sys.argv[1]))
for step in (10, 20):
    tracking.listener.metrics_reported(step, {"a": float(step), "b": float("nan")})
tracking.listener.checkpoint_saved(20)
journal = tracking.folder / "metrics.acked"
while not journal.exists():
    time.sleep(0.01)
tracking.listener.metrics_reported(30, {"a": 30.0})
tracking.listener.metrics_reported(40, {"a": 40.0})
while b'"step":40' not in (tracking.folder / "metrics.jsonl").read_bytes():
    time.sleep(0.01)
print(tracking.run_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""A run that is killed with steps 10 and 20 in MLflow, and 30 and 40 in the journal only."""


GOOD = '''
import attrs
from rlplug import Algorithm, Module, option
from rlplug.config import at_least, between
from rlplug.feeds import Stream

@attrs.frozen(kw_only=True)
class Config:
    learning_rate: float = option(0.1, "Step size.", at_least(0), schedulable=True)
    gamma: float = option(0.99, "Weight of the future.", between(0, 1))
    double: bool = option(True, "Use two networks.")
    hidden: tuple[int, ...] = option((64, 64), "Units per layer.")

class Good(Algorithm):
    """Learns well enough for a test.

    By steps along [bold], as they were.
    """
    Config = Config
    presets = {"small": {"gamma": 0.5, "hidden": [8]}}
    default_env = "LinearBandit-v0"
    default_steps = 1_000
    defaults = {"sampling.num_envs": 4}
    def feed(self):
        return Stream()
    def build(self, observation_space, action_space, config):
        return Module()
'''

GRAD = '''
import attrs
from rlplug import AddOn, option

@attrs.frozen(kw_only=True)
class Config:
    scale: float = option(1.0, "Factor.")
    num_envs: int = option(1, "A name that the core has, too.")

class Scale(AddOn):
    """Scales gradients."""
    Config = Config
    def postprocess_gradients(self, gradients, config):
        for gradient in gradients.values():
            gradient.mul_(config.scale)
'''

QUIET = '''
from rlplug import AddOn

class Quiet(AddOn):
    """Does nothing."""
    def update_finished(self): ...
'''

MEANS = '''
import attrs
import numpy
import torch
from gymnasium.spaces import Discrete
from rlplug import Acted, Algorithm, Module, option
from rlplug.config import between
from rlplug.feeds import Stream

@attrs.frozen(kw_only=True)
class Config:
    epsilon: float = option(0.1, "Share of random choices.", between(0, 1))
    fail_at: int = option(0, "Step at which an update raises; 0: never.")

class MeansModule(Module):
    def __init__(self, arms, epsilon):
        super().__init__()
        self.epsilon = epsilon
        self.register_buffer("counts", torch.zeros(arms, dtype=torch.float64))
        self.register_buffer("sums", torch.zeros(arms, dtype=torch.float64))

    def means(self):
        return (self.sums / self.counts.clamp(min=1)).numpy()

    def forward_exploration(self, act):
        n = len(act.observations)
        best = numpy.full(n, self.means().argmax())
        random = act.random.integers(len(self.counts), size=n)
        return Acted(numpy.where(act.random.random(n) < self.epsilon, random, best))

    def forward_inference(self, act):
        return Acted(numpy.full(len(act.observations), self.means().argmax()))

class Means(Algorithm):
    """Plays the arm with the best mean so far, whatever the context."""
    Config = Config
    default_env = "LinearBandit-v0"
    default_steps = 2_000

    def feed(self):
        return Stream(one_step_episodes=True)

    def supports(self, observation_space, action_space):
        if not isinstance(action_space, Discrete):
            return f"it needs discrete actions, found {action_space}"

    def build(self, action_space, config):
        return MeansModule(int(action_space.n), config.epsilon)

    def configure_optimizers_for_module(self):
        return None

    def additional_update(self, module, batch, timestep, config):
        if config.fail_at and timestep >= config.fail_at:
            raise ArithmeticError("planted")
        for arm, reward in zip(batch["actions"], batch["rewards"]):
            module.counts[arm] += 1
            module.sums[arm] += reward
        return {"best_mean": module.means().max()}
'''

DISTRIBUTIONS = [
    Distribution(
        name="rlplug-means",
        module="means_plugin",
        source=MEANS,
        algorithms={"means": "means_plugin:Means"},
    ),
    Distribution(
        name="rlplug-good",
        module="good_plugin",
        source=GOOD,
        algorithms={"good": "good_plugin:Good"},
    ),
    Distribution(
        name="rlplug-scale",
        module="scale_plugin",
        source=GRAD,
        addons={"scale": "scale_plugin:Scale"},
    ),
    Distribution(
        name="rlplug-quiet",
        module="quiet_plugin",
        source=QUIET,
        addons={"quiet": "quiet_plugin:Quiet"},
    ),
    Distribution(
        name="rlplug-odd",
        module="odd_plugin",
        source="raise AssertionError('must not be imported')\n",
        addons={"Odd_name": "odd_plugin:X"},
    ),
    Distribution(
        name="twin-one",
        module="twin_one",
        source=GOOD,
        algorithms={"twin": "twin_one:Good"},
    ),
    Distribution(
        name="twin-two",
        module="twin_two",
        source=GOOD,
        algorithms={"twin": "twin_two:Good"},
    ),
    Distribution(
        name="rlplug-raises",
        module="raises_plugin",
        source="import no_such_package_anywhere\n",
        algorithms={"raises": "raises_plugin:X"},
    ),
    Distribution(
        name="rlplug-exits",
        module="exits_plugin",
        source="raise SystemExit(7)\n",
        algorithms={"exits": "exits_plugin:X"},
    ),
    Distribution(
        name="rlplug-prints",
        module="prints_plugin",
        source="print('noise at import')\n" + GOOD,
        algorithms={"prints": "prints_plugin:Good"},
    ),
    Distribution(
        name="rlplug-future",
        module="future_plugin",
        source="raise AssertionError('must not be imported')\n",
        algorithms={"future": "future_plugin:X"},
        version="0.9.0",
        requires="rlplug>=0.9,<0.10",
    ),
    Distribution(
        name="rlplug-stranger",
        module="stranger_plugin",
        source="class X: ...\n",
        algorithms={"stranger": "stranger_plugin:X"},
    ),
    Distribution(
        name="rlplug-typo",
        module="typo_plugin",
        source=GOOD
        + "\n    import rlplug\n    @rlplug.hookimpl\n    def compute_loss_for_modul(self): ...\n",
        algorithms={"typo": "typo_plugin:Good"},
    ),
    Distribution(
        name="rlplug-usurper",
        module="usurper_plugin",
        source="from rlplug import AddOn\nclass X(AddOn):\n    def build(self): ...\n",
        addons={"usurper": "usurper_plugin:X"},
    ),
]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which all of `DISTRIBUTIONS` are installed."""
    folder = tmp_path_factory.mktemp("site")
    install_wheels(DISTRIBUTIONS, folder, tmp_path_factory.mktemp("wheels"))
    return folder


@pytest.fixture
def another_site(tmp_path: Path) -> Callable[..., Path]:
    """Install some of `DISTRIBUTIONS` elsewhere: `another_site("new", {"rlplug-means": "0.2"})`."""

    def install(name: str, versions: dict[str, str]) -> Path:
        folder, wheels = tmp_path / name, tmp_path / f"{name}-wheels"
        wheels.mkdir()
        chosen = [
            attrs.evolve(one, version=versions[one.name])
            for one in DISTRIBUTIONS
            if one.name in versions
        ]
        install_wheels(chosen, folder, wheels)
        return folder

    return install


def install_wheels(distributions: Sequence[Distribution], folder: Path, wheels: Path) -> None:
    """Do what pip does with wheels of Python files alone, in milliseconds."""
    for one in distributions:
        shutil.unpack_archive(one.wheel(wheels), folder, "zip")


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the distributions of `site` importable, and forget their modules afterwards."""
    monkeypatch.syspath_prepend(str(site))
    yield site
    for one in DISTRIBUTIONS:
        sys.modules.pop(one.module, None)
