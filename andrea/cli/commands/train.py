"""`andrea train`: one run."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from andrea.cli import options as opt
from andrea.cli.settings import build_run_config, load_variants, rehearse_variants
from andrea.cli.show.output import print_json, size, stdout_kept_for_json, table
from andrea.errors import StudyError, reason
from andrea.text.numbers import NOTHING, big, number, seconds, short
from andrea.verdict.seeds import tuning_seed

if TYPE_CHECKING:
    from andrea.config import RunConfig
    from andrea.data.prepared import Prepared
    from andrea.records.base import Settings as Identity
    from andrea.records.run import RunResult, RunSpec
    from andrea.store.runs import RunStore
    from andrea.tracking.mirror import Mirror

EXAMPLES = opt.examples(
    "andrea train                                                  the tiny preset on sotu",
    "andrea train --preset tiny --set model.activation=swiglu --set train.lr=1e-3 --seed 2",
    "andrea train --variants ablations/mine.py --set model.activation=squared_relu",
    "andrea train --set data.source=text:book.txt --set data.tokenizer=char --tokens 1000000",
    "The same config is never trained twice; the command given again shows the result, or resumes.",
)

# Trying things out by hand must look at nothing that a verdict is made from.
DEFAULTS = ("data.eval_part=tune", f"seed={tuning_seed(0)}")
POLL_S = 0.5
"""Seconds between two looks at the metrics."""

Say = Callable[[str], None]
"""Prints a line for people."""


def train(
    preset: opt.Preset = "tiny",
    settings: opt.Settings = None,
    variants: opt.Variants = None,
    tokens: opt.Tokens = None,
    seed: Annotated[
        int | None,
        opt.option(
            "--seed N",
            f"Initial weights, batches and dropout; by default {tuning_seed(0)}, with which "
            "verdicts never train.",
            min=0,
        ),
    ] = None,
    device: opt.Device = "auto",
    wandb: opt.Wandb = None,
    project: opt.WandbProject = None,
    entity: opt.WandbEntity = None,
    tags: opt.WandbTags = None,
    runs: opt.Runs = opt.DEFAULT_RUNS,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Train one config, or show its result when the store has it.

    The loss is measured on the tune part of the text. The verdict part is kept for verdicts, unless
    you set data.eval_part=verdict.
    """
    from andrea.cli.stores import starting_store
    from andrea.cli.wandb_mirror import MirrorOptions, open_mirror
    from andrea.tracking.subject import SingleRun

    stream = sys.stderr if as_json else sys.stdout

    def say(text: str) -> None:
        print(text, file=stream, flush=True)

    mirror_options = MirrorOptions(wandb, project, entity, tags)
    mirror_options.require_valid()
    with stdout_kept_for_json(as_json):
        load_variants(variants)
        overrides = merge_overrides(settings or [], tokens, seed)
        config = build_run_config(preset, overrides, seed=seed)
        rehearse_variants({"--variants": config.model}, variants)
        with starting_store(runs) as store:
            run = prepare_run(config, store, device)
        result = earlier = store.load_result(run.run_id)
        if earlier is not None:
            say("this config is trained already; its result:")
        with open_mirror(SingleRun(store, run.run_id), store, mirror_options, say) as mirror:
            if result is None:
                # Online the run is shown while it is trained; else it is mirrored at its end.
                live_mirror = mirror if mirror_options.mode == "online" else None
                result = train_run(store, run, say, live_mirror)
            if not as_json:
                say(result_as_text(store, run.run_id, result))
    if as_json:
        head = {"run_id": run.run_id, "folder": str(store.folder(run.run_id))}
        print_json({**head, "trained_before": earlier is not None, **result.to_json()})


class PreparedRun(NamedTuple):
    """A run whose data are prepared and whose settings are all resolved."""

    config: "RunConfig"
    run_id: str
    identity: "Identity"
    """What the id digests."""
    data_folder: Path


def merge_overrides(settings: list[str], tokens: int | None, seed: int | None) -> list[str]:
    """Return the settings of the command line over the defaults.

    Raises:
        UserError: an option and `--set` say the same.
    """
    from andrea.config import parse_overrides, refuse_twice

    if tokens is not None:
        refuse_twice("--tokens", "train.tokens", parse_overrides(settings))
    if seed is not None:
        refuse_twice("--seed", "seed", parse_overrides(settings))
    budget = [] if tokens is None else [f"train.tokens={tokens}"]
    return [*DEFAULTS, *settings, *budget]


def prepare_run(config: "RunConfig", store: "RunStore", device: str) -> PreparedRun:
    """Prepare the data and resolve every `auto`.

    Raises:
        UserError: the text or the config is at fault.
    """
    from andrea.data.batches import require_batches
    from andrea.data.prepare import prepare
    from andrea.training.identity import identity, resolve, run_id
    from andrea.training.memory import require_memory

    require_memory(config)

    def resolve_for(prepared: "Prepared") -> "RunConfig":
        require_batches(prepared, config.train.batch_size, config.model.context)
        return resolve(config, prepared, device)

    prepared = prepare(config.data, store.root, check=resolve_for)
    resolved = resolve_for(prepared)
    run_identity = identity(resolved, prepared.fingerprint)
    return PreparedRun(resolved, run_id(run_identity), run_identity, prepared.folder)


def train_run(
    store: "RunStore", run: PreparedRun, say: Say, mirror: "Mirror | None"
) -> "RunResult":
    """Train in this process, with a line per evaluation.

    Raises:
        StudyError: the run failed; the same command resumes.
    """
    from andrea.training.job import run_job

    name, train = run.run_id[:12], run.config.train
    resuming = "resuming " if store.attempts(run.run_id) else ""
    say(f"run {name}: {resuming}{train.tokens:,} tokens at lr {train.lr:g}")
    ended = threading.Event()
    watcher = threading.Thread(
        target=_say_evaluations, args=(store, run, say, ended, mirror), daemon=True
    )
    if mirror is not None:
        mirror.on_run_started(_spec(run), attempt=1)
    watcher.start()
    try:
        result = run_job(store.root, run.config, run.data_folder, run.run_id, run.identity)
    except (OSError, ValueError, RuntimeError) as error:
        raise StudyError(
            f"the run failed: {reason(error)}; the same command given again resumes it"
        ) from error
    finally:
        ended.set()
        watcher.join()
    if result is None:
        raise StudyError(
            f"run {name} is being trained by another process; the same command shows its result "
            "later"
        )
    return result


def _say_evaluations(
    store: "RunStore", run: PreparedRun, say: Say, ended: threading.Event, mirror: "Mirror | None"
) -> None:
    """Print every evaluation that is appended to the run's metrics, until the run has ended."""
    from andrea.execution.tail import Tail

    budget, tail = run.config.train.tokens, Tail(store, run.run_id)
    speed, is_last_look = "", False
    while not is_last_look:
        is_last_look = ended.wait(POLL_S)
        if mirror is not None:
            mirror.listen()
        for record in tail.read():
            if record.kind == "train":
                pace = record.tokens_per_s
                speed = f", {pace:,.0f} tokens/s" if pace else ""
            elif record.kind == "eval" and record.loss is not None:
                share = record.tokens / budget
                say(f"{share:4.0%}  {record.tokens:,} tokens  loss {record.loss:.4f}{speed}")


def _spec(run: PreparedRun) -> "RunSpec":
    """Return the run as observers know it; it belongs to no study."""
    from andrea.records.run import RunSpec

    config = run.config
    return RunSpec(
        run_id=run.run_id, arm="", phase="train", why="train", lr=config.train.lr, seed=config.seed
    )


def result_as_text(store: "RunStore", run_id: str, result: "RunResult") -> str:
    """Return the result as a table."""
    remark = result.reason or ("stalled" if result.stalled else "")
    speed = f"{result.tokens_per_s or 0:,.0f} tokens/s"
    memory = size(result.peak_memory_bytes) if result.peak_memory_bytes else NOTHING
    rows: list[tuple[str, object]] = [
        ("outcome", f"{result.outcome}, {remark}" if remark else result.outcome),
        (f"loss ({result.eval_part or 'verdict'} part)", number(result.loss)),
        ("bits per byte", number(result.bpb)),
        ("loss at initialisation", number(result.initial_loss)),
        ("training loss, last tenth", number(result.train_loss)),
        ("tokens", f"{result.tokens or 0:,} ({short(result.epochs)} epochs)"),
        ("training FLOPs", big(result.flops) if result.flops else NOTHING),
        ("time", f"{seconds(result.seconds)}, {speed}"),
        ("peak memory", memory),
        ("folder", store.folder(run_id)),
    ]
    return table(rows, ("result", ""))
