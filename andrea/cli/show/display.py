"""Progress of a study: a live panel on a terminal, plain lines in a pipe. Both are observers of the
controller.
"""

import re
import threading
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Self

from andrea.cli.guard import abandon
from andrea.cli.show.output import parameter
from andrea.cli.show.progress import Board, Job
from andrea.records.events import Observer, Run
from andrea.text.numbers import big, loss, seconds
from andrea.verdict.seeds import tuning_seed

if TYPE_CHECKING:
    from rich.console import RenderableType


def make_display(
    board: Board, stream: IO[str], labels: Mapping[str, str] | None = None, known: int = 0
) -> "Lines":
    """A live display where `stream` is a terminal, plain lines elsewhere.

    Args:
        labels: what arms are called.
        known: runs in the store that the reader has been told of.
    """
    return (Live if stream.isatty() else Lines)(board, stream, labels or {}, known)


class Lines(Observer):
    """One line per phase and per run that ends, flushed, without control characters.

    Runs that the store has already are counted in one line, and a phase that holds no others is not
    told.
    """

    def __init__(
        self, board: Board, stream: IO[str], labels: Mapping[str, str], known: int
    ) -> None:
        self._board, self._stream, self._labels, self._known = board, stream, labels, known
        self._begun = ""
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._begun = ""
        self._catch_up()
        self._stream.flush()

    def planned(self, runs: Sequence[Run]) -> None:
        """More runs are known."""
        self._board.planned(runs)

    def started(self, run: Run) -> None:
        """A run begins; said when it ends."""
        self._catch_up()
        self._board.started(run)

    def progress(self, run: Run, record: dict[str, Any]) -> None:
        """Metrics came in; not said."""
        self._board.progress(run, record)

    def finished(self, run: Run, result: dict[str, Any]) -> None:
        """A run ended with a result."""
        took = self._board.finished(run)
        if took is not None:
            self.say(ended_line(self._board, describe(run, self._labels), run, result, took))

    def failed(self, run: Run, reason: str) -> None:
        """A run ended without one."""
        self._board.failed(run)
        self.say(f"failed: {describe(run, self._labels)}: {reason}")

    def phase(self, name: str, note: str) -> None:
        """The next part of the study begins."""
        self._board.phase = name
        if name == "extension":
            note = re.sub("(?<=best of ).*?(?= at the )", self._called, note)
        # The note of a sweep says what it is by itself: `trials 0 to 1 of 0 to 15`.
        self._begun = note if note.startswith(name) else f"{name}: {note}" if note else name

    def say(self, line: str) -> None:
        """One line, at once."""
        with self._lock:
            self._catch_up()
            self._write(" ".join(line.split()))

    def _catch_up(self) -> None:
        """Say which phase this is, and how many runs need no training, before anything else in it."""
        with self._lock:
            if self._begun:
                self._write(" ".join(self._begun.split()))
                self._begun = ""
            if self._board.reused > self._known:
                self._known = self._board.reused
                self._write(f"{self._known} of {self._board.total} runs are in the store already")

    def _called(self, arms: re.Match[str]) -> str:
        return ", ".join(self._labels.get(arm, arm) for arm in arms[0].split(", "))

    def _write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except BrokenPipeError:
            # Nobody reads any more (`| head`): stop as programs do on a closed pipe; the same
            # command resumes.
            abandon(self._stream)
            raise SystemExit(1) from None


class Live(Lines):
    """A bar for the study and a row per running job under the lines of what has ended."""

    def __init__(
        self, board: Board, stream: IO[str], labels: Mapping[str, str], known: int
    ) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        super().__init__(board, stream, labels, known)
        self._console = Console(file=stream)
        # The panel is built by rich's own thread, twice a second: training never waits for a
        # terminal.
        self._live = RichLive(
            console=self._console, get_renderable=self._panel, refresh_per_second=2, transient=True
        )

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *ended: object) -> None:
        super().__exit__()
        self._live.__exit__(None, None, None)

    def _write(self, line: str) -> None:
        """One line above the panel."""
        style = "red" if line.startswith("failed") else None
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def _panel(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        board = self._board
        head = Table.grid(padding=(0, 1), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True, justify="right")
        left = board.left_s()
        note = f"{board.done}/{board.total} runs" + (
            "" if left is None else f" · {seconds(round(left))} left"
        )
        head.add_row(
            board.phase or "starting",
            ProgressBar(total=max(1, board.total), completed=board.done),
            note,
        )
        jobs = Table.grid(padding=(0, 2))
        for job in list(board.running.values()):
            jobs.add_row(*job_cells(job, describe(job.run, self._labels), board.budget))
        return Group(head, jobs)


def describe(run: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """A run in a few words: phase, label of the arm, rate, seed; of a sweep the trial's number and
    parameters.
    """
    params = run.get("params")
    if params:
        parts = [f"trial {run['trial']}"]
        parts += [
            f"{path.rpartition('.')[2]} {parameter(path, value)}" for path, value in params.items()
        ]
    else:
        # A control or a budget's run is known by what it is: `a/a`, `half tokens`, `equal flops`.
        what = run["why"] if run["phase"] in ("control", "budget") else run["phase"]
        parts = [str(what), labels.get(run["arm"], run["arm"])]
    if not params and run.get("lr") is not None:
        parts.append(f"lr {run['lr']:g}")
    # The first tuning seed is that of every tuning run: it tells them apart from nothing.
    if run.get("seed") not in (None, tuning_seed(0)):
        parts.append(f"seed {run['seed']}")
    return " ".join(parts)


def ended_line(
    board: Board, name: str, run: Mapping[str, Any], result: Mapping[str, Any], took: float
) -> str:
    """`[ 3/24] tune post-norm lr 0.00316 seed 1: loss 2.6012, 28.1 k tokens/s, 24 s, 5 min 3 s
    left`.
    """
    from andrea.study.stages.tune import is_good, score

    width = len(str(board.total))
    outcome = str(result.get("outcome", "completed"))
    parts = [f"loss {loss(result.get('loss'))}" if outcome == "completed" else outcome]
    parts += ["stalled"] if result.get("stalled") else []
    if run["phase"] in ("tune", "trial") and not is_good(result):
        parts.append(f"scored as {loss(score(result))}")
    parts += [f"{big(result['tokens_per_s'])} tokens/s"] if result.get("tokens_per_s") else []
    parts.append(seconds(took))
    left = round(board.left_s() or 0)
    parts += [f"{seconds(left)} left"] if left else []
    return f"[{board.done:>{width}}/{board.total}] {name}: {', '.join(parts)}"


def job_cells(job: Job, name: str, budget: int) -> tuple[str, ...]:
    """The cells of a running job: what, share, loss, speed."""
    speed = "" if job.tokens_per_s is None else f"{big(job.tokens_per_s)} tokens/s"
    return (name, f"{job.share(budget):4.0%}", f"loss {loss(job.loss)}", speed)
