"""What is trained beside a study's own runs, once those are done: controls, equal budgets, a
confirmation.

Each of them is a generation that is planned from the protocol, the choices and finished results
alone, like all others.
"""

from collections.abc import Mapping
from typing import Any

from andrea.config import RunConfig
from andrea.errors import StudyError, UserError
from andrea.records.extras import Extras
from andrea.study.desk import Desk
from andrea.study.ledger import Replanned
from andrea.study.stages import arm_speed as speed
from andrea.study.stages import confirm, controls
from andrea.study.stages import equal_cost as budgets
from andrea.study.stages.evidence import Record


def ask(desk: Desk, asked: Extras) -> None:
    """Remember what is asked of a study beside its question.

    Raises:
        UserError: it cannot be done, or not here; nothing was written.
    """
    known = desk.folder.load_extras()
    wanted = known | asked
    if wanted != known:
        if wanted.controls:
            told = desk.study.resolved["arms"][str(desk.study.baseline)]["config"]
            controls.ruler_tokens(RunConfig.model_validate(told), 0.5)
        desk.study.require_platform()
        try:
            desk.ledger.require_same(desk.study)
        except (
            Replanned
        ) as error:  # not what a finished study is read in spite of: more was asked for
            raise UserError(str(error)) from error
    elif asked.confirm and desk.folder.complete:
        name = desk.folder.path.name
        desk.watch.say(
            f"study {name} has its confirmation: there is one per study, not as many as it takes "
            "to agree"
        )
    desk.folder.save_extras(wanted)


def train(desk: Desk, choices: Mapping[str, Mapping[str, Any]], generation: int) -> None:
    """Have everything done that is asked of the study and has a baseline to stand beside."""
    asked, seeds = desk.folder.load_extras(), desk.study.protocol.seeds
    if asked.controls:
        runs = controls.planned(_record(desk, choices), generation)
        desk.do("control", f"a repeat, A/A and rulers on {seeds} seeds", runs)
    measured = _speed(desk) if asked.controls or "time" in asked.equal else None
    for kind in asked.equal:
        tokens = budgets.to_train(
            _record(desk, choices), kind, measured, desk.ledger.beside("budget", f"equal {kind}")
        )
        if tokens:
            runs = budgets.planned(_record(desk, choices), kind, tokens, generation)
            desk.do("budget", f"arms on as many tokens as make equal {kind}", runs)
    if asked.confirm:
        _confirm(desk, choices, generation)


def _confirm(desk: Desk, choices: Mapping[str, Mapping[str, Any]], generation: int) -> None:
    """A second block is not looked at before the first has its verdict; one that was begun is there
    to be judged.
    """
    begun = desk.ledger.beside("confirm", confirm.WHY)
    if not begun and any(run["run_id"] not in desk.results for run in desk.ledger.runs):
        desk.watch.say("the confirmation waits for the first verdict, which failed runs leave open")
        return
    runs = confirm.planned(_record(desk, choices), generation)
    desk.do(
        "confirm", f"{desk.study.protocol.seeds} seeds that no run of this study has seen", runs
    )


def _speed(desk: Desk) -> dict[str, Any] | None:
    """How fast the arms train; what cannot be measured costs a line and the numbers that rest on
    it.
    """
    known = speed.read(desk.folder, desk.study)
    if known is None:
        try:
            desk.study.require_platform()
            return speed.measure(desk.folder, desk.study, desk.watch.say)
        except (StudyError, UserError) as error:
            desk.watch.say(str(error))
    return known


def _record(desk: Desk, choices: Mapping[str, Mapping[str, Any]]) -> Record:
    return Record(desk.study, choices, desk.ledger.runs, desk.results)
