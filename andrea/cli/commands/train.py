"""`andrea train`: one run."""

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea.cli.options import (
    DEFAULT_RUNS,
    Debug,
    Device,
    Json,
    Preset,
    Runs,
    Settings,
    Tokens,
    Variants,
    Wandb,
    WandbEntity,
    WandbProject,
    WandbTags,
    examples,
)
from andrea.errors import StudyError, reason
from andrea.verdict.seeds import tuning_seed

if TYPE_CHECKING:
    from andrea.config import RunConfig
    from andrea.data.prepared import Prepared
    from andrea.store.runs import RunStore
    from andrea.tracking.mirror import Mirror

EXAMPLES = examples(
    "andrea train                                                  the tiny preset on sotu",
    "andrea train --preset tiny --set model.activation=swiglu --set train.lr=1e-3 --seed 2",
    "andrea train --variants ablations/mine.py --set model.activation=squared_relu",
    "andrea train --set data.source=text:book.txt --set data.tokenizer=char --tokens 1000000",
    "The same config is never trained twice; the command given again shows the result, or resumes.",
)

DEFAULTS = ("data.eval_part=tune", f"seed={tuning_seed(0)}")
"""Trying things out by hand looks at nothing that a verdict is made from."""


def train(
    preset: Preset = "tiny",
    settings: Settings = None,
    variants: Variants = None,
    tokens: Tokens = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            metavar="N",
            help=f"Initial weights, batches and dropout; by default {tuning_seed(0)}, with which "
            "verdicts never train.",
        ),
    ] = None,
    device: Device = "auto",
    wandb: Wandb = None,
    project: WandbProject = None,
    entity: WandbEntity = None,
    tags: WandbTags = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train one config, or show its result when the store has it.

    The loss is measured on the tune part of the text. The verdict part is kept for verdicts, unless
    you set data.eval_part=verdict.
    """
    from andrea.cli.mirrored import asked, mirrored
    from andrea.cli.settings import know_variants, run_config
    from andrea.cli.show.output import print_json, stdout_kept_for_json
    from andrea.cli.stores import starting
    from andrea.config import parse_overrides, refuse_twice
    from andrea.tracking.subject import SingleRun

    to = asked(wandb, project, entity, tags)
    online = to.mode == "online"  # shown while it is trained; else it is mirrored when it has ended
    with stdout_kept_for_json(as_json):
        know_variants(variants)
        for option, path, given in (("--tokens", "train.tokens", tokens), ("--seed", "seed", seed)):
            if given is not None:
                refuse_twice(option, path, parse_overrides(settings or []))
        overrides = [*DEFAULTS, *(settings or []), *([f"train.tokens={tokens}"] if tokens else [])]
        config = run_config(preset, overrides, seed=seed)
        if variants is not None:
            rehearse_own(config)
        with starting(runs) as store:
            resolved, run_id, identity, folder = prepare(config, store, device)
        known = store.result(run_id)
        stream = sys.stderr if as_json else sys.stdout

        def say(text: str) -> None:
            print(text, file=stream, flush=True)

        if known is not None:
            say("this config is trained already; its result:")
        with mirrored(SingleRun(store, run_id), store, to, say) as mirror:
            result = known or follow(
                store, resolved, run_id, identity, folder, say, mirror if online else None
            )
            if not as_json:
                say(as_text(store, run_id, result))
    if as_json:
        print_json(
            {
                "run_id": run_id,
                "folder": str(store.folder(run_id)),
                "trained_before": known is not None,
                **result,
            }
        )


def rehearse_own(config: "RunConfig") -> None:
    """Build and run the model once without numbers, as studies do.

    Raises:
        UserError: a variant of the user's cannot be built and run.
    """
    from andrea.training.rehearsal import rehearse

    rehearse(config.model, "--variants")


def prepare(
    config: "RunConfig", store: "RunStore", device: str
) -> tuple["RunConfig", str, dict[str, Any], Any]:
    """Prepare the data and resolve every `auto`: config, run id, identity, data folder.

    Raises:
        UserError: the text or the config is at fault.
    """
    from andrea.data.batches import require_batches
    from andrea.data.prepare import prepare as prepare_data
    from andrea.training.identity import identity, resolve, run_id
    from andrea.training.memory import require_memory

    require_memory(config)

    def settled(prepared: "Prepared") -> "RunConfig":
        require_batches(prepared, config.train.batch_size, config.model.context)
        return resolve(config, prepared, device)

    prepared = prepare_data(config.data, store.root, check=settled)
    resolved = settled(prepared)
    identified = identity(resolved, prepared.fingerprint)
    return resolved, run_id(identified), identified, prepared.folder


def follow(
    store: "RunStore",
    config: "RunConfig",
    run_id: str,
    identity: dict[str, Any],
    folder: Any,
    say: Callable[[str], None],
    mirror: "Mirror | None" = None,
) -> dict[str, Any]:
    """Train in this process and say a line per evaluation, and what the mirror says meanwhile.

    Raises:
        StudyError: the run failed; the same command resumes.
    """
    from andrea.training.job import run_job

    resumed = bool(store.attempts(run_id))
    say(
        f"run {run_id[:12]}: {'resuming ' if resumed else ''}{config.train.tokens:,} tokens at lr "
        f"{config.train.lr:g}"
    )
    done = threading.Event()
    watched = (store, run_id, config.train.tokens, say, done, mirror)
    watcher = threading.Thread(target=_watch, args=watched, daemon=True)
    if mirror is not None:
        mirror.started({"run_id": run_id})
    watcher.start()
    try:
        result = run_job(store.root, config, folder, run_id, identity)
    except (OSError, ValueError, RuntimeError) as error:
        raise StudyError(
            f"the run failed: {reason(error)}; the same command given again resumes it"
        ) from error
    finally:
        done.set()
        watcher.join()
    if result is None:
        raise StudyError(
            f"run {run_id[:12]} is being trained by another process; the same command shows its "
            "result later"
        )
    return result.to_json()


def _watch(
    store: "RunStore",
    run_id: str,
    budget: int,
    say: Callable[[str], None],
    done: threading.Event,
    mirror: "Mirror | None",
) -> None:
    """Say what is appended to the run's metrics until `done`, and once after."""
    from andrea.execution.tail import Tail

    tail, speed, ended = Tail(store, run_id), None, False
    while not ended:
        ended = done.wait(0.5)
        if mirror is not None:
            mirror.listen()
        for record in tail.read():
            if record["kind"] == "train":
                speed = record.get("tokens_per_s")
            elif record["kind"] == "eval" and record.get("loss") is not None:
                pace = f", {speed:,.0f} tokens/s" if speed else ""
                say(
                    f"{record['tokens'] / budget:4.0%}  {record['tokens']:,} tokens  loss "
                    f"{record['loss']:.4f}{pace}"
                )


def as_text(store: "RunStore", run_id: str, result: dict[str, Any]) -> str:
    """The result as a table."""
    from andrea.cli.show.output import size, table
    from andrea.text.numbers import big, number, seconds, short

    told = result.get("reason") or ("stalled" if result.get("stalled") else "")
    rows: list[list[object]] = [
        ["outcome", f"{result['outcome']}, {told}" if told else result["outcome"]],
        [f"loss ({result.get('eval_part', 'verdict')} part)", number(result.get("loss"))],
        ["bits per byte", number(result.get("bpb"))],
        ["loss at initialisation", number(result.get("initial_loss"))],
        ["training loss, last tenth", number(result.get("train_loss"))],
        ["tokens", f"{result['tokens']:,} ({short(result.get('epochs'))} epochs)"],
        ["training FLOPs", big(result["flops"]) if result.get("flops") else "–"],
        ["time", f"{seconds(result['seconds'])}, {result.get('tokens_per_s') or 0:,.0f} tokens/s"],
        [
            "peak memory",
            size(result["peak_memory_bytes"]) if result.get("peak_memory_bytes") else "–",
        ],
        ["folder", store.folder(run_id)],
    ]
    return table(rows, ("result", ""))
