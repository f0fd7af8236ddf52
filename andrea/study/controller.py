"""The one process that owns a study: plans, has runs done, decides, writes what came out.

Everything is derived from the protocol and the store, generation by generation, and each generation
waits for all of its runs. So neither slots nor kills change a number, and to resume is to derive
everything once more.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from andrea.errors import StudyError, disk_full
from andrea.execution.dispatch import disk_message
from andrea.execution.executors import Executor
from andrea.records.events import Observer, Observers, Run
from andrea.records.extras import Extras
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study import beside
from andrea.study.desk import Desk, Summary
from andrea.study.ledger import Replanned
from andrea.study.optuna_journal import Trial
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.regrade import keep_older
from andrea.study.stages import tune as tuning
from andrea.study.stages.search import search
from andrea.study.stages.verdict import verdicts
from andrea.verdict.seeds import replication_seed, tuning_seed
from andrea.verdict.tuning import Decision


def run_study(
    folder: StudyFolder,
    store: RunStore,
    executor: Executor,
    observers: Sequence[Observer] = (),
    asked: Extras | None = None,
) -> Summary:
    """Run a frozen study to its end, or take it up where it stopped.

    Writes runs.jsonl, choices.json and verdict.json (a sweep: best.json) and the Optuna journal.
    Returns incomplete when runs failed at every try.

    Args:
        asked: what is asked of an ablation beside its question; what was asked before stays asked.

    Raises:
        UserError: another controller is at it, or it was frozen on another platform.
        StudyError: the disk is full.
        KeyboardInterrupt: Ctrl-C; all workers are gone, and the same command resumes.
    """
    watch = Observers(observers)
    with folder.held():
        try:
            return _run(Desk(folder, store, executor, watch), asked or Extras())
        except Replanned:
            # It is done: what torch or the machine became since does not matter.
            if not folder.complete:
                raise
            watch.say(f"study {folder.path.name} is complete; it was run on another platform")
            return Summary(True)
        except OSError as error:
            if not disk_full(error):
                raise
            raise StudyError(disk_message(store.root, str(error))) from error
        finally:
            executor.cancel()


def _run(desk: Desk, asked: Extras) -> Summary:
    desk.study.require_data()
    if desk.study.kind == "sweep":
        return search(desk)
    beside.ask(desk, asked)
    return ablate(desk)


def ablate(desk: Desk) -> Summary:
    """Tune every arm alike, replicate every arm at its rate on the same fresh seeds, do what is
    asked beside, judge.

    An arm of which a tuning run fails at every try gets no rate, and the others go on without it.
    What is planned without it is provisional: the next command tries again and, if it then works,
    plans as if it had never failed.
    """
    study, desk.project = desk.study, _project
    decision = _decide(desk)
    while decision.phase != "done":
        tried = Counter(run["arm"] for run in desk.ledger.runs)
        rows = tuning.generation(decision, study.arms, tried)
        runs = [study.run(row, tuning_seed(0)) for row in rows]
        desk.do(decision.phase, decision.note, runs)
        decision = _decide(desk)
    if kept := keep_older(desk.folder):
        desk.watch.say(
            f"judged by a newer method; what the older one said is kept in {', '.join(kept)}"
        )
    choices = tuning.choices(decision, study.arms, desk.ledger.runs, desk.results)
    desk.folder.write("choices.json", choices)
    replicates = _replicates(study, choices, decision.generation)
    if replicates:
        desk.do(
            "replicate", f"{study.protocol.seeds} fresh seeds, the same in every arm", replicates
        )
        if desk.folder.load_extras() and (kept or not desk.folder.complete):
            # What is known already can be read while the rest is trained; it is not the whole
            # answer. A study that is whole stays so while its command, given again, looks whether
            # it is.
            early = verdicts(study, choices, *desk.known())
            desk.folder.write("verdict.json", {**early, "complete": False})
        beside.train(desk, choices, decision.generation + 1)
    found = verdicts(study, choices, desk.ledger.runs, desk.results)
    desk.folder.write("verdict.json", found)
    if found["exploratory"] and not study.resolved["exploratory"]:
        desk.folder.write("resolved.json", {**study.resolved, "exploratory": True})
    return desk.summary(complete=bool(found["complete"]))


def _decide(desk: Desk) -> Decision:
    return tuning.decide(desk.study, desk.ledger.runs, desk.results, desk.untuned)


def _replicates(
    study: FrozenStudy, choices: Mapping[str, Mapping[str, Any]], generation: int
) -> list[Run]:
    """Seed by seed through all arms that have a rate, so that pairs end together; none without a
    baseline's rate.
    """
    if choices[str(study.baseline)]["lr"] is None:
        return []
    runs = []
    for i in range(study.protocol.seeds):
        for arm in study.arms:
            if choices[arm]["lr"] is not None:
                row = {
                    "arm": arm,
                    "phase": "replicate",
                    "why": "replicate",
                    "lr": choices[arm]["lr"],
                }
                row |= {"trial": None, "generation": generation}
                runs.append(study.run(row, replication_seed(i)))
    return runs


def _project(desk: Desk) -> None:
    """The Optuna journal of an ablation: one study per arm, its rates enqueued in order."""
    from optuna.distributions import FloatDistribution

    space = {"train.lr": FloatDistribution(1e-9, 1e3, log=True)}
    trials = []
    for run in (run for run in desk.ledger.runs if run["phase"] == "tune"):
        result = desk.results.get(run["run_id"])
        asked = {"why": run["why"], "generation": run["generation"], "seed": run["seed"]}
        value = None if result is None else tuning.score(result)
        told = {} if result is None else tuning.attributes(result)
        params = {"train.lr": run["lr"]}
        trials.append(Trial(run["arm"], run["trial"], run["run_id"], params, value, asked, told))
    desk.journal.project(dict.fromkeys(desk.study.arms, space), trials)
