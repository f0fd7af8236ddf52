"""The one process that owns a study: plans runs, has them trained, and writes the conclusions.

Everything is derived from the protocol and the store, stage by stage, each planned from finished
results alone. So neither slots nor kills change a number, and to resume is to derive everything
once more.
"""

from collections.abc import Iterator, Mapping, Sequence

from andrea.errors import StudyError, UserError, disk_full
from andrea.execution.dispatch import disk_message
from andrea.execution.executors import Executor
from andrea.records.events import Observer, Observers
from andrea.records.extras import Extras
from andrea.records.run import RunResult, RunSpec
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.ledger import Replanned
from andrea.study.optuna_journal import JournalTrial, score_attributes
from andrea.study.session import Session, Summary
from andrea.study.stages.controls import positive_control_tokens
from andrea.study.stages.replicate import Replicate
from andrea.study.stages.search import Search
from andrea.study.stages.sequence import ablation_stages
from andrea.study.stages.stage import Stage
from andrea.study.stages.tune import Tune, decide, settled_rates
from andrea.study.stages.verdict import judge_study
from andrea.verdict.judgement import METHOD


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
                return _run_sweep(session)
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


def _run_sweep(session: Session) -> Summary:
    search = Search(session)
    session.update_journal = search.update_journal
    _train_stage(session, search)
    if not session.failed:
        session.folder.save_best(search.conclude())
    return session.summary(complete=True)


def _run_ablation(session: Session) -> Summary:
    """Tune every arm alike, then run the other stages, then judge.

    An arm of which a tuning run fails at every try gets no rate, and the others go on without it.
    What is planned without it is provisional: the next command tries again and, if it then works,
    plans as if it had never failed.
    """
    session.update_journal = _update_journal
    before = session.folder.load_verdict()
    is_outdated = before is None or before.method != METHOD
    stages = ablation_stages(session.watch.on_message)
    for position, stage in enumerate(stages):
        _train_stage(session, stage, stages[position + 1 :])
        if isinstance(stage, Tune):
            _settle_rates(session, stage)
            if not session.evidence().has_rate(str(session.study.baseline)):
                break
        if isinstance(stage, Replicate) and session.evidence().extras:
            _save_early_verdict(session, is_outdated)
    verdict = judge_study(session.evidence())
    session.folder.save_verdict(verdict)
    resolved = session.study.resolved
    if verdict.exploratory and not resolved.exploratory:
        session.folder.save_resolved(resolved.model_copy(update={"exploratory": True}))
    return session.summary(complete=verdict.complete)


def _train_stage(session: Session, stage: Stage | Search, later: Sequence[Stage] = ()) -> None:
    """Train all runs of a stage; slots that would be idle take runs of later stages that no result
    can change any more.
    """

    def upcoming(results: Mapping[str, RunResult]) -> Iterator[RunSpec]:
        rates, generation = settled_rates(session.evidence(results))
        for later_stage in later if rates else ():
            yield from later_stage.early_runs(session.study, rates, generation)

    while generation := stage.next_runs(session.evidence()):
        session.train(generation, upcoming if later else None)


def _settle_rates(session: Session, stage: Tune) -> None:
    """Write choices.json once tuning has ended."""
    evidence = session.evidence()
    session.generation = decide(evidence).generation
    session.choices = stage.conclude(evidence)
    session.folder.save_choices(session.choices)


def _save_early_verdict(session: Session, is_outdated: bool) -> None:
    """Write the verdict as it is before the extras are trained, so that it can be read meanwhile.

    A study that is complete stays so while its command, given again, checks whether it is.
    """
    if is_outdated or not session.folder.complete:
        verdict = judge_study(session.evidence_with_waiting())
        session.folder.save_verdict(verdict.model_copy(update={"complete": False}))


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
                attributes={"why": run.why, "generation": run.generation, "seed": run.seed},
                final_attributes={} if result is None else score_attributes(result),
            )
        )
    session.journal.project(dict.fromkeys(session.study.arms, space), trials)
