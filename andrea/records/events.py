"""What a study tells whoever watches it: a display, a mirror. Watching never changes or ends a
study.
"""

import sys
from collections.abc import Callable, Sequence

from andrea.records.run import MetricRecord, RunResult, RunSpec


class Observer:
    """Does nothing at every event; override what you watch."""

    def on_phase_started(self, name: str, note: str) -> None:
        """A generation of runs begins: `grid`, `extension`, `midpoint`, `replicate`,
        `control`, …
        """

    def on_runs_planned(self, runs: Sequence[RunSpec]) -> None:
        """These runs belong to the generation that begins, in the order of runs.jsonl."""

    def on_run_started(self, run: RunSpec, attempt: int) -> None:
        """The run was given to the executor, for the `attempt`-th time in this command.

        A run whose plan no other arm can change may start before its generation begins.
        """

    def on_metrics(self, run: RunSpec, record: MetricRecord) -> None:
        """A record was appended to the metrics.jsonl of a run that is being trained."""

    def on_run_finished(self, run: RunSpec, result: RunResult, *, reused: bool) -> None:
        """The store has the run's result: trained just now, or (`reused`) found there.

        A run that started before its generation is announced again when the generation begins.
        """

    def on_run_failed(self, run: RunSpec, reason: str, attempt: int) -> None:
        """An attempt at the run ended without a result."""

    def on_message(self, line: str) -> None:
        """Anything else that a reader should know."""


class Observers(Observer):
    """Hands every event on to all observers; one that raises is warned of once, on stderr."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)
        self._warned: set[int] = set()

    def on_phase_started(self, name: str, note: str) -> None:
        self._notify(lambda observer: observer.on_phase_started(name, note))

    def on_runs_planned(self, runs: Sequence[RunSpec]) -> None:
        self._notify(lambda observer: observer.on_runs_planned(runs))

    def on_run_started(self, run: RunSpec, attempt: int) -> None:
        self._notify(lambda observer: observer.on_run_started(run, attempt))

    def on_metrics(self, run: RunSpec, record: MetricRecord) -> None:
        self._notify(lambda observer: observer.on_metrics(run, record))

    def on_run_finished(self, run: RunSpec, result: RunResult, *, reused: bool) -> None:
        self._notify(lambda observer: observer.on_run_finished(run, result, reused=reused))

    def on_run_failed(self, run: RunSpec, reason: str, attempt: int) -> None:
        self._notify(lambda observer: observer.on_run_failed(run, reason, attempt))

    def on_message(self, line: str) -> None:
        self._notify(lambda observer: observer.on_message(line))

    def _notify(self, call: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                call(observer)
            except Exception as error:
                if id(observer) not in self._warned:
                    self._warned.add(id(observer))
                    name = type(observer).__name__
                    warning = f"warning: {name} failed and may show too little: {error!r}"
                    print(warning, file=sys.stderr)
