"""runs.jsonl: which runs belong to a study, each once and in an order that no kill changes."""

from collections import defaultdict
from collections.abc import Sequence

from andrea.errors import StudyError, UserError
from andrea.records.run import RunSpec
from andrea.store.studies import StudyFolder
from andrea.study.plan.frozen import FrozenStudy


class Replanned(UserError):
    """The runs derived now are not those that this study has recorded."""


class Ledger:
    """Walks the recorded runs while they are derived again from the store, and appends where the
    record ends.

    A study is planned by pure functions of the protocol and of results, so a resumed study derives
    the same lines. Where it does not, something that numbers depend on has changed (torch, the
    machine, andrea itself).

    The study's own runs are one sequence. Each thing that is trained beside it (the determinism
    check, the A/A runs, …) is a sequence of its own: sequences may be recorded in any order.

    Lines that were planned `without` an arm, since its tuning runs failed, are provisional: where
    they are not derived again they and all after them are replaced, but for those that this command
    has derived already.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        folder.mend_runs()
        self._recorded = folder.load_runs()
        self._derived = [False] * len(self._recorded)
        self.runs: list[RunSpec] = []
        """The runs derived by this command, in order."""

    @property
    def caught_up(self) -> bool:
        """True once all of the study's own runs that were recorded have been derived again."""
        pairs = zip(self._recorded, self._derived, strict=True)
        return all(derived or run.sequence for run, derived in pairs)

    def recorded(self, number: int) -> RunSpec | None:
        """Return line `number` of the study's own runs as an earlier command recorded it, or
        None.
        """
        own = [run for run in self._recorded if not run.sequence]
        return own[number] if number < len(own) else None

    @property
    def waiting(self) -> list[RunSpec]:
        """Runs beside the study that earlier commands recorded and this one has not derived yet."""
        pairs = zip(self._recorded, self._derived, strict=True)
        return [run for run, derived in pairs if run.sequence and not derived]

    def require_same(self, study: FrozenStudy) -> None:
        """Make sure that the study's own runs, as recorded, would have the same ids today.

        Raises:
            Replanned: they would not.
        """
        for number, run in enumerate(self._recorded):
            if not run.sequence and run.arm in study.arms:
                today = run.model_copy(update={"run_id": study.replan(run).run_id})
                self._compare(run, today, number)

    def expect(self, planned: Sequence[RunSpec], without: Sequence[str] = ()) -> None:
        """Compare the next lines with what is recorded; append those that are not.

        Args:
            without: arms that this plan had to leave out.

        Raises:
            Replanned: a recorded line differs that is not provisional.
            StudyError: an arm is left out now whose runs were planned when it could be tuned.
        """
        remaining = self._remaining()
        for run in planned:
            line = run.model_copy(update={"without": list(without)}) if without else run
            number = next(iter(remaining[line.sequence]), None)
            if number is not None and self._is_replaced(number, line):
                self._drop_from(number)
                remaining, number = self._remaining(), None
            if number is None:
                self._folder.add_run(line)
                self._recorded.append(line)
                self._derived.append(True)
            else:
                self._compare(self._recorded[number], line, number)
                self._derived[number] = True
                remaining[line.sequence].pop(0)
            self.runs.append(line)

    def _is_replaced(self, number: int, line: RunSpec) -> bool:
        recorded = self._recorded[number]
        return bool(recorded.without) and recorded.to_json() != line.to_json()

    def _remaining(self) -> dict[str, list[int]]:
        """Return the numbers of the lines that were not derived again yet, by sequence."""
        remaining = defaultdict(list)
        for number, run in enumerate(self._recorded):
            if not self._derived[number]:
                remaining[run.sequence].append(number)
        return remaining

    def _drop_from(self, first: int) -> None:
        """Drop the lines from this one on that were not derived again."""
        kept = [i for i, derived in enumerate(self._derived) if i < first or derived]
        self._recorded = [self._recorded[i] for i in kept]
        self._derived = [self._derived[i] for i in kept]
        self._folder.write_runs(self._recorded)

    def _compare(self, recorded: RunSpec, derived: RunSpec, number: int) -> None:
        before, now = recorded.to_json(), derived.to_json()
        if before == now:
            return
        name = self._folder.path.name
        if derived.without and not recorded.without:
            raise StudyError(
                f"study {name}: a tuning run of {', '.join(derived.without)} has lost its result, "
                f"and failed at every try now (andrea status {name} says why); the same command "
                "given again tries once more"
            )
        keys = before.keys() | now.keys()
        changed = sorted(key for key in keys if before.get(key) != now.get(key))
        why = f"line {number + 1} of its runs.jsonl differs in {', '.join(changed)}"
        if changed == ["run_id"]:
            why = (
                "torch, the device or andrea's numerics changed since it was frozen, so its runs "
                "would have other ids"
            )
        raise Replanned(
            f"study {name} cannot be resumed here: {why}; resume it where it was started, "
            "or start another with --study NAME"
        )
