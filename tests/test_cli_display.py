"""What a study shows while it runs, on a terminal and in a pipe."""

import io

import pytest

from andrea.cli.show.display import LineDisplay, LiveDisplay, describe_run, make_display
from andrea.cli.show.progress import StudyProgress
from andrea.records.events import Observers
from andrea.records.run import MetricRecord, RunResult, RunSpec

GRID = [
    {
        "run_id": f"r{i}",
        "arm": "post",
        "phase": "tune",
        "why": "grid",
        "lr": 0.00316,
        "seed": 1_000_000,
    }
    for i in range(4)
]
SPECS = [RunSpec.model_validate(run) for run in GRID]

LABELS = {"pre": "pre-norm", "post": "post-norm"}
STALLED = RunResult(
    outcome="completed", stalled=True, loss=3.1, initial_loss=5.5, tokens_per_s=28_120.0
)


class Clock:
    """Time that passes when a test says so."""

    now = 0.0

    def __call__(self):
        return self.now


def make_progress(expected=4, estimate=40.0):
    clock = Clock()
    return StudyProgress(expected, budget=1000, estimate_s=estimate, clock=clock), clock


def metrics(kind, tokens, **values):
    return MetricRecord(kind=kind, tokens=tokens, **values)


def test_time_left_starts_from_the_estimate_and_follows_the_pace_of_the_runs():
    work, clock = make_progress()
    assert work.remaining_s() == 40.0
    work.add_runs(SPECS)
    work.start_run(SPECS[0])
    clock.now = 20.0
    work.finish_run(SPECS[0])
    assert work.remaining_s() == 60.0  # three runs at 20 s


def test_a_run_half_done_counts_half():
    work, clock = make_progress()
    work.start_run(SPECS[0])
    work.update_run(SPECS[0], metrics("eval", 0, loss=5.5))
    clock.now = 10.0
    work.update_run(SPECS[0], metrics("train", 500, loss=2.5, tokens_per_s=50.0))
    assert work.running["r0"].trained_share(1000) == 0.5
    assert work.remaining_s() == 70.0


def test_starting_the_workers_does_not_count_as_the_pace_of_a_run():
    work, clock = make_progress()
    work.start_run(SPECS[0])
    work.start_run(SPECS[1])
    clock.now = 30.0  # torch is loaded
    assert work.remaining_s() == 40.0
    for run in SPECS[:2]:
        work.update_run(run, metrics("eval", 0, loss=5.5))
    clock.now = 35.0
    for run in SPECS[:2]:
        work.update_run(run, metrics("train", 500, loss=2.5, tokens_per_s=100.0))
    assert work.remaining_s() == 15.0  # three runs' worth, two at once, 10 s each


def test_what_a_resumed_run_had_before_says_nothing_about_the_pace():
    work, clock = make_progress(expected=2)
    work.start_run(SPECS[0])
    work.update_run(SPECS[0], metrics("train", 400, loss=3.0, tokens_per_s=50.0))
    clock.now = 12.0
    work.update_run(SPECS[0], metrics("train", 1000, loss=2.5, tokens_per_s=50.0))
    work.finish_run(SPECS[0])
    assert work.remaining_s() == 20.0


def test_runs_found_in_the_store_are_done_but_say_nothing_about_the_pace():
    work, clock = make_progress()
    work.finish_run(SPECS[0])
    work.finish_run(SPECS[1])
    assert (work.done, work.total) == (2, 4)
    assert work.remaining_s() == 40.0  # the estimate is of the two that are left
    work.start_run(SPECS[2])
    clock.now = 10.0
    work.finish_run(SPECS[2])
    assert work.remaining_s() == 10.0


def test_an_extended_grid_raises_the_total():
    work, _ = make_progress(expected=2)
    work.add_runs(SPECS)
    assert work.total == 4


def test_a_pipe_gets_one_plain_line_per_phase_and_ended_run():
    work, clock = make_progress()
    stream = io.StringIO()
    display = make_display(work, stream, LABELS)
    assert type(display) is LineDisplay
    with display:
        display.on_phase_started("grid", "5 rates, 2 arms")
        display.on_runs_planned(SPECS)
        display.on_run_started(SPECS[0], 1)
        display.on_metrics(SPECS[0], metrics("eval", 0, loss=5.0))
        clock.now = 24.0
        display.on_run_finished(SPECS[0], STALLED, reused=False)
        display.on_run_finished(SPECS[1], RunResult(outcome="completed", loss=2.6), reused=True)
        display.on_run_finished(SPECS[2], RunResult(outcome="diverged"), reused=False)
        display.on_run_failed(SPECS[3], "out of\nmemory", 1)
    lines = stream.getvalue().splitlines()
    assert lines == [
        "grid: 5 rates, 2 arms",
        "[1/4] tune post-norm lr 0.00316: loss 3.1000, stalled, scored as 5.5000, 28.1 k tokens/s, "
        "24 s, "
        "1 min 12 s left",
        "2 of 4 runs are in the store already",
        "failed: tune post-norm lr 0.00316: out of memory",
    ]
    assert not any(ord(c) < 32 for line in lines for c in line)


def test_a_terminal_gets_a_bar_and_a_row_per_running_job():
    from rich.console import Console

    work, _ = make_progress()
    display = LiveDisplay(work, io.StringIO(), LABELS, 0)
    display.on_phase_started("grid", "")
    display.on_run_started(SPECS[0], 1)
    display.on_metrics(SPECS[0], metrics("train", 500, loss=2.5, tokens_per_s=12345.0))
    out = io.StringIO()
    Console(file=out, width=100).print(display._panel())
    head, row = out.getvalue().splitlines()
    assert head.startswith("grid") and "0/4 runs" in head
    assert " ".join(row.split()) == "tune post-norm lr 0.00316 50% loss 2.5000 12.3 k tokens/s"


def test_arms_named_like_markup_are_shown_as_they_are():
    work, _ = make_progress()
    out = io.StringIO()
    display = LiveDisplay(work, out, {}, 0)
    display.on_message("[red]arm[/red] done")
    assert out.getvalue() == "[red]arm[/red] done\n"


def test_a_sweeps_run_is_described_by_its_parameters():
    params = {"train.lr": 0.0031622, "train.weight_decay": 0.1}
    run = RunSpec(
        run_id="x", arm="lr", phase="trial", why="trial", seed=1_000_000, trial=3, params=params
    )
    assert describe_run(run, {}) == "trial 3 lr 0.00316 weight_decay 0.1"


def test_what_a_resume_finds_in_the_store_is_not_told_run_by_run():
    work, _ = make_progress(estimate=0.0)
    stream = io.StringIO()
    with make_display(work, stream, LABELS, reused_before=3) as display:
        display.on_phase_started("grid", "2 rates common to all arms")
        display.on_runs_planned(SPECS[:2])
        for run in SPECS[:2]:
            display.on_run_finished(run, STALLED, reused=True)
        display.on_phase_started("extension", "best of pre, post at the low edge")
        display.on_runs_planned(SPECS[2:])
        display.on_run_finished(SPECS[2], STALLED, reused=True)
        assert stream.getvalue() == ""
        display.on_run_started(SPECS[3], 1)
    assert stream.getvalue() == "extension: best of pre-norm, post-norm at the low edge\n"


def test_a_generation_of_a_sweep_is_told_as_it_is():
    work, _ = make_progress()
    stream = io.StringIO()
    with make_display(work, stream) as display:
        display.on_phase_started("trial", "trials 2 to 3 of 0 to 4")
        display.on_run_started(SPECS[0], 1)
    assert stream.getvalue() == "trials 2 to 3 of 0 to 4\n"


def test_a_reader_that_has_gone_stops_the_study_and_is_no_fault_of_the_display(tmp_path):
    work, _ = make_progress()
    with (tmp_path / "pipe").open("w") as stream:
        display = make_display(work, stream)
        stream.write = lambda text: (_ for _ in ()).throw(BrokenPipeError)
        with pytest.raises(SystemExit) as stopped:
            Observers([display]).on_message("a line")
    assert stopped.value.code == 1
