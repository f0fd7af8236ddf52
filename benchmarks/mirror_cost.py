"""What mirroring a study to W&B costs its training: the same study twice at once, in turns of a
second.

    python benchmarks/mirror_cost.py [--pairs 12] [--trials 7] [--seeds 5] [--slots N] [--null]
    [--online]

A pair is `norm-placement`, run into two fresh stores by two controllers, one with the mirror and
one without. Only one of them has the machine at a time: all processes of the other, its mirror and
wandb's service included, are stopped (SIGSTOP), and every `--turn` seconds they change places. So
what the machine does otherwise meets both alike, and what a mirror needs is paid in the turns of
its own study. A second then counts for a study only while it has the machine.

Printed are, as per cent of the study without the mirror, the tokens per second of the runs (from a
run's start in its worker to its result) and the time to the last result, with their intervals over
pairs; how long runs waited for a processor that another process had, which scatters least; and the
processor time of training, mirror and wandb's service. The runs must be the same; workers must not
know wandb; no process may be left. Exit status 1 where one of these does not hold. `--null` mirrors
neither: what it prints is the error of this instrument. `--online` publishes to the loopback server
of the tests, which nobody stops. A pair takes as long as both studies, two to three minutes on two
cores.
"""

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from andrea.catalogue import find_file
from andrea.data.prepare import prepare
from andrea.execution.local import LocalExecutor
from andrea.records.run import RunResult
from andrea.store.files import append_line, read_json, read_lines, write_json
from andrea.store.runs import RunStore
from andrea.study.controller import run_study
from andrea.study.plan.freeze import freeze
from andrea.study.plan.plan import Request
from andrea.study.plan.resolve import make_plan
from andrea.study.question.ablation import Ablation
from andrea.training.job import run_job
from andrea.training.metrics import VOLATILE
from andrea.training.speed import median_with_interval

PATIENCE_S = 0.02
MARK = "ANDREA_MIRROR_COST"
"""Environment variable that every process of a study inherits, to be known by."""


def work(
    root: Path, cfg: Any, data_folder: Path, run_id: str, identity: dict[str, Any]
) -> RunResult | None:
    """A worker's job: train, and tell when, and what this process has loaded and used."""
    began, waited_s = time.monotonic(), _waited_s()
    result = run_job(root, cfg, data_folder, run_id, identity)
    wandb = sorted(
        name for name in sys.modules if name.partition(".")[0] in ("wandb", "wandb_workspaces")
    )
    told = {
        "run_id": run_id,
        "began": began,
        "ended": time.monotonic(),
        "tokens": result.tokens if result else 0,
    }
    told |= {"waited_s": _waited_s() - waited_s, "used_s": time.process_time(), "wandb": wandb}
    append_line(root / "workers.jsonl", told)
    return result


def _waited_s() -> float:
    """How long this process's main thread, which trains, was ready to run and another had the
    processor.
    """
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


def study(root: Path, options: argparse.Namespace) -> None:
    """One study of a pair, in a process of its own; what it measured goes to `measured.json` in its
    store.
    """
    from andrea.tracking.destination import Destination
    from andrea.tracking.mirror import Mirror

    store, spec = RunStore(root), Ablation.load(find_file("ablations", "norm-placement"))
    asked = Request(
        spec, tokens=options.tokens, trials=options.trials, seeds=options.seeds, device="cpu"
    )
    folder = freeze(make_plan(asked, store), store)
    mirror = (
        Mirror(folder, store, Destination(options.mode), warn=_complain) if options.mode else None
    )
    executor = LocalExecutor(options.slots, run="mirror_cost:work")
    began = time.monotonic()
    if not run_study(folder, store, executor, [mirror] if mirror else []).complete:
        sys.exit("mirror_cost: a run failed")
    trained = time.monotonic()
    if mirror:
        mirror.close()
    used = resource.getrusage(
        resource.RUSAGE_CHILDREN
    )  # of the mirror alone: workers are the fork server's children
    results = {}
    for run in folder.load_runs():
        result = store.load_result(run.run_id)
        results[run.run_id] = result.model_dump(exclude=VOLATILE) if result else {}
    times = {"began": began, "trained": trained, "closed": time.monotonic()}
    write_json(
        root / "measured.json",
        {**times, "mirror_s": used.ru_utime + used.ru_stime, "results": results},
    )


def _complain(line: str) -> None:
    print(f"mirror_cost: {line}", file=sys.stderr)


@dataclass
class Side:
    """One study of a pair, seen from the process that lets it run and stops it."""

    root: Path
    process: "subprocess.Popen[bytes]"
    mark: str
    stops: list[tuple[float, float]] = field(default_factory=list)
    """When it was stopped, and when it went on."""
    stopped_at: float | None = None

    def processes(self) -> dict[int, str]:
        """Its processes but for the zombies, with their state: `T` is stopped."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                    state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                    found |= {int(path.name): state} if state != "Z" else {}
        return found

    def stop(self) -> None:
        """Stop every process of it, also those that begin meanwhile.

        One that waits for its child to become another program (`vfork`) cannot be stopped before
        the child has.
        """
        self.stopped_at = time.monotonic()
        while running := [pid for pid, state in self.processes().items() if state != "T"]:
            _signal(running, signal.SIGSTOP)
            if time.monotonic() - self.stopped_at > PATIENCE_S:
                _signal(list(self.processes()), signal.SIGCONT)
                time.sleep(PATIENCE_S)
                self.stopped_at = time.monotonic()

    def go_on(self) -> None:
        """Let it run again."""
        if self.stopped_at is not None:
            _signal(list(self.processes()), signal.SIGCONT)
            self.stops.append((self.stopped_at, time.monotonic()))
            self.stopped_at = None

    def left(self) -> list[str]:
        """Command lines of the processes that outlive it; a fork server needs a moment to see that
        it is alone.
        """
        for _ in range(100):
            if not (alive := self.processes()):
                break
            time.sleep(0.1)
        return [_command(pid) for pid in alive]

    def lasted(self, began: float, ended: float) -> float:
        """Seconds between two moments in which this side was not stopped."""
        return (
            ended
            - began
            - sum(max(0.0, min(ended, until) - max(began, since)) for since, until in self.stops)
        )


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def start(root: Path, data: Path, mode: str, options: argparse.Namespace) -> Side:
    """Begin one study."""
    root.mkdir()
    (root / "data").symlink_to(data)
    told = json.dumps({**vars(options), "mode": mode})
    environment = {**os.environ, MARK: (mark := uuid.uuid4().hex)}
    command = [sys.executable, str(Path(__file__).resolve()), "--study", str(root), told]
    return Side(root, subprocess.Popen(command, env=environment, start_new_session=True), mark)


def take_turns(sides: list[Side], turn_s: float) -> None:
    """Let the sides run to their ends, one at a time; the last one has the machine for itself."""
    for side in sides[1:]:
        side.stop()
    try:
        while alive := [side for side in sides if side.process.poll() is None]:
            for side in alive:
                for other in alive:
                    if other is not side and other.stopped_at is None:
                        other.stop()
                side.go_on()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    side.process.wait(turn_s)
        for side in sides:
            side.go_on()  # what outlives it must be able to end
    except BaseException:
        for side in sides:
            _signal(list(side.processes()), signal.SIGKILL)
        raise


def measured(side: Side) -> dict[str, Any]:
    """What a side that has ended came to, in seconds of its own."""
    if side.process.returncode:
        sys.exit(f"mirror_cost: a study ended with status {side.process.returncode}")
    told, workers = read_json(side.root / "measured.json"), read_lines(side.root / "workers.jsonl")
    runs_s = sum(side.lasted(run["began"], run["ended"]) for run in workers)
    return {
        "speed": sum(run["tokens"] for run in workers) / runs_s,
        "waited": sum(run["waited_s"] for run in workers) / runs_s,
        "trained_s": side.lasted(told["began"], told["trained"]),
        "close_s": side.lasted(told["trained"], told["closed"]),
        "mirror_s": told["mirror_s"],
        "workers_s": sum(run["used_s"] for run in workers),
        "wandb": [name for run in workers for name in run["wandb"]],
        "left": side.left(),
        "results": told["results"],
    }


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return f"{pid} " + Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(
            errors="replace"
        )
    return str(pid)


@contextlib.contextmanager
def destination(options: argparse.Namespace) -> Iterator[str]:
    """The mode of the mirror; online, with a server on loopback."""
    if not options.online:
        yield "" if options.null else "offline"
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from wandb_server import WandbServer

    with WandbServer() as server:
        os.environ |= {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40}
        yield "online"


def shown(name: str, ratios: list[float]) -> str:
    """The median ratio with its interval, as per cent."""
    middle, low, high = median_with_interval(ratios)
    told = f"{name}: {100 * (middle - 1):+.2f} %"
    if low is None or high is None:
        return f"{told} ({', '.join(f'{100 * (ratio - 1):+.2f}' for ratio in ratios)})"
    return f"{told}, 95 % interval {100 * (low - 1):+.2f} to {100 * (high - 1):+.2f} %"


def measure(
    options: argparse.Namespace, mode: str, scratch: Path
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """All pairs, the study without the mirror first; which one begins changes from pair to pair."""
    spec = Ablation.load(find_file("ablations", "norm-placement"))
    prepare(spec.arm_config(spec.baseline).data, scratch)
    pairs = []
    for number in range(options.pairs):
        modes = {"without": "", "with": mode}
        sides = {
            which: start(scratch / f"{which}-{number}", scratch / "data", modes[which], options)
            for which in modes
        }
        take_turns(
            [sides[which] for which in sorted(sides, reverse=bool(number % 2))], options.turn
        )
        without, mirrored = (measured(side) for side in sides.values())
        pairs.append((without, mirrored))
        ratios = [100 * (mirrored[key] / without[key] - 1) for key in ("speed", "trained_s")]
        waits = f"waited {without['waited']:.2%} without, {mirrored['waited']:.2%} with the mirror"
        print(
            f"pair {number + 1}: speed {ratios[0]:+.2f} %, last result {ratios[1]:+.2f} %, {waits}",
            flush=True,
        )
    return pairs


def show(
    pairs: list[tuple[dict[str, Any], dict[str, Any]]], options: argparse.Namespace, mode: str
) -> bool:
    """Print what was measured; whether runs, workers and processes are as they must be."""
    every, mirrored = [told for pair in pairs for told in pair], [pair[1] for pair in pairs]
    mirrors, workers = (sum(told[key] for told in mirrored) for key in ("mirror_s", "workers_s"))
    wandb, left = ([name for told in every for name in told[key]] for key in ("wandb", "left"))
    same = all(without["results"] == with_it["results"] for without, with_it in pairs)
    runs = sum(len(told["results"]) for told in every)
    print(
        f"{len(pairs)} pairs, {runs} runs of {options.tokens:,} tokens, {options.slots} at once, "
        f"mirror {mode or 'off'}"
    )
    for name, key in (
        ("training speed with the mirror", "speed"),
        ("time to the last result", "trained_s"),
    ):
        print(shown(name, [with_it[key] / without[key] for without, with_it in pairs]))
    waits = [sum(told["waited"] for told in side) / len(side) for side in zip(*pairs, strict=True)]
    print(
        f"runs that waited for a processor: {waits[0]:.2%} of their time without, {waits[1]:.2%} "
        "with the mirror"
    )
    print(
        f"processor time: mirror {mirrors:.1f} s at low priority, training {workers:.1f} s "
        f"({mirrors / workers:.1%})"
    )
    print(f"closing the mirror: {max(told['close_s'] for told in mirrored):.1f} s at most")
    print(
        f"same results: {same}; wandb in workers: {wandb or 'none'}; processes left: "
        f"{left or 'none'}"
    )
    print(f"load of the machine: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")
    return same and not wandb and not left


def main() -> int:
    if sys.argv[1:2] == ["--study"]:
        study(Path(sys.argv[2]), argparse.Namespace(**json.loads(sys.argv[3])))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=12, help="under six there is no interval")
    parser.add_argument("--tokens", type=int, default=102_400, help="of a run")
    parser.add_argument("--trials", type=int, default=7, help="rates per arm")
    parser.add_argument("--seeds", type=int, default=5, help="replicates per arm")
    parser.add_argument("--slots", type=int, default=os.cpu_count() or 1, help="runs at once")
    parser.add_argument("--turn", type=float, default=1.0, help="seconds")
    parser.add_argument("--null", action="store_true", help="mirror neither study")
    parser.add_argument(
        "--online", action="store_true", help="publish to the loopback server of the tests"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, destination(options) as mode:
        return 0 if show(measure(options, mode, Path(scratch)), options, mode) else 1


if __name__ == "__main__":
    sys.exit(main())
