"""Progress of a study: a live panel on a terminal, plain lines in a pipe. Both are observers of the controller."""

import threading
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Self

from andrea.analysis.text import big, loss, seconds, setting
from andrea.cli.board import Board, Job
from andrea.study.events import Observer, Run

if TYPE_CHECKING:
    from rich.console import RenderableType


def make_display(board: Board, stream: IO[str]) -> "Lines":
    """A live display where `stream` is a terminal, plain lines elsewhere."""
    return Live(board, stream) if stream.isatty() else Lines(board, stream)


class Lines(Observer):
    """One line per phase and per ended run, flushed, without control characters."""

    def __init__(self, board: Board, stream: IO[str]) -> None:
        self._board, self._stream = board, stream
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._stream.flush()

    def planned(self, runs: Sequence[Run]) -> None:
        """More runs are known."""
        self._board.planned(runs)

    def started(self, run: Run) -> None:
        """A run begins; said when it ends."""
        self._board.started(run)

    def progress(self, run: Run, record: dict[str, Any]) -> None:
        """Metrics came in; not said."""
        self._board.progress(run, record)

    def finished(self, run: Run, result: dict[str, Any]) -> None:
        """A run ended with a result."""
        self.say(ended_line(self._board, run, result, self._board.finished(run)))

    def failed(self, run: Run, reason: str) -> None:
        """A run ended without one."""
        self._board.failed(run)
        self.say(f"failed: {describe(run)}: {reason}")

    def phase(self, name: str, note: str) -> None:
        """The next part of the study begins."""
        self._board.phase = name
        self.say(f"{name}: {note}" if note else name)

    def say(self, line: str) -> None:
        """One line, at once."""
        with self._lock:
            self._stream.write(" ".join(line.split()) + "\n")
            self._stream.flush()


class Live(Lines):
    """A bar for the study and a row per running job under the lines of what has ended."""

    def __init__(self, board: Board, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        super().__init__(board, stream)
        self._console = Console(file=stream)
        # The panel is built by rich's own thread, twice a second: training never waits for a terminal.
        self._live = RichLive(console=self._console, get_renderable=self._panel, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *ended: object) -> None:
        self._live.__exit__(None, None, None)

    def say(self, line: str) -> None:
        """One line above the panel."""
        style = "red" if line.startswith("failed") else None
        self._console.print(" ".join(line.split()), style=style, markup=False, highlight=False, soft_wrap=True)

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
        note = f"{board.done}/{board.total} runs" + ("" if left is None else f" · {seconds(round(left))} left")
        head.add_row(board.phase or "starting", ProgressBar(total=max(1, board.total), completed=board.done), note)
        jobs = Table.grid(padding=(0, 2))
        for job in list(board.running.values()):
            jobs.add_row(*job_cells(job, board.budget))
        return Group(head, jobs)


def describe(run: Mapping[str, Any]) -> str:
    """A run in a few words: phase, arm, rate, seed, or a sweep's parameters."""
    parts = [str(run[key]) for key in ("phase", "arm") if run.get(key)]
    params = run.get("params")
    if params:
        parts += [f"{path.rpartition('.')[2]} {setting(value)}" for path, value in params.items()]
    elif run.get("lr") is not None:
        parts.append(f"lr {run['lr']:g}")
    if run.get("seed") is not None:
        parts.append(f"seed {run['seed']}")
    return " ".join(parts)


def ended_line(board: Board, run: Mapping[str, Any], result: Mapping[str, Any], took: float | None) -> str:
    """`[ 3/24] tune post lr 0.00316 seed 1: loss 2.6012, 28.1 k tokens/s, 24 s, 5 min 3 s left`."""
    width = len(str(board.total))
    outcome = str(result.get("outcome", "completed"))
    parts = [f"loss {loss(result.get('loss'))}" if outcome == "completed" else outcome]
    parts += ["stalled"] if result.get("stalled") else []
    if took is None:
        parts[-1] += " (in the store already)"
    else:
        parts += [f"{big(result['tokens_per_s'])} tokens/s"] if result.get("tokens_per_s") else []
        parts.append(seconds(took))
    left = round(board.left_s() or 0)
    parts += [f"{seconds(left)} left"] if left else []
    return f"[{board.done:>{width}}/{board.total}] {describe(run)}: {', '.join(parts)}"


def job_cells(job: Job, budget: int) -> tuple[str, ...]:
    """The cells of a running job: what, share, loss, speed."""
    speed = "" if job.tokens_per_s is None else f"{big(job.tokens_per_s)} tokens/s"
    return (describe(job.run), f"{job.share(budget):4.0%}", f"loss {loss(job.loss)}", speed)
