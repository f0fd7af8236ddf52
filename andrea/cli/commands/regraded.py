"""`andrea report --regrade`: what the present method says of studies that an older one has judged."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from andrea.study.regrade import Regraded


def regraded(runs: Path, names: Sequence[str], *, say: bool) -> dict[str, Any]:
    """Judge studies anew and, where wanted, print what changes; the same as JSON values by study.

    Raises:
        UserError: no study is named, there is none of a name, or it has no verdict.
        StudyError: the store has lost runs of it.
    """
    from andrea.cli.stores import named
    from andrea.errors import UserError
    from andrea.study.regrade import regrade

    if not names:
        raise UserError(
            "andrea report --regrade: name the STUDY whose runs are to be judged anew (`andrea "
            "status`)"
        )
    found = {}
    for store, folder in [named(runs, name) for name in names]:
        told = regrade(folder, store)
        if say:
            typer.echo(_said(told))
        found[told.study] = told.to_dict()
    return found


def _said(told: "Regraded") -> str:
    from andrea.cli.show.output import table

    before = "unknown method" if told.method_before is None else f"method {told.method_before}"
    lines = [f"note: {note}" for note in told.notes]
    if told.changed:
        rows = [(change.of, change.before, change.after) for change in told.changed]
        lines.append(table(rows, ("arm or effect", before, f"method {told.method}")))
    else:
        lines.append("no verdict changes" if told.kept else "nothing changes")
    if told.kept:
        lines.append(f"what was there before is kept in {', '.join(told.kept)}")
    count = f"{len(told.changed)} of {len(told.changes)} verdicts change"
    return "\n".join([f"{told.study}: {before} → {told.method}, {count}", *lines])
