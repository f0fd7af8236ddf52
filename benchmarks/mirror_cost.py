"""What mirroring a study to W&B costs its training: the same runs with and without the mirror, side after side.

    python benchmarks/mirror_cost.py [--pairs 6] [--tokens 102400] [--slots 2] [--online]

A pair is one small study, run twice into fresh stores, once with the mirror and once without; which comes first changes
from pair to pair. Printed are the ratio of training speeds (tokens per second by the clock of `train`, mean over the
study's runs) with its interval over pairs, that of the time until the last run ended, and the processor time of the
mirror (without wandb's own service), which runs at low priority. The runs must be the same; workers must not know
wandb; no process may be left. Exit status 1 where one of these does not hold. A pair takes as long as twelve runs; a
machine that does something else meanwhile widens the intervals. `--online` publishes to the loopback server of the
tests.
"""

import argparse
import contextlib
import os
import resource
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from andrea.catalogue import find
from andrea.data.prepare import prepare
from andrea.store.files import append_line, read_lines
from andrea.store.runs import RunStore
from andrea.study.ablation import Ablation
from andrea.study.controller import run_study
from andrea.study.freeze import freeze, plan
from andrea.study.local import LocalExecutor
from andrea.study.plans import Request
from andrea.training.job import run_job
from andrea.training.metrics import VOLATILE
from andrea.training.speed import median

MARK = "ANDREA_MIRROR_COST"
"""Environment variable that every process of this benchmark inherits, to be known by."""
SEEDS = 2
"""Two arms, each tuned at one rate and trained on so many seeds: six runs."""

Side = Literal["without", "with"]


def work(root: Path, cfg: Any, data_folder: Path, run_id: str, identity: dict[str, Any]) -> dict[str, Any] | None:
    """A worker's job: train, and tell what this process has loaded and used."""
    result = run_job(root, cfg, data_folder, run_id, identity)
    wandb = sorted(name for name in sys.modules if name.partition(".")[0] in ("wandb", "wandb_workspaces"))
    append_line(root / "workers.jsonl", {"pid": os.getpid(), "wandb": wandb, "used_s": time.process_time()})
    return result


def side(root: Path, spec: Ablation, options: argparse.Namespace, mode: str | None) -> dict[str, Any]:
    """One study: its runs' speed, how long it took, and the processor time of its workers and of the mirror."""
    from andrea.tracking.mirror import Mirror
    from andrea.tracking.subject import Destination

    store = RunStore(root)
    rate = {"protocol.center": 1e-3}  # at which both arms train
    asked = Request(spec, overrides=rate, tokens=options.tokens, trials=1, seeds=SEEDS, device="cpu")
    folder = freeze(plan(asked, store), store)
    mirror = Mirror(folder, store, Destination(mode), warn=_complain) if mode else None  # type: ignore[arg-type]
    executor = LocalExecutor(options.slots, run="mirror_cost:work")
    before, began = _children_s(), time.perf_counter()
    if not run_study(folder, store, executor, [mirror] if mirror else []).complete:
        sys.exit("mirror_cost: a run failed")
    trained_s = time.perf_counter() - began
    if mirror:
        mirror.close()
    results = {run["run_id"]: store.result(run["run_id"]) or {} for run in folder.runs()}
    workers = read_lines(root / "workers.jsonl")
    return {
        "speed": sum(result["tokens_per_s"] for result in results.values()) / len(results),
        "trained_s": trained_s,
        "close_s": time.perf_counter() - began - trained_s,
        "mirror_s": _children_s() - before,
        "workers_s": sum(worker["used_s"] for worker in workers),
        "wandb": [name for worker in workers for name in worker["wandb"]],
        "left": _left(),
        "results": {i: {k: v for k, v in told.items() if k not in VOLATILE} for i, told in results.items()},
    }


def _complain(line: str) -> None:
    print(f"mirror_cost: {line}", file=sys.stderr)


def _children_s() -> float:
    """Processor time of children that have ended: of the mirror. Workers are children of the fork server."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _left() -> list[str]:
    """Command lines of this benchmark's processes, but for itself and the fork server that workers come from."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            ours = os.environ[MARK].encode() in (path / "environ").read_bytes()
            if ours and int(path.name) != os.getpid() and "from multiprocessing" not in line:
                found.append(f"{path.name} {line}")
    return found


@contextlib.contextmanager
def destination(online: bool) -> Iterator[str]:
    """The mode of the mirror; online, with a server on loopback."""
    if not online:
        yield "offline"
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from wandb_server import WandbServer

    with WandbServer() as server:
        os.environ |= {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40}
        yield "online"


def shown(name: str, ratios: list[float]) -> str:
    """A ratio with its interval as per cent."""
    middle, low, high = median(ratios)
    told = f"{name}: {100 * (middle - 1):+.2f} %"
    if low is None or high is None:
        return told
    return f"{told}, 95 % interval {100 * (low - 1):+.2f} to {100 * (high - 1):+.2f} %"


def measure(options: argparse.Namespace, mode: str, scratch: Path) -> list[dict[Side, dict[str, Any]]]:
    """All pairs; the sides of a pair run one after the other, in turns which first."""
    spec = Ablation.load(find("ablations", "norm-placement"))
    prepare(spec.arm_config(spec.baseline).data, scratch)
    pairs: list[dict[Side, dict[str, Any]]] = []
    for number in range(options.pairs):
        order: list[Side] = ["without", "with"] if number % 2 else ["with", "without"]
        pair: dict[Side, dict[str, Any]] = {}
        for which in order:
            root = scratch / f"{which}-{number}"
            root.mkdir()
            (root / "data").symlink_to(scratch / "data")
            pair[which] = side(root, spec, options, mode if which == "with" else None)
        pairs.append(pair)
        speeds = {which: f"{told['speed']:,.0f}" for which, told in pair.items()}
        print(f"pair {number + 1}: {speeds['without']} tokens/s without, {speeds['with']} with the mirror", flush=True)
    return pairs


def show(pairs: list[dict[Side, dict[str, Any]]], options: argparse.Namespace, mode: str) -> bool:
    """Print what was measured; whether runs, workers and processes are as they must be."""
    every = [told for pair in pairs for told in pair.values()]
    mirrors, workers = (sum(pair["with"][key] for pair in pairs) for key in ("mirror_s", "workers_s"))
    wandb, left = ([name for told in every for name in told[key]] for key in ("wandb", "left"))
    same = all(pair["with"]["results"] == pair["without"]["results"] for pair in pairs)
    runs = sum(len(told["results"]) for told in every)
    print(f"{len(pairs)} pairs, {runs} runs of {options.tokens:,} tokens, {options.slots} at once, mirror {mode}")
    for name, key in (("training speed with the mirror", "speed"), ("time to the last result", "trained_s")):
        print(shown(name, [pair["with"][key] / pair["without"][key] for pair in pairs]))
    print(f"processor time: mirror {mirrors:.1f} s at low priority, training {workers:.1f} s ({mirrors / workers:.1%})")
    print(f"closing the mirror: {max(pair['with']['close_s'] for pair in pairs):.1f} s at most")
    print(f"same results: {same}; wandb in workers: {wandb or 'none'}; processes left: {left or 'none'}")
    print(f"load of the machine: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")
    return same and not wandb and not left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6, help="under six there is no interval")
    parser.add_argument("--tokens", type=int, default=102_400, help="of a run")
    parser.add_argument("--slots", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--online", action="store_true", help="publish to the loopback server of the tests")
    options = parser.parse_args()
    os.environ[MARK] = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as scratch, destination(options.online) as mode:
        return 0 if show(measure(options, mode, Path(scratch)), options, mode) else 1


if __name__ == "__main__":
    sys.exit(main())
