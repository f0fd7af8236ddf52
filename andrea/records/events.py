"""What a study tells whoever watches it: a display, a mirror. Watching never changes or ends a
study.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

Run = dict[str, Any]
"""A line of runs.jsonl; given to observers with `reused` (the store had it before) and `attempt`
where known.
"""


class Observer:
    """Does nothing at every event; override what you watch."""

    def phase(self, name: str, note: str) -> None:
        """A stretch begins: `grid`, `extension`, `midpoint`, `replicate`, `control`, `budget`,
        `confirm`, `trials`.
        """

    def planned(self, runs: Sequence[Run]) -> None:
        """These runs belong to the stretch that begins, in the order of runs.jsonl."""

    def started(self, run: Run) -> None:
        """The run was given to the executor."""

    def progress(self, run: Run, record: dict[str, Any]) -> None:
        """A record was appended to the metrics.jsonl of a run at work."""

    def finished(self, run: Run, result: dict[str, Any]) -> None:
        """The store has the run's result: trained just now, or (`reused`) found there."""

    def failed(self, run: Run, reason: str) -> None:
        """An attempt at the run ended without a result."""

    def say(self, line: str) -> None:
        """Anything else that a reader should know."""


class Observers(Observer):
    """Hands every event on to all observers; one that raises is warned of once, on stderr."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)
        self._warned: set[int] = set()

    def phase(self, name: str, note: str) -> None:
        self._each(lambda o: o.phase(name, note))

    def planned(self, runs: Sequence[Run]) -> None:
        self._each(lambda o: o.planned([dict(run) for run in runs]))

    def started(self, run: Run) -> None:
        self._each(lambda o: o.started(dict(run)))

    def progress(self, run: Run, record: dict[str, Any]) -> None:
        self._each(lambda o: o.progress(dict(run), dict(record)))

    def finished(self, run: Run, result: dict[str, Any]) -> None:
        self._each(lambda o: o.finished(dict(run), dict(result)))

    def failed(self, run: Run, reason: str) -> None:
        self._each(lambda o: o.failed(dict(run), reason))

    def say(self, line: str) -> None:
        self._each(lambda o: o.say(line))

    def _each(self, call: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                call(observer)
            except Exception as error:
                if id(observer) not in self._warned:
                    self._warned.add(id(observer))
                    name = type(observer).__name__
                    print(
                        f"warning: {name} failed and may show too little: {error!r}",
                        file=sys.stderr,
                    )
