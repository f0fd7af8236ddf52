"""`andrea list`: what the catalogue holds."""

import re
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Literal

import typer

from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Runs, argument, examples
from andrea.cli.show.output import print_json, table
from andrea.model.presets import PRESETS
from andrea.text.numbers import big

Kind = Literal["ablations", "sweeps", "reports", "variants", "presets", "studies"]
KINDS: tuple[Kind, ...] = ("ablations", "sweeps", "reports", "variants", "presets", "studies")

EXAMPLES = examples("andrea list", "andrea list ablations", "andrea list presets --json")

Entry = dict[str, str]
"""`name`, `about` (its question, or a sentence) and `origin`; of a variant also its `axis`."""


def listing(
    what: Annotated[Kind | None, argument("KIND", "What to list; default: everything.")] = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What can be asked: names, questions, and where they come from."""
    kinds = [what] if what else KINDS
    entries = {kind: list_entries(kind, runs) for kind in kinds}
    if as_json:
        print_json(entries)
        return
    typer.echo("\n\n".join(entries_as_text(kind, rows) for kind, rows in entries.items()))


def entries_as_text(kind: Kind, entries: list[Entry]) -> str:
    """Return the entries of one kind as a table."""
    if not entries:
        return f"{kind}: none"
    columns = ("axis", "name", "about") if kind == "variants" else ("name", "about", "origin")
    return table([[entry[column] for column in columns] for entry in entries], (kind, "", ""))


def list_entries(kind: Kind, runs: Path) -> list[Entry]:
    """Return the entries of one kind."""
    if kind == "presets":
        return list_presets()
    if kind == "variants":
        return list_variants()
    if kind == "studies":
        return list_studies(runs)
    from andrea import catalogue

    entries = []
    for found in catalogue.list_entries(kind):
        origin = f"{found.origin}, hides the shipped one" if found.shadows else found.origin
        about = found.title or "(cannot be read)"
        entries.append({"name": found.name, "about": about, "origin": origin})
    return entries


def list_studies(runs: Path) -> list[Entry]:
    """Return the studies of the runs folder."""
    from andrea.cli.stores import open_store
    from andrea.store.studies import list_studies

    entries = []
    for study in list_studies(open_store(runs)):
        kind = str(study.load_info().kind)
        entries.append({"name": study.path.name, "about": kind, "origin": str(study.path)})
    return entries


def list_variants() -> list[Entry]:
    """Return the shipped variants of every axis with the first sentence about each."""
    from andrea.model.registry import VARIANTS, variant

    entries = []
    for axis, names in VARIANTS.items():
        for name in names:
            text = " ".join((getdoc(variant(axis, name)) or "").split())
            # A point ends the sentence where a capital or nothing follows: not the one in `0.1`.
            about = re.split(r"\.(?:\s+(?=[A-Z])|$)", text)[0]
            entries.append({"axis": axis, "name": name, "about": about, "origin": "shipped"})
    return entries


def list_presets() -> list[Entry]:
    """Return the presets with their shapes and sizes."""
    from andrea.cli.commands.model import parse_model
    from andrea.model.summary import describe

    entries = []
    for name in PRESETS:
        cfg = parse_model(name, [])
        shape = f"{cfg.n_layer} blocks, d {cfg.d_model}, {cfg.n_head} heads, T {cfg.context}"
        # A billion parameters is B in this field, a billion operations G.
        total = big(describe(cfg).parameters.total).replace("G", "B")
        about = f"{shape}: {total} parameters"
        entries.append({"name": name, "about": about, "origin": "shipped"})
    return entries
