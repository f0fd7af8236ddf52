"""The one process that owns a study: plans runs, has them trained, and writes what came out.

Everything is derived from the protocol and the store, stage by stage, each planned from finished
results alone. So neither slots nor kills change a number, and to resume is to derive everything
once more.
"""

from collections.abc import Iterator, Mapping, Sequence

from andrea.errors import StudyError, UserError, disk_full
from andrea.execution.dispatch import Upcoming, disk_message
from andrea.execution.executors import Executor
from andrea.records.events import Observer, Observers
from andrea.records.extras import Extras
from andrea.records.run import RunResult, RunSpec
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.ledger import Replanned
from andrea.study.optuna_journal import JournalTrial, score_attributes
from andrea.study.session import Session, Summary
from andrea.study.stages import tune
from andrea.study.stages.controls import positive_control_tokens
from andrea.study.stages.evidence import Evidence
from andrea.study.stages.replicate import Replicate
from andrea.study.stages.search import search
from andrea.study.stages.sequence import stages_after_tuning
from andrea.study.stages.stage import Stage
from andrea.study.stages.verdict import judge_study
from andrea.verdict.judgement import METHOD
from andrea.verdict.tuning import Decision


def run_study(
    folder: StudyFolder,
    store: RunStore,
    executor: Executor,
    observers: Sequence[Observer] = (),
    extras: Extras | None = None,
) -> Summary:
    """Run a frozen study to its end, or resume it where it stopped.

    Writes runs.jsonl, choices.json and verdict.json (a sweep: best.json) and the Optuna journal.
    Returns incomplete when runs failed at every try.

    Args:
        extras: what is asked of an ablation beside its question; what was asked before stays asked.

    Raises:
        UserError: another controller runs the study, or it was frozen on another platform.
        StudyError: the disk is full.
        KeyboardInterrupt: Ctrl-C; all workers are gone, and the same command resumes.
    """
    watch = Observers(observers)
    with folder.held():
        try:
            session = Session(folder, store, executor, watch)
            session.study.require_data()
            if session.study.kind == "sweep":
                return search(session)
            _remember_extras(session, extras or Extras())
            return _run_ablation(session)
        except Replanned:
            # A finished study can be read whatever became of torch or the machine since.
            if not folder.complete:
                raise
            watch.on_message(
                f"study {folder.path.name} is complete; it was run on another platform"
            )
            return Summary(True)
        except OSError as error:
            if not disk_full(error):
                raise
            raise StudyError(disk_message(store.root, str(error))) from error
        finally:
            executor.cancel()


def _remember_extras(session: Session, extras: Extras) -> None:
    """Record what is asked of a study beside its question.

    Raises:
        UserError: it cannot be done, or not here; nothing was written.
    """
    study, known = session.study, session.folder.load_extras()
    wanted = known | extras
    if not known.covers(extras):
        if wanted.controls:
            positive_control_tokens(study.config(str(study.baseline)), 0.5)
        study.require_platform()
        try:
            session.ledger.require_same(study)
        except Replanned as error:
            # Unlike a finished study that is only read: more is to be trained.
            raise UserError(str(error)) from error
    elif extras.confirm and session.folder.complete:
        session.watch.on_message(
            f"study {session.folder.path.name} has its confirmation: there is one per study, not "
            "as many as it takes to agree"
        )
    session.folder.save_extras(wanted)


def _run_ablation(session: Session) -> Summary:
    """Tune every arm alike, then run the stages, then judge.

    An arm of which a tuning run fails at every try gets no rate, and the others go on without it.
    What is planned without it is provisional: the next command tries again and, if it then works,
    plans as if it had never failed.
    """
    session.update_journal = _update_journal
    stages = stages_after_tuning(session.watch.on_message)
    decision = _tune(session, stages)
    choices = tune.choose(decision, session.study.arms, session.ledger.runs, session.results)
    session.folder.save_choices(choices)

    def gather() -> Evidence:
        runs, results = session.ledger.runs, session.results
        return Evidence(session.study, runs, results, choices, decision.generation)

    before = session.folder.load_verdict()
    if gather().has_rate(str(session.study.baseline)):
        for position, stage in enumerate(stages):
            while generation := stage.next_runs(gather()):
                upcoming = _upcoming(session, stages[position + 1 :], gather())
                session.train(generation, upcoming)
            if isinstance(stage, Replicate) and gather().extras:
                _save_early_verdict(session, gather(), before is None or before.method != METHOD)
    verdict = judge_study(gather())
    session.folder.save_verdict(verdict)
    if verdict.exploratory and not session.study.resolved.exploratory:
        session.folder.save_resolved(
            session.study.resolved.model_copy(update={"exploratory": True})
        )
    return session.summary(complete=verdict.complete)


def _tune(session: Session, stages: Sequence[Stage]) -> Decision:
    """Train generations of tuning runs until every arm has its learning rate, or has none."""
    study = session.study
    while True:
        runs = session.ledger.runs
        decision = tune.decide(study, runs, session.results, session.untuned)
        if decision.phase == "done":
            return decision
        tuned = [run for run in runs if run.phase == "tune"]
        generation = tune.plan_generation(study, decision, tuned)
        planned = [*tuned, *generation.runs]

        def upcoming(
            results: Mapping[str, RunResult], planned: Sequence[RunSpec] = planned
        ) -> Iterator[RunSpec]:
            known = {**session.results, **results}
            current = tune.decide(study, planned, known, session.untuned)
            rates = dict(tune.settled_rates(study, current, planned, known))
            for stage in stages if rates else ():
                yield from stage.early_runs(study, rates, current.generation + 1)

        session.train(generation, upcoming)


def _upcoming(session: Session, stages: Sequence[Stage], evidence: Evidence) -> Upcoming:
    """Return the runs of later stages that no result can change any more."""
    rates = {arm: choice.lr for arm, choice in evidence.choices.items() if choice.lr}

    def upcoming(results: Mapping[str, RunResult]) -> Iterator[RunSpec]:
        for stage in stages:
            yield from stage.early_runs(session.study, rates, evidence.generation)

    return upcoming


def _save_early_verdict(session: Session, evidence: Evidence, is_outdated: bool) -> None:
    """Write the verdict as it is before the extras are trained, so that it can be read meanwhile.

    A study that is complete stays so while its command, given again, checks whether it is.
    """
    if session.folder.complete and not is_outdated:
        return
    runs, results = session.known_runs()
    known = Evidence(evidence.study, runs, results, evidence.choices, evidence.generation)
    session.folder.save_verdict(judge_study(known).model_copy(update={"complete": False}))


def _update_journal(session: Session) -> None:
    """Bring the Optuna journal of an ablation to its tuning runs: one Optuna study per arm."""
    # Not at import: a worker, which imports what its function's module imports, needs no tuner.
    from optuna.distributions import FloatDistribution

    space = {"train.lr": FloatDistribution(1e-9, 1e3, log=True)}
    trials = []
    for run in session.ledger.runs:
        if run.phase != "tune":
            continue
        result = session.results.get(run.run_id)
        trials.append(
            JournalTrial(
                study=run.arm,
                number=int(run.trial or 0),
                run_id=run.run_id,
                params={"train.lr": run.lr},
                value=None if result is None else result.score,
                asked={"why": run.why, "generation": run.generation, "seed": run.seed},
                told={} if result is None else score_attributes(result),
            )
        )
    session.journal.project(dict.fromkeys(session.study.arms, space), trials)
