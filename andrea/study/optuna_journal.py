"""Optuna: proposals of a sweep as a pure function of its history, and the journal as a projection
of the store.

Nothing is ever decided from the journal. It is there for people and for optuna-dashboard; where it
is missing, torn or contradicts runs.jsonl it is written again.
"""

import contextlib
import inspect
import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from andrea.errors import disk_full
from andrea.records.base import Settings
from andrea.records.events import Observer
from andrea.records.run import RunResult
from andrea.store.digest import digest
from andrea.store.files import cut_torn_line
from andrea.store.studies import StudyFolder

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

    from andrea.study.question.sweep import Sweep

JOURNAL = "optuna.journal"


@dataclass(frozen=True)
class JournalTrial:
    """One trial: its number within its Optuna study, its parameters, and its value once its
    generation has ended.
    """

    study: str
    number: int
    run_id: str
    params: Mapping[str, Any]
    value: float | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """User attributes from the start: why, generation, duplicate_of."""
    final_attributes: Mapping[str, Any] = field(default_factory=dict)
    """User attributes that come with the value: outcome, stalled, and that the value is the loss at
    initialisation.
    """


def score_attributes(result: RunResult) -> Settings:
    """Return what the journal says beside a score; a score that is no final loss has a reason."""
    attributes: Settings = {"outcome": result.outcome, "stalled": result.stalled}
    if not result.is_good:
        attributes |= {"scored_as": "loss at initialisation", "reason": result.reason}
    return attributes


class _Contradiction(Exception):
    """The journal says something else than the store."""


class Journal:
    """The file optuna.journal of a study; one Optuna study in it per arm, or one for a sweep."""

    def __init__(self, folder: StudyFolder, observer: Observer) -> None:
        self._path, self._observer = folder.path / JOURNAL, observer
        self._given_up = False

    def project(
        self, spaces: Mapping[str, Mapping[str, "BaseDistribution"]], trials: Sequence[JournalTrial]
    ) -> None:
        """Bring the journal to these trials, in order: enqueue and ask what is missing, tell what
        has a value.

        Args:
            spaces: distributions by name of the Optuna study.
            trials: all trials so far, each study's in order.

        Raises:
            OSError: the disk is full. Any other trouble costs a warning.
        """
        if self._given_up:
            return
        for is_last_attempt in (False, True):
            try:
                self._project(spaces, trials)
                return
            except Exception as error:
                if disk_full(error):
                    raise
                if is_last_attempt:
                    self._given_up = True
                    self._observer.on_message(
                        f"warning: {self._path} could not be written ({error}); the study goes on"
                    )
                elif self._path.exists():
                    self._observer.on_message(
                        f"{self._path.name} does not match the runs ({error}): written again"
                    )
                with contextlib.suppress(OSError):
                    self._path.unlink()

    def _project(
        self, spaces: Mapping[str, Mapping[str, "BaseDistribution"]], trials: Sequence[JournalTrial]
    ) -> None:
        optuna = _optuna()
        storage = self._open()
        for name, space in spaces.items():
            study = optuna.create_study(
                storage=storage,
                study_name=name,
                direction="minimize",
                load_if_exists=True,
                sampler=optuna.samplers.RandomSampler(seed=0),
            )
            recorded = study.get_trials(deepcopy=False)
            wanted_trials = [trial for trial in trials if trial.study == name]
            if len(recorded) > len(wanted_trials):
                raise _Contradiction(f"{name} has {len(recorded)} trials, not {len(wanted_trials)}")
            for trial, known in itertools.zip_longest(wanted_trials, recorded):
                _update_trial(study, space, trial, known)

    def _open(self) -> Any:
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        # We hold the study: a lock file here was left by a controller that was killed, and Optuna
        # would wait 30 s.
        self._path.with_name(self._path.name + ".lock").unlink(missing_ok=True)
        if self._path.exists():
            cut_torn_line(self._path)
        backend = JournalFileBackend(str(self._path), lock_obj=JournalFileOpenLock(str(self._path)))
        return _optuna().storages.JournalStorage(backend)


def _update_trial(
    study: "optuna.Study",
    space: Mapping[str, "BaseDistribution"],
    trial: JournalTrial,
    recorded: "optuna.trial.FrozenTrial | None",
) -> None:
    """Bring one trial of the journal to what it should be.

    Raises:
        _Contradiction: the recorded trial is another one.
    """
    optuna = _optuna()
    states = optuna.trial.TrialState
    if recorded is None:
        study.enqueue_trial(
            dict(trial.params), user_attrs={"run_id": trial.run_id, **trial.attributes}
        )
    elif recorded.user_attrs.get("run_id") != trial.run_id:
        raise _Contradiction(f"trial {trial.number} of {study.study_name} is another run")
    if recorded is None or recorded.state == states.WAITING:
        # Asking takes the oldest waiting trial; there is never more than this one.
        number = study.ask(dict(space)).number
        if number != trial.number:
            raise _Contradiction(
                f"trial {trial.number} of {study.study_name} became trial {number}"
            )
        recorded = study.get_trials(deepcopy=False)[number]
    if dict(recorded.params) != dict(trial.params):
        raise _Contradiction(f"trial {trial.number} of {study.study_name} has other parameters")
    if trial.value is None:
        return
    if recorded.state == states.RUNNING:
        live = optuna.trial.Trial(study, recorded._trial_id)
        for key, value in trial.final_attributes.items():
            live.set_user_attr(key, value)
        study.tell(trial.number, trial.value)
    elif recorded.state != states.COMPLETE or recorded.value != trial.value:
        raise _Contradiction(f"trial {trial.number} of {study.study_name} has another result")


def propose(
    space: Mapping[str, "BaseDistribution"],
    tpe: Mapping[str, Any] | None,
    seed: int,
    history: Sequence[JournalTrial],
) -> dict[str, Any]:
    """Return the parameters of the next trial: a pure function of the arguments.

    A fresh sampler, seeded by (seed, trial number), sees the history in an in-memory study: trials
    with a value as complete, the others as running (constant liar). A free-running sampler would
    propose other values after a restart or with another number of slots.

    Args:
        tpe: the arguments of `optuna.samplers.TPESampler`; None draws at random.
    """
    optuna = _optuna()
    states = optuna.trial.TrialState
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
        sampler = _sampler_class(tpe)(**(tpe or {}), seed=seed_of(seed, len(history)))
        study = optuna.create_study(direction="minimize", sampler=sampler)
        for trial in history:
            state = states.RUNNING if trial.value is None else states.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(
                    state=state,
                    value=trial.value,
                    params=dict(trial.params),
                    distributions=dict(space),
                )
            )
        return dict(study.ask(dict(space)).params)


def sampling(sweep: "Sweep") -> dict[str, Any] | None:
    """Return the sampler for the record: class, Optuna's version and every argument of the
    constructor. None for a grid.

    The version belongs to it: Optuna resolves arguments that are None (`gamma`, to a function).
    """
    if sweep.sampler == "grid":
        return None
    sampler = _sampler_class(sweep.tpe_arguments)
    parameters = inspect.signature(sampler).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    arguments = defaults | (sweep.tpe_arguments or {})
    return {
        "class": f"optuna.samplers.{sampler.__name__}",
        "optuna": _optuna().__version__,
        "arguments": arguments | {"seed": f"from sampler seed {sweep.seed} and the trial's number"},
        "None": "Optuna's own default of that version",
    }


def _sampler_class(tpe: Mapping[str, Any] | None) -> Any:
    samplers = _optuna().samplers
    return samplers.RandomSampler if tpe is None else samplers.TPESampler


def seed_of(seed: int, number: int) -> int:
    """Return a 32-bit seed for trial `number`, unrelated to that of its neighbours."""
    return int(digest([seed, number])[:8], 16)


def _optuna() -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
