"""What every test gets: a quiet machine, a W&B that reaches nobody, and no silent skips in CI."""

import contextlib
import functools
import gc
import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from andrea.store.runs import RunStore

if TYPE_CHECKING:
    from wandb_server import WandbServer

# Before anything imports torch or numpy: tests share few cores, and 1 and 2 threads give other
# bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Neither the terminal nor the settings of the person who runs the tests decide what is printed.
for _name in (
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"),
    *("TTY_COMPATIBLE", "TTY_INTERACTIVE", "ANDREA_RUNS"),
):
    os.environ.pop(_name, None)

# Torch and all that tests import are millions of objects, none of them garbage: looking through
# them again and again was a tenth of the time. See `pytest_collection_finish`.
gc.disable()

VOCABULARY = [
    "the",
    "of",
    "and",
    "to",
    "state",
    "union",
    "people",
    "nation",
    "year",
    "law",
    "peace",
    "war",
    "duty",
]

_skipped: list[str] = []


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A test that changes torch's threads changes them for itself alone; torch is not imported for
    this.
    """
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _as_in_the_foreground() -> Iterator[None]:
    """Signals end tests and their children as they end what runs in the foreground: a shell starts
    what it puts into the background with SIGINT ignored, and children inherit that.
    """
    ignored = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is signal.SIG_IGN]
    for number in ignored:
        default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
        signal.signal(number, default)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True, scope="session")
def _patient_mirrors() -> Iterator[None]:
    """Mirrors do not say that they are still writing: how long that takes is the machine's affair.
    Tests of what they say then choose a time of their own.
    """
    from andrea.tracking import mirror

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror, "SAY_S", 3600.0)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_power_cut() -> Iterator[None]:
    """Nothing waits for the disk: tests kill processes, and no kill loses what was written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_command_line() -> Iterator[None]:
    """The command line is put together from its functions once, not at every call of a test."""
    from typer import testing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", functools.cache(testing._get_command))
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_rehearsal() -> Iterator[None]:
    """A model of shipped parts is rehearsed once, not by each of hundreds of studies of it."""
    if "torch" not in sys.modules:
        yield
        return
    from andrea.model.registry import VARIANTS, variant
    from andrea.model.variants import is_users_own
    from andrea.training import rehearsal

    rehearsed: dict[str, Any] = {}
    build = rehearsal._build_and_run

    def build_once(cfg: Any) -> Any:
        if any(is_users_own(variant(axis, getattr(cfg, axis))) for axis in VARIANTS):
            return build(cfg)
        key = cfg.model_dump_json()
        if key not in rehearsed:
            rehearsed[key] = build(cfg)
        return rehearsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "_build_and_run", build_once)
        yield


@pytest.fixture(scope="session")
def _wandb_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wandb-home")


@pytest.fixture(autouse=True)
def _no_wandb_account(monkeypatch: pytest.MonkeyPatch, _wandb_home: Path) -> None:
    """No key, no server and no setting of the person who runs the tests reaches them."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "disabled")  # a test that wants a mirror says which
    monkeypatch.setenv("NETRC", str(_wandb_home / "netrc"))
    for name in ("WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(_wandb_home))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator["WandbServer"]:
    """A server that wandb takes for its own. It is sent rows every fifteen seconds."""
    from wandb_server import WandbServer

    with WandbServer() as running:
        monkeypatch.setenv("WANDB_BASE_URL", running.url)
        monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
        yield running
        from andrea.tracking.service import abandon_service

        abandon_service()  # of a test that failed, which would serve the next one


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mirrors that show a run as soon as it is trained."""
    from wandb_live import hurry

    hurry(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """An empty run store."""
    return RunStore(tmp_path / "runs")


def generated_text(words: int, seed: int = 0) -> str:
    """English-looking sentences, the same on every machine, with frequent and rare words, so that a
    model learns.
    """
    draw = random.Random(seed)
    weights = [1 / rank for rank in range(1, len(VOCABULARY) + 1)]
    chosen = draw.choices(VOCABULARY, weights, k=words)
    sentences = [
        " ".join(chosen[start : start + 12]).capitalize() + "." for start in range(0, words, 12)
    ]
    return "\n".join(sentences) + "\n"


@pytest.fixture
def tiny_text(tmp_path: Path) -> Path:
    """One generated text of about 100 kB: enough for a split and some batches of a tiny model."""
    path = tmp_path / "tiny.txt"
    path.write_text(generated_text(20_000), encoding="utf-8")
    return path


@contextlib.contextmanager
def drawing_nothing() -> Iterator[None]:
    """Reports without drawings and without the scripts that draw: a third of the time, for tests of
    what a page says. Specifications are checked by the tests that draw them.
    """
    from altair.utils import schemapi

    from andrea.analysis.formats import render

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            render,
            "draw_figures",
            lambda report: dict.fromkeys((f.name for f in report.figures()), "<svg ></svg>"),
        )
        patch.setattr(render, "_scripts", str)
        patch.setattr(schemapi, "DEBUG_MODE", False)
        patch.setattr(schemapi.SchemaBase, "validate", classmethod(lambda *_, **__: None))
        yield


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """No test of a module draws."""
    with drawing_nothing():
        yield


@pytest.fixture
def without_drawings() -> Iterator[None]:
    """One test does not draw."""
    with drawing_nothing():
        yield


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser that pages are looked at with."""
    found = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if found is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    return found


@pytest.fixture(scope="session")
def browser(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One process of it for many pages: a `browser.Browser`."""
    from browser import Browser

    opened = Browser(chromium, tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's script, which finds what keeps people out of a page."""
    script = Path(sys.prefix) / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        pytest.skip(
            "axe-core is not installed (Debian: apt-get install npm; then make install-dev)"
        )
    return script.read_text(encoding="utf-8")


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


def pytest_collection_finish() -> None:
    """Garbage is looked for in what tests make, not in what has been imported for them; and modules
    that tests write leave no `__pycache__` beside them, whatever the environment says.
    """
    sys.dont_write_bytecode = True
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Slow tests also wait for others: four at once keep two cores at work."""
    return 2 * (os.cpu_count() or 1) if config.option.markexpr == "slow" else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI everything that a test needs is there, so a skip hides something."""
    if _skipped and _in_ci() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _skipped and _in_ci():
        terminalreporter.section("CI is set: a skipped test is a failure", sep="=", red=True)
        for nodeid in _skipped:
            terminalreporter.line(f"SKIPPED IN CI {nodeid}")
