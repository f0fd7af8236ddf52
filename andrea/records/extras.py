"""What is asked of a study beside its question: controls, equal budgets, a confirmation. Kept in
asked.json.

None of it is part of the study's digest: controls can only take words away, budgets and a
confirmation are judged beside the verdicts. So an old study can be asked for them. What was asked
once stays asked: a control that failed is not got rid of by leaving the option away.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from andrea.errors import UserError, nearest
from andrea.store.studies import StudyFolder, named

Budget = Literal["flops", "time"]
BUDGETS: tuple[Budget, ...] = ("flops", "time")
FILE = "asked.json"


@dataclass(frozen=True)
class Asked:
    """What is trained and judged beside the question."""

    controls: bool = False
    """Repeat, A/A and rulers."""
    confirm: bool = False
    """A second block of seeds, judged alone."""
    equal: tuple[Budget, ...] = ()
    """Budgets at which the arms are compared besides equal tokens."""

    def __or__(self, other: "Asked") -> "Asked":
        equal = tuple(kind for kind in BUDGETS if kind in (*self.equal, *other.equal))
        return Asked(self.controls or other.controls, self.confirm or other.confirm, equal)

    def __bool__(self) -> bool:
        return self.controls or self.confirm or bool(self.equal)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"controls": self.controls, "confirm": self.confirm, "equal": list(self.equal)}


def asked_of(folder: StudyFolder) -> Asked:
    """What was asked of a study so far: asked.json, and what its planned runs tell where that file
    was lost.
    """
    told = folder.read(FILE) or {}
    equal = named(told.get("equal"))
    asked = Asked(
        bool(told.get("controls")),
        bool(told.get("confirm")),
        tuple(k for k in BUDGETS if k in equal),
    )
    for run in folder.runs():
        phase = run.get("phase")
        why = str(run.get("why", "")).removeprefix("equal ")
        budget = tuple(kind for kind in BUDGETS if phase == "budget" and why == kind)
        asked |= Asked(phase == "control", phase == "confirm", budget)
    return asked


def remember(folder: StudyFolder, asked: Asked) -> None:
    """Write what is asked of the study, if the file does not say it already."""
    if asked and folder.read(FILE) != asked.to_dict():
        folder.write(FILE, asked.to_dict())


def budgets(words: Iterable[str]) -> tuple[Budget, ...]:
    """The budgets that `--equal flops,time` names, in the order in which they are trained.

    Raises:
        UserError: a word that names none.
    """
    asked = list(words)
    for word in asked:
        if word not in BUDGETS:
            raise UserError(f"--equal {word!r}: no budget to compare at; {nearest(word, BUDGETS)}")
    return tuple(kind for kind in BUDGETS if kind in cast("list[Budget]", asked))
