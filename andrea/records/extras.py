"""What is asked of a study beside its question: controls, equal budgets, a confirmation.

None of it is part of the study's digest: controls can only take words away, budgets and a
confirmation are judged beside the verdicts. So an old study can be asked for them. What was asked
once stays asked: a control that failed cannot be dropped by leaving the option away.
"""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import model_serializer

from andrea.errors import UserError, nearest
from andrea.records.base import Record, Several

Budget = Literal["flops", "time"]
BUDGETS: tuple[Budget, ...] = ("flops", "time")
"""In the order in which they are trained."""


class Extras(Record):
    """asked.json: what is trained and judged beside the question."""

    controls: bool = False
    """Determinism check, A/A and positive controls."""
    confirm: bool = False
    """A second block of seeds, judged alone."""
    equal: Several[Budget] = []
    """Budgets at which the arms are compared besides equal tokens."""

    def __or__(self, other: "Extras") -> "Extras":
        equal = [budget for budget in BUDGETS if budget in (*self.equal, *other.equal)]
        return Extras(
            controls=self.controls or other.controls,
            confirm=self.confirm or other.confirm,
            equal=equal,
        )

    def __bool__(self) -> bool:
        return self.controls or self.confirm or bool(self.equal)

    @model_serializer
    def _write_all(self) -> dict[str, Any]:
        # Also what was not asked for: the file is an answer to three questions.
        return {"controls": self.controls, "confirm": self.confirm, "equal": self.equal}

    def covers(self, other: "Extras") -> bool:
        """Return whether all that `other` asks is asked here too."""
        return (self | other).to_json() == (self | Extras()).to_json()


def parse_budgets(words: Iterable[str]) -> list[Budget]:
    """Return the budgets that `--equal flops,time` names, in the order in which they are trained.

    Raises:
        UserError: a word that names none.
    """
    asked = list(words)
    for word in asked:
        if word not in BUDGETS:
            raise UserError(f"--equal {word!r}: no budget to compare at; {nearest(word, BUDGETS)}")
    return [budget for budget in BUDGETS if budget in asked]
