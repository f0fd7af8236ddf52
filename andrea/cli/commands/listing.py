"""`andrea list`: what the catalogue holds."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from andrea.cli.options import DEFAULT_RUNS, Debug, Json, Runs, examples

Kind = Literal["ablations", "sweeps", "reports", "variants", "presets", "studies"]
KINDS: tuple[Kind, ...] = ("ablations", "sweeps", "reports", "variants", "presets", "studies")

EXAMPLES = examples("andrea list", "andrea list ablations", "andrea list presets --json")


def listing(
    what: Annotated[
        Kind | None, typer.Argument(metavar="KIND", help="What to list; default: everything.")
    ] = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What can be asked: names, questions, and where they come from."""
    from andrea.cli.show.output import print_json, table

    found = {kind: entries(kind, runs) for kind in ([what] if what else KINDS)}
    if as_json:
        print_json(found)
        return
    parts = []
    for kind, rows in found.items():
        shown = ("axis", "name", "about") if kind == "variants" else ("name", "about", "origin")
        parts.append(
            table([[r[key] for key in shown] for r in rows], (kind, "", ""))
            if rows
            else f"{kind}: none"
        )
    typer.echo("\n\n".join(parts))


def entries(kind: Kind, runs: Path) -> list[dict[str, Any]]:
    """Entries of one kind, each with name, about (its question or what it is) and origin."""
    if kind == "presets":
        return [_preset(name) for name in _presets()]
    if kind == "variants":
        return _variants()
    if kind == "studies":
        from andrea.cli.stores import open_store
        from andrea.store.studies import studies

        store = open_store(runs)
        return [
            {"name": s.path.name, "about": str(s.about.get("kind")), "origin": str(s.path)}
            for s in studies(store)
        ]
    from andrea import catalogue

    return [
        {
            "name": entry.name,
            "about": entry.title or "(cannot be read)",
            "origin": entry.origin + (", hides the shipped one" if entry.shadows else ""),
        }
        for entry in catalogue.list_entries(kind)
    ]


def _variants() -> list[dict[str, Any]]:
    """The shipped variants of every axis with the first sentence about each."""
    import re
    from inspect import getdoc

    from andrea.model.registry import VARIANTS, variant

    return [
        {
            "axis": axis,
            "name": name,
            "about": re.split(
                r"\.(?:\s+(?=[A-Z])|$)", " ".join((getdoc(variant(axis, name)) or "").split())
            )[0],
            "origin": "shipped",
        }
        for axis, names in VARIANTS.items()
        for name in names
    ]


def _presets() -> list[str]:
    from andrea.model.presets import PRESETS

    return list(PRESETS)


def _preset(name: str) -> dict[str, Any]:
    from andrea.cli.commands.model import configured
    from andrea.model.summary import describe
    from andrea.text.numbers import big

    config = configured(name, [])
    shape = (
        f"{config.n_layer} blocks, d {config.d_model}, {config.n_head} heads, T {config.context}"
    )
    # A billion parameters is B in this field, a billion operations G.
    total = big(describe(config).parameters.total).replace("G", "B")
    return {"name": name, "about": f"{shape}: {total} parameters", "origin": "shipped"}
