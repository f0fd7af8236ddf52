"""runs.jsonl: which runs belong to a study, each once and in an order that no kill changes."""

from collections import defaultdict
from collections.abc import Sequence

from andrea.errors import StudyError, UserError
from andrea.records.events import Run
from andrea.store.studies import StudyFolder
from andrea.study.plan.frozen import FrozenStudy

OWN = ("tune", "trial", "replicate")
"""Phases of the study itself; controls, budgets and a confirmation are trained beside it."""


class Replanned(UserError):
    """The runs derived now are not those that this study has recorded."""


class Ledger:
    """Walks the recorded runs while they are derived again from the store, and appends where the
    record ends.

    A study is planned by pure functions of the protocol and of results, so a resumed study derives
    the same lines. Where it does not, something that numbers depend on has changed under it (torch,
    the machine, andrea itself).

    The study's own runs are one sequence. Each thing that is trained beside it (the repeats, the
    A/A runs, …) is a sequence of its own: in which order they were asked for is the order of the
    file, and of nothing else.

    Lines that were planned `without` an arm, since its tuning runs failed, are provisional: where
    they are not derived again they and all after them give way, but for those that this command has
    derived already.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        folder.mend_runs()
        self._known = folder.runs()
        self._derived = [False] * len(self._known)
        self.runs: list[Run] = []

    @property
    def caught_up(self) -> bool:
        """Whether all of the study's own runs that were recorded have been derived again."""
        return all(
            done or _sequence(run) for run, done in zip(self._known, self._derived, strict=True)
        )

    def recorded(self, number: int) -> Run | None:
        """Line `number` of the study's own runs as an earlier command recorded it, or None."""
        own = [run for run in self._known if not _sequence(run)]
        return own[number] if number < len(own) else None

    def beside(self, phase: str, why: str) -> list[Run]:
        """What earlier commands have recorded of one thing that is trained beside the study."""
        return [run for run in self._known if (run["phase"], run["why"]) == (phase, why)]

    @property
    def waiting(self) -> list[Run]:
        """What earlier commands have recorded of what is trained beside the study, and nobody has
        derived again yet.
        """
        return [
            run
            for run, done in zip(self._known, self._derived, strict=True)
            if _sequence(run) and not done
        ]

    def require_same(self, study: FrozenStudy) -> None:
        """Make sure that the study's own runs, as recorded, would have the same ids today.

        Raises:
            Replanned: they would not.
        """
        for number, run in enumerate(self._known):
            if not _sequence(run) and run["arm"] in study.arms:
                again = study.run({"trial": None, "generation": None, **run}, run["seed"])
                self._compare(run, {**run, "run_id": again["run_id"]}, number)

    def expect(self, planned: Sequence[Run], without: Sequence[str] = ()) -> None:
        """The next lines are these: compare what is recorded, append the rest.

        Args:
            without: arms that this plan had to leave out.

        Raises:
            Replanned: a recorded line differs that is not provisional.
            StudyError: an arm is left out now whose runs were planned when it could be tuned.
        """
        left = self._left()
        for run in planned:
            line = {**run, "without": list(without)} if without else run
            number = next(iter(left[_sequence(line)]), None)
            if (
                number is not None
                and self._known[number].get("without")
                and self._known[number] != line
            ):
                self._give_way(number)
                left, number = self._left(), None
            if number is None:
                self._folder.add_run(line)
                self._known.append(line)
                self._derived.append(True)
            else:
                self._compare(self._known[number], line, number)
                self._derived[number] = True
                left[_sequence(line)].pop(0)
            self.runs.append(line)

    def _left(self) -> dict[str, list[int]]:
        """Lines that were recorded and not derived again yet, by sequence."""
        left = defaultdict(list)
        for number, run in enumerate(self._known):
            if not self._derived[number]:
                left[_sequence(run)].append(number)
        return left

    def _give_way(self, first: int) -> None:
        """Drop the lines from this one on that were not derived again."""
        kept = [i for i, derived in enumerate(self._derived) if i < first or derived]
        self._known, self._derived = (
            [self._known[i] for i in kept],
            [self._derived[i] for i in kept],
        )
        self._folder.write_runs(self._known)

    def _compare(self, known: Run, run: Run, number: int) -> None:
        if known == run:
            return
        name = self._folder.path.name
        if run.get("without") and not known.get("without"):
            raise StudyError(
                f"study {name}: a tuning run of {', '.join(run['without'])} has lost its result, "
                "and failed "
                f"at every try now (andrea status {name} says why); the same command given again "
                "tries once more"
            )
        changed = sorted(key for key in known.keys() | run.keys() if known.get(key) != run.get(key))
        why = f"line {number + 1} of its runs.jsonl differs in {', '.join(changed)}"
        if changed == ["run_id"]:
            why = "torch, the device or andrea's numerics changed since it was frozen, so its runs would have other ids"
        raise Replanned(
            f"study {name} cannot be resumed here: {why}; resume it where it was started, "
            "or start another with --study NAME"
        )


def _sequence(run: Run) -> str:
    """Name of the sequence that a line belongs to; empty for the study's own."""
    return "" if run["phase"] in OWN else f"{run['phase']} {run['why']}"
