"""One run from its first step, or its last checkpoint, to its result.

Everything at step s means after s optimizer steps. Records of a step are written before a
checkpoint of that step, so that a checkpoint's offset into metrics.jsonl is where its step's
records end.
"""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from andrea.config import RunConfig
from andrea.data.batches import epochs_trained, evaluation_set, unique_tokens
from andrea.data.prepared import Prepared
from andrea.model.accounting import count_parameters, flops_per_token
from andrea.records.run import MetricRecord, RunResult
from andrea.training import checkpoint, diagnostics, schedule
from andrea.training.evaluate import Evaluation, bits_per_byte, evaluate
from andrea.training.loop import RunningSums, Trainer, preserve_torch_state
from andrea.training.metrics import MetricsFile
from andrea.training.run_ending import ending_of, finite_or_none

CHECKPOINT_SHARE = 30
"""Training lasts at least this many times as long as the checkpoint before it took to write."""

PROGRESS = ("initial_loss", "logged_step", "logged_seconds", "seconds")
"""Attributes of a run that a checkpoint holds under their names."""


def train(
    cfg: RunConfig,
    prepared: Prepared,
    folder: Path,
    *,
    attempt: int = 1,
    checkpoint_every_s: float = 10.0,
) -> RunResult:
    """Train a resolved config into `folder`, from its checkpoint if it has one; returns the result,
    not yet written.

    Writes metrics.jsonl, checkpoint and log.txt there. torch's global state is as before when it
    returns or raises.

    Raises:
        UserError: the budget is smaller than one batch.
        OSError: the disk is full; the files in the folder can be resumed.
    """
    with preserve_torch_state(torch.device(cfg.train.device)):
        torch.set_num_threads(cfg.train.threads)
        return Run(cfg, prepared, folder, attempt, checkpoint_every_s).train_to_end()


class Run:
    """The state of one attempt: a trainer, an open metrics file, and clocks."""

    def __init__(
        self,
        cfg: RunConfig,
        prepared: Prepared,
        folder: Path,
        attempt: int,
        checkpoint_every_s: float,
    ) -> None:
        self.cfg, self.prepared, self.folder = cfg, prepared, folder
        self.attempt, self.checkpoint_every_s = attempt, checkpoint_every_s
        self.trainer = Trainer(cfg, prepared)
        self.data = evaluation_set(prepared, cfg.data, cfg.model.context)
        self.probe = diagnostics.probe_batch(prepared, cfg.model.context, self.trainer.device)
        self.tokens_per_step = schedule.batch_tokens(cfg)
        self.evals = schedule.evenly_spaced(cfg.train.evals, self.trainer.steps)
        self.logs = schedule.evenly_spaced(cfg.train.logs, self.trainer.steps)
        self.layers: frozenset[int] = frozenset()
        if cfg.train.diagnostics:
            self.layers = schedule.evenly_spaced(cfg.train.diagnostics, self.trainer.steps)
        self.initial_loss = float("nan")
        self.logged_step, self.logged_seconds = 0, 0.0
        self.seconds, self.earlier_wall_seconds = 0.0, 0.0
        self.broken_at: int | None = None
        """Steps done when a loss or a gradient was found not to be finite."""
        self.started = time.perf_counter()

    def train_to_end(self) -> RunResult:
        """Train to the end, unless the attempt before reached it already; returns the result."""
        state = self._restore_checkpoint()
        if state and state["result"]:
            return RunResult.model_validate(state["result"])
        if self.trainer.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.trainer.device)
        offset = state["offset"] if state else 0
        with closing(MetricsFile(self.folder / "metrics.jsonl", offset)) as metrics:
            self.metrics = metrics
            final = None if state else self._evaluate_initial_weights()
            if self.broken_at is None:
                final = self._train_remaining_steps() or final
            result = self._summarize(final)
            metrics.sync()
            # Without the optimizer, since nobody trains on from here. The result is stored along
            # with the weights, for a kill right after.
            checkpoint.save(
                self.folder / "checkpoint",
                {
                    "step": self.trainer.step,
                    "model": self.trainer.model.state_dict(),
                    "offset": metrics.offset,
                    "result": result.to_json(),
                },
            )
        reason = f": {result.reason}" if result.reason else ""
        self._log(f"{result.outcome} at step {result.steps}{reason}")
        return result

    def _restore_checkpoint(self) -> checkpoint.State | None:
        """Continue from the checkpoint and return it; None where there is none that can be used."""
        path = self.folder / "checkpoint"
        device = self.trainer.device
        if not path.exists():
            self._log(f"attempt {self.attempt}: from step 0 on {device}")
            return None
        try:
            state = checkpoint.load(path, device)
            size = (self.folder / "metrics.jsonl").stat().st_size
            if size < state["offset"]:
                message = f"it belongs to {state['offset']} bytes of metrics, there are {size}"
                raise checkpoint.CheckpointError(message)
            if not state["result"]:
                self._load_state(state)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever is wrong with the file, the run can be trained again
            path.unlink(missing_ok=True)
            fault = (str(error) or type(error).__name__).splitlines()[0]
            warning = f"the checkpoint cannot be used ({fault}); this run starts again from step 0"
            self._log(warning)
            print(f"andrea: {self.folder.name[:12]}: {warning}", file=sys.stderr, flush=True)
            self.trainer = Trainer(self.cfg, self.prepared)
            return None
        self._log(f"attempt {self.attempt}: from step {state['step']} on {device}")
        return state

    def _load_state(self, state: checkpoint.State) -> None:
        self.trainer.load_state_dict(state)
        # All are read before one is set: a state that lacks one of them changes none.
        progress = {name: state[name] for name in PROGRESS}
        self.earlier_wall_seconds = state["wall_seconds"]
        vars(self).update(progress)

    def _save_checkpoint(self) -> None:
        self.metrics.sync()
        state = {
            **self.trainer.state_dict(),
            "offset": self.metrics.offset,
            **{name: getattr(self, name) for name in PROGRESS},
            "wall_seconds": self._wall_seconds(),
            "result": None,
        }
        checkpoint.save(self.folder / "checkpoint", state)

    def _evaluate_initial_weights(self) -> Evaluation:
        evaluation = self._record_evaluation()
        self.initial_loss = evaluation.loss
        if finite_or_none(evaluation.loss) is None:
            self.broken_at = 0
        if self.cfg.train.diagnostics:
            self._record_layers()
        return evaluation

    def _train_remaining_steps(self) -> Evaluation | None:
        """Train to the last step; returns the evaluation of the full set after it."""
        trainer, evaluation = self.trainer, None
        if self.cfg.train.compile == "on" or self.cfg.train.kernels == "cuda":
            trainer.warm_up()
        saved_at, save_seconds = time.perf_counter(), 0.0
        while trainer.step < trainer.steps:
            sums = None
            with self._training_clock():
                trainer.advance()
                step = trainer.step
                # Reading waits for the device: that wait is part of the training.
                if step in self.logs or trainer.has_nonfinite():
                    sums = trainer.read_sums()
            if sums is not None:
                self._record_training(sums)
            if self.broken_at is not None:
                return None
            if step in self.evals:
                evaluation = self._record_evaluation()
            if step in self.layers:
                self._record_layers()
            interval = max(self.checkpoint_every_s, CHECKPOINT_SHARE * save_seconds)
            if time.perf_counter() - saved_at >= interval and step < trainer.steps:
                start = time.perf_counter()
                self._save_checkpoint()
                saved_at = time.perf_counter()
                save_seconds = saved_at - start
        return evaluation

    @contextmanager
    def _training_clock(self) -> Iterator[None]:
        """Count into `seconds`: training alone, without evaluation, diagnostics, checkpoints and
        compilation.
        """
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start

    def _wall_seconds(self) -> float:
        return self.earlier_wall_seconds + time.perf_counter() - self.started

    def _append_record(self, kind: str, **fields: Any) -> None:
        step = self.trainer.step
        tokens = step * self.tokens_per_step
        self.metrics.append(MetricRecord(kind=kind, step=step, tokens=tokens, **fields))

    def _record_training(self, sums: RunningSums) -> None:
        step = self.trainer.step
        steps, seconds = step - self.logged_step, self.seconds - self.logged_seconds
        self._append_record(
            "train",
            loss=finite_or_none(sums.loss / steps),
            lr=schedule.lr(step - 1, self.trainer.steps, self.cfg.train),
            grad_norm=finite_or_none(sums.latest_grad_norm),
            tokens_per_s=_rate(steps * self.tokens_per_step, seconds),
            seconds=round(self.seconds, 3),
        )
        # The interval's sum of norms: a norm that was not finite in between shows in it alone.
        if finite_or_none(sums.loss) is None or finite_or_none(sums.grad_norm) is None:
            self.broken_at = step
        self.logged_step, self.logged_seconds = step, self.seconds
        self.trainer.reset_sums()

    def _record_evaluation(self) -> Evaluation:
        """Evaluate and record: the full set at both ends of the run, else the curve subset."""
        self.trainer.synchronize()
        data, model = self.data, self.trainer.model
        full = self.trainer.step in (0, self.trainer.steps)
        evaluation = evaluate(model, data, self.trainer.autocast(), curve=not full)
        loss = evaluation.loss_on(data.curve) if full else evaluation.loss
        curve_tokens = len(data.curve) * self.cfg.model.context
        fields = {
            "loss": finite_or_none(loss),
            "bpb": finite_or_none(bits_per_byte(loss, curve_tokens, data.curve_bytes)),
        }
        if full:
            full_bpb = bits_per_byte(evaluation.loss, evaluation.tokens, data.bytes)
            fields["full_loss"] = finite_or_none(evaluation.loss)
            fields["full_bpb"] = finite_or_none(full_bpb)
        self._append_record("eval", **fields)
        return evaluation

    def _record_layers(self) -> None:
        self.trainer.synchronize()
        model, autocast = self.trainer.model, self.trainer.autocast()
        statistics = diagnostics.layer_statistics(model, *self.probe, autocast)
        self._append_record("layers", **statistics._asdict())

    def _summarize(self, final: Evaluation | None) -> RunResult:
        """Compose the result (docs/architecture.md explains its fields)."""
        cfg, data, trainer = self.cfg, self.data, self.trainer
        # A run that broke off has no final loss: its last evaluation was of other weights.
        if trainer.step < trainer.steps or self.broken_at is not None:
            final = None
        loss = train_loss = float("nan")
        if final is not None:
            loss = final.loss
            train_loss = trainer.read_sums().tail_loss / schedule.tail_steps(trainer.steps)
        ending = ending_of(
            initial_loss=self.initial_loss,
            train_loss=train_loss,
            final_loss=loss,
            unigram_loss=data.unigram_loss,
            broken_at=self.broken_at,
        )
        tokens = trainer.step * self.tokens_per_step
        shape = (cfg.train.batch_size, cfg.model.context)
        return RunResult(
            **asdict(ending),
            loss=finite_or_none(loss),
            bpb=finite_or_none(bits_per_byte(loss, data.x.size, data.bytes)),
            initial_loss=finite_or_none(self.initial_loss),
            unigram_loss=data.unigram_loss,
            train_loss=finite_or_none(train_loss),
            eval_digest=data.digest,
            eval_tokens=data.x.size,
            eval_part=cfg.data.eval_part,
            documents=[] if final is None else final.document_losses(data.names),
            steps=trainer.step,
            tokens=tokens,
            unique_tokens=unique_tokens(self.prepared, cfg.seeds.data, trainer.step, *shape),
            epochs=epochs_trained(self.prepared, tokens),
            seconds=round(self.seconds, 3),
            wall_seconds=round(self._wall_seconds(), 3),
            tokens_per_s=_rate(tokens, self.seconds),
            parameters=count_parameters(cfg.model)._asdict(),
            flops=flops_per_token(cfg.model).total * tokens,
            peak_memory_bytes=peak_memory(trainer.device),
            attempts=self.attempt,
            finished_at=_utc_now(),
        )

    def _log(self, line: str) -> None:
        """Append a line to log.txt."""
        with (self.folder / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{_utc_now()} {line}\n")


def peak_memory(device: torch.device) -> int:
    """Most bytes allocated on the device; on a CPU the process's largest resident size."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _rate(tokens: int, seconds: float) -> float | None:
    """Tokens per second; None where no time was measured."""
    return round(tokens / seconds, 1) if seconds else None


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
