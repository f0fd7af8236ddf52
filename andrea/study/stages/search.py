"""A sweep: generations of trials proposed together, each a pure function of the generations before
it.
"""

from typing import Any

from andrea.records.events import Run
from andrea.study.desk import Desk, Summary
from andrea.study.optuna_journal import Trial, propose, sampling
from andrea.study.stages.tune import attributes, is_good, score
from andrea.verdict.seeds import tuning_seed


def search(desk: Desk) -> Summary:
    """Propose, run and tell generation by generation; writes best.json at the end."""
    search = Search(desk)
    while len(search.trials) < search.sweep.trials:
        runs = search.next_generation()
        batch = desk.do("trial", search.note(), runs)
        if batch.failed:
            return desk.summary(complete=False)
    desk.folder.write("best.json", search.best())
    return Summary(True)


class Search:
    """The trials so far. A trial is `seeds` runs; trials with equal parameters share theirs."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.sweep = desk.study.sweep
        self.arm = desk.study.arms[0]
        self.space = self.sweep.distributions()
        self.trials: list[dict[str, Any]] = []
        """One per trial: number, params, runs, generation, duplicate_of."""
        desk.project = lambda desk: desk.journal.project({self.arm: self.space}, self._history())

    def note(self) -> str:
        """What the display says of the generation at hand; trials are numbered from 0, as Optuna
        does.
        """
        first, last = (
            self.trials[-1]["generation"] * self.sweep.generation,
            self.trials[-1]["number"],
        )
        several = f"trials {first} to {last}" if first < last else f"trial {last}"
        return f"{several} of 0 to {self.sweep.trials - 1}"

    def next_generation(self) -> list[Run]:
        """Ask for all trials of a generation before any of them is run."""
        first = len(self.trials)
        told = self._history()
        for number in range(first, min(first + self.sweep.generation, self.sweep.trials)):
            params = self._recorded(number) or self._proposed(number, told)
            duplicate = next((t["number"] for t in self.trials if t["params"] == params), None)
            row: dict[str, Any] = {
                "arm": self.arm,
                "phase": "trial",
                "why": "trial",
                "lr": None,
                "trial": number,
            }
            row |= {"generation": first // self.sweep.generation, "params": params}
            if duplicate is not None:
                row["duplicate_of"] = duplicate
            runs = [self._desk.study.run(row, tuning_seed(i)) for i in range(self.sweep.seeds)]
            trial = {"number": number, "params": params, "runs": runs}
            self.trials.append(trial | {"generation": row["generation"], "duplicate_of": duplicate})
            told.append(self._trial(trial | {"duplicate_of": duplicate}, told=False))
        return [run for trial in self.trials[first:] for run in trial["runs"]]

    def _recorded(self, number: int) -> dict[str, Any] | None:
        """The parameters of a trial that an earlier command proposed: an unfinished trial is taken
        up, not replaced.
        """
        run = self._desk.ledger.recorded(number * self.sweep.seeds)
        return dict(run["params"]) if run else None

    def _proposed(self, number: int, history: list[Trial]) -> dict[str, Any]:
        if self.sweep.sampler == "grid":
            cells = self.sweep.cells() or []
            return cells[number]
        return propose(self.space, self.sweep.tpe_arguments, self.sweep.seed, history)

    def _history(self) -> list[Trial]:
        return [self._trial(trial) for trial in self.trials]

    def _trial(self, trial: dict[str, Any], *, told: bool = True) -> Trial:
        """A trial as Optuna knows it; its value is there only once all of its generation's runs
        are.
        """
        runs = trial["runs"]
        asked = {"runs": [run["run_id"] for run in runs], "duplicate_of": trial["duplicate_of"]}
        results = [
            self._desk.results[run["run_id"]]
            for run in runs
            if told and run["run_id"] in self._desk.results
        ]
        if len(results) < len(runs):
            return Trial(self.arm, trial["number"], runs[0]["run_id"], trial["params"], None, asked)
        value = sum(map(score, results)) / len(results)
        shown = attributes(next((result for result in results if not is_good(result)), results[0]))
        return Trial(
            self.arm, trial["number"], runs[0]["run_id"], trial["params"], value, asked, shown
        )

    def best(self) -> dict[str, Any]:
        """best.json: the best good trial on top, every trial below it. Ties go to the earlier
        trial.
        """
        rows = [self._row(trial) for trial in self.trials]
        good = [row for row in rows if row["ok"]]
        best = min(good, key=lambda row: (row["loss"], row["trial"])) if good else None
        told: dict[str, Any] = {
            "trial": None,
            "loss": None,
            "params": None,
            "run_id": None,
            "config": None,
        }
        if best is not None:
            told = {key: best[key] for key in ("trial", "loss", "params", "run_id")}
            told["config"] = self._desk.study.config(best["run_id"])
        sampler: dict[str, Any] = {
            "sampler": self.sweep.sampler,
            "seed": self.sweep.seed,
            "generation": self.sweep.generation,
        }
        sampler["sampling"] = sampling(self.sweep)
        return {**told, "trials": rows, "search": sampler, "complete": True}

    def _row(self, trial: dict[str, Any]) -> dict[str, Any]:
        results = [self._desk.results[run["run_id"]] for run in trial["runs"]]
        bad = next((result for result in results if not is_good(result)), None)
        shown = bad or results[0]
        return {
            "trial": trial["number"],
            "generation": trial["generation"],
            "params": trial["params"],
            "loss": sum(map(score, results)) / len(results),
            "ok": bad is None,
            "outcome": shown["outcome"],
            "stalled": shown["stalled"],
            "run_id": trial["runs"][0]["run_id"],
            "runs": [run["run_id"] for run in trial["runs"]],
            "duplicate_of": trial["duplicate_of"],
        }
