"""Progress of a study: a live panel on a terminal, plain lines in a pipe.

Both are observers of the controller.
"""

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import IO, TYPE_CHECKING, Self

from andrea.cli.guard import redirect_to_devnull
from andrea.cli.show.output import parameter
from andrea.cli.show.progress import StudyProgress
from andrea.records.events import Observer
from andrea.records.run import MetricRecord, RunResult, RunSpec
from andrea.text.numbers import big, loss, seconds
from andrea.verdict.seeds import tuning_seed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


def make_display(
    progress: StudyProgress,
    stream: IO[str],
    labels: Mapping[str, str] | None = None,
    reused_before: int = 0,
) -> "LineDisplay":
    """Return a live display where `stream` is a terminal, plain lines elsewhere.

    Args:
        labels: of arms, by name.
        reused_before: runs in the store that the reader knows of already.
    """
    kind = LiveDisplay if stream.isatty() else LineDisplay
    return kind(progress, stream, labels or {}, reused_before)


@dataclass(eq=False)
class LineDisplay(Observer):
    """One line per phase and per run that ends, flushed, without control characters.

    Runs that the store has already are counted in one line, and a phase that holds no others has no
    line.
    """

    progress: StudyProgress
    stream: IO[str]
    labels: Mapping[str, str]
    """Of arms, by name."""
    announced_reused: int
    """Runs in the store that the reader knows of already."""
    _pending_phase: str = ""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pending_phase = ""
        self._write_pending()
        self.stream.flush()

    def on_runs_planned(self, runs: Sequence[RunSpec]) -> None:
        """Count runs that are planned."""
        self.progress.add_runs(runs)

    def on_run_started(self, run: RunSpec, attempt: int) -> None:
        """Count a run that begins; its line comes when it ends."""
        self._write_pending()
        self.progress.start_run(run)

    def on_metrics(self, run: RunSpec, record: MetricRecord) -> None:
        """Take in metrics."""
        self.progress.update_run(run, record)

    def on_run_finished(self, run: RunSpec, result: RunResult, *, reused: bool) -> None:
        """Write the line of a run that was trained."""
        duration_s = self.progress.finish_run(run)
        if duration_s is not None:
            name = describe_run(run, self.labels)
            self.on_message(result_line(self.progress, name, run, result, duration_s))

    def on_run_failed(self, run: RunSpec, reason: str, attempt: int) -> None:
        """Write why a run ended without a result."""
        self.progress.drop_run(run)
        self.on_message(f"failed: {describe_run(run, self.labels)}: {reason}")

    def on_phase_started(self, name: str, note: str) -> None:
        """Keep the line of the phase until a run of it begins."""
        self.progress.phase = name
        if name == "extension":
            note = re.sub("(?<=best of ).*?(?= at the )", self._label_arms, note)
        if not note:
            self._pending_phase = name
        elif note.startswith(name):
            # The note of a sweep names its phase: `trials 0 to 1 of 0 to 15`.
            self._pending_phase = note
        else:
            self._pending_phase = f"{name}: {note}"

    def on_message(self, line: str) -> None:
        """Write one line, at once."""
        with self._lock:
            self._write_pending()
            self._write(" ".join(line.split()))

    def _write_pending(self) -> None:
        """Write which phase this is, and how many runs need no training."""
        with self._lock:
            if self._pending_phase:
                self._write(" ".join(self._pending_phase.split()))
                self._pending_phase = ""
            reused, total = self.progress.reused, self.progress.total
            if reused > self.announced_reused:
                self.announced_reused = reused
                self._write(f"{reused} of {total} runs are in the store already")

    def _label_arms(self, arms: re.Match[str]) -> str:
        return ", ".join(self.labels.get(arm, arm) for arm in arms[0].split(", "))

    def _write(self, line: str) -> None:
        try:
            self.stream.write(line + "\n")
            self.stream.flush()
        except BrokenPipeError:
            # Nobody reads any more (`| head`): stop as programs do on a closed pipe; the same
            # command resumes.
            redirect_to_devnull(self.stream)
            raise SystemExit(1) from None


class LiveDisplay(LineDisplay):
    """A bar for the study and a row per running job under the lines of what has ended."""

    @cached_property
    def _live(self) -> "Live":
        from rich.console import Console
        from rich.live import Live

        # The panel is built by rich's own thread, twice a second: training never waits for a
        # terminal.
        console = Console(file=self.stream)
        return Live(
            console=console, get_renderable=self._panel, refresh_per_second=2, transient=True
        )

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__()
        self._live.__exit__(None, None, None)

    def _write(self, line: str) -> None:
        """Write one line above the panel."""
        style = "red" if line.startswith("failed") else None
        self._live.console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def _panel(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        progress = self.progress
        head = Table.grid(padding=(0, 1), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True, justify="right")
        note = f"{progress.done}/{progress.total} runs"
        remaining_s = progress.remaining_s()
        if remaining_s is not None:
            note += f" · {seconds(round(remaining_s))} left"
        bar = ProgressBar(total=max(1, progress.total), completed=progress.done)
        head.add_row(progress.phase or "starting", bar, note)
        jobs = Table.grid(padding=(0, 2))
        for job in list(progress.running.values()):
            share = f"{job.trained_share(progress.budget):4.0%}"
            speed = "" if job.tokens_per_s is None else f"{big(job.tokens_per_s)} tokens/s"
            name = describe_run(job.run, self.labels)
            jobs.add_row(name, share, f"loss {loss(job.loss)}", speed)
        return Group(head, jobs)


def describe_run(run: RunSpec, labels: Mapping[str, str]) -> str:
    """Return a run in a few words: phase, label of the arm, rate, seed; of a sweep the trial's
    number and parameters.
    """
    if run.params:
        parts = [f"trial {run.trial}"]
        for path, value in run.params.items():
            parts.append(f"{path.rpartition('.')[2]} {parameter(path, value)}")
    else:
        # A control or a budget's run is known by what it is: `a/a`, `half tokens`, `equal flops`.
        kind = run.why if run.phase in ("control", "budget") else run.phase
        parts = [kind, labels.get(run.arm, run.arm)]
        if run.lr is not None:
            parts.append(f"lr {run.lr:g}")
    # All tuning runs have the first tuning seed, which therefore tells nothing apart.
    if run.seed != tuning_seed(0):
        parts.append(f"seed {run.seed}")
    return " ".join(parts)


def result_line(
    progress: StudyProgress, name: str, run: RunSpec, result: RunResult, duration_s: float
) -> str:
    """Return `[ 3/24] tune post-norm lr 0.00316 seed 1: loss 2.6012, 28.1 k tokens/s, 24 s, 5 min
    3 s left`.
    """
    parts = [f"loss {loss(result.loss)}" if result.outcome == "completed" else result.outcome]
    if result.stalled:
        parts.append("stalled")
    if run.phase in ("tune", "trial") and not result.is_good:
        parts.append(f"scored as {loss(result.score)}")
    if result.tokens_per_s:
        parts.append(f"{big(result.tokens_per_s)} tokens/s")
    parts.append(seconds(duration_s))
    remaining_s = round(progress.remaining_s() or 0)
    if remaining_s:
        parts.append(f"{seconds(remaining_s)} left")
    width = len(str(progress.total))
    return f"[{progress.done:>{width}}/{progress.total}] {name}: {', '.join(parts)}"
