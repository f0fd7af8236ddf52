"""runs.jsonl: which runs belong to a study, each once and in an order that no kill changes."""

from collections.abc import Sequence

from andrea.errors import UserError
from andrea.store.studies import StudyFolder
from andrea.study.events import Run


class Replanned(UserError):
    """The runs derived now are not those that this study has recorded."""


class Ledger:
    """Walks the recorded runs while they are derived again from the store, and appends where the record ends.

    A study is planned by pure functions of the protocol and of results, so a resumed study derives the same lines.
    Where it does not, something that numbers depend on has changed under it (torch, the machine, andrea itself).

    Lines that were planned `without` an arm, since its tuning runs failed, are provisional: where they are not derived
    again they and all after them give way.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        folder.mend_runs()
        self._known = folder.runs()
        self.runs: list[Run] = []

    @property
    def caught_up(self) -> bool:
        """Whether everything that was recorded has been derived again."""
        return len(self.runs) >= len(self._known)

    def recorded(self, number: int) -> Run | None:
        """Line `number` as an earlier command recorded it, or None."""
        return self._known[number] if number < len(self._known) else None

    def expect(self, planned: Sequence[Run], without: Sequence[str] = ()) -> None:
        """The next lines are these: compare what is recorded, append the rest.

        Args:
            without: arms that this plan had to leave out.

        Raises:
            Replanned: a recorded line differs that is not provisional.
        """
        for run in planned:
            line, number = {**run, "without": list(without)} if without else run, len(self.runs)
            known = self.recorded(number)
            if known and known.get("without") and known != line:
                self._known = self._known[:number]
                self._folder.write_runs(self._known)
                known = None
            if known is None:
                self._folder.add_run(line)
            else:
                self._compare(known, line, number)
            self.runs.append(line)

    def _compare(self, known: Run, run: Run, number: int) -> None:
        if known == run:
            return
        name = self._folder.path.name
        changed = sorted(key for key in known.keys() | run.keys() if known.get(key) != run.get(key))
        why = f"line {number + 1} of its runs.jsonl differs in {', '.join(changed)}"
        if changed == ["run_id"]:
            why = "torch, the device or andrea's numerics changed since it was frozen, so its runs would have other ids"
        raise Replanned(
            f"study {name} cannot be resumed here: {why}; resume it where it was started, "
            "or start another with --study NAME"
        )
