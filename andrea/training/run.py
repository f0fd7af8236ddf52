"""One run from its first step or its last checkpoint to its result: what is recorded when.

Everything at step s means after s optimizer steps. Records of a step are written before a
checkpoint of that step, so that a checkpoint's offset into metrics.jsonl is where its step's
records end.
"""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from andrea.config import RunConfig
from andrea.data.batches import epochs, evaluation, unique_tokens
from andrea.data.prepared import Prepared
from andrea.model.accounting import count_parameters, flops_per_token
from andrea.training import checkpoint, diagnostics, schedule
from andrea.training.evaluate import Evaluation, bits_per_byte, evaluate
from andrea.training.loop import Trainer, untouched
from andrea.training.metrics import MetricsFile
from andrea.training.outcome import finite, outcome

CHECKPOINT_SHARE = 30
"""Training lasts at least this many times as long as the checkpoint before it took to write."""


def train(
    cfg: RunConfig,
    prepared: Prepared,
    folder: Path,
    *,
    attempt: int = 1,
    checkpoint_every_s: float = 10.0,
) -> dict[str, Any]:
    """Train a resolved config into `folder`, from its checkpoint if it has one; returns the result,
    not yet written.

    Writes metrics.jsonl, checkpoint and log.txt there. torch's global state is as before when it
    returns or raises.

    Raises:
        UserError: the budget is smaller than one batch.
        OSError: the disk is full; what is there can be resumed.
    """
    with untouched(torch.device(cfg.train.device)):
        torch.set_num_threads(cfg.train.threads)
        return Run(cfg, prepared, folder, attempt, checkpoint_every_s).result()


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
        self.data = evaluation(prepared, cfg.data, cfg.model.context)
        self.probe = diagnostics.probe(prepared, cfg.model.context, self.trainer.device)
        self.tokens_per_step = schedule.batch_tokens(cfg)
        self.evals = schedule.points(cfg.train.evals, self.trainer.steps)
        self.logs = schedule.points(cfg.train.logs, self.trainer.steps)
        self.layers = (
            schedule.points(cfg.train.diagnostics, self.trainer.steps)
            if cfg.train.diagnostics
            else frozenset()
        )
        self.initial_loss = float("nan")
        self.logged_step, self.logged_seconds = 0, 0.0
        self.seconds, self.earlier_wall = 0.0, 0.0
        self.broken_at: int | None = None
        self.started = time.perf_counter()

    def result(self) -> dict[str, Any]:
        """Train to the end, or find that the attempt before had got there."""
        state = self._restore()
        if state and state["result"]:
            found: dict[str, Any] = state["result"]
            return found
        if self.trainer.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.trainer.device)
        with MetricsFile(self.folder / "metrics.jsonl", state["offset"] if state else 0) as metrics:
            self.metrics = metrics
            final = self._initial() if state is None else None
            if self.broken_at is None:
                final = self._loop() or final
            result = self._summary(final)
            metrics.sync()
            # Without the optimizer: nobody trains on from here. The result rides along, for a kill
            # right after.
            checkpoint.save(
                self.folder / "checkpoint",
                {
                    "step": self.trainer.step,
                    "model": self.trainer.model.state_dict(),
                    "offset": metrics.offset,
                    "result": result,
                },
            )
        self.say(
            f"{result['outcome']} at step {result['steps']}"
            + (f": {result['reason']}" if result["reason"] else "")
        )
        return result

    def _restore(self) -> dict[str, Any] | None:
        path = self.folder / "checkpoint"
        if not path.exists():
            self.say(f"attempt {self.attempt}: from step 0 on {self.trainer.device}")
            return None
        try:
            state = checkpoint.load(path, self.trainer.device)
            size = (self.folder / "metrics.jsonl").stat().st_size
            if size < state["offset"]:
                raise checkpoint.CheckpointError(
                    f"it belongs to {state['offset']} bytes of metrics, there are {size}"
                )
            if not state["result"]:
                self._take_up(state)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever is wrong with the file, the run can be trained again
            path.unlink(missing_ok=True)
            why = (str(error) or type(error).__name__).splitlines()[0]
            warning = f"the checkpoint cannot be used ({why}); this run starts again from step 0"
            self.say(warning)
            print(f"andrea: {self.folder.name[:12]}: {warning}", file=sys.stderr, flush=True)
            self.trainer = Trainer(self.cfg, self.prepared)
            return None
        self.say(f"attempt {self.attempt}: from step {state['step']} on {self.trainer.device}")
        return state

    def _take_up(self, state: dict[str, Any]) -> None:
        self.trainer.load_state(state)
        names = ("initial_loss", "logged_step", "logged_seconds", "seconds", "wall_seconds")
        # In one assignment: a state that lacks one of them changes none.
        (
            self.initial_loss,
            self.logged_step,
            self.logged_seconds,
            self.seconds,
            self.earlier_wall,
        ) = (state[name] for name in names)

    def _initial(self) -> Evaluation:
        full = self._evaluate()
        self.initial_loss = full.loss
        if finite(full.loss) is None:
            self.broken_at = 0
        if self.cfg.train.diagnostics:
            self._record_layers()
        return full

    def _loop(self) -> Evaluation | None:
        """Train the remaining steps; returns the evaluation of the full set after the last."""
        trainer, final = self.trainer, None
        if self.cfg.train.compile == "on" or self.cfg.train.kernels == "cuda":
            trainer.warm_up()
        saved, cost = time.perf_counter(), 0.0
        while trainer.step < trainer.steps:
            with self._training():
                trainer.advance()
                step = trainer.step
                if step in self.logs or trainer.broken():
                    sums = trainer.sums()
                else:
                    sums = []
            if sums:
                self._record_train(sums)
            if self.broken_at is not None:
                return None
            if step in self.evals:
                final = self._evaluate()
            if step in self.layers:
                self._record_layers()
            waited = time.perf_counter() - saved
            if (
                waited >= max(self.checkpoint_every_s, CHECKPOINT_SHARE * cost)
                and step < trainer.steps
            ):
                began = time.perf_counter()
                self._checkpoint()
                saved = time.perf_counter()
                cost = saved - began
        return final

    @contextmanager
    def _training(self) -> Iterator[None]:
        """The clock of `seconds`: training alone, without evaluation, diagnostics, checkpoints and
        compilation.
        """
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    def _checkpoint(self) -> None:
        self.metrics.sync()
        state = {
            **self.trainer.state(),
            "offset": self.metrics.offset,
            "initial_loss": self.initial_loss,
            "logged_step": self.logged_step,
            "logged_seconds": self.logged_seconds,
            "seconds": self.seconds,
            "wall_seconds": self._wall(),
            "result": None,
        }
        checkpoint.save(self.folder / "checkpoint", state)

    def _wall(self) -> float:
        return self.earlier_wall + time.perf_counter() - self.started

    def _record(self, kind: str, fields: dict[str, Any]) -> None:
        step = self.trainer.step
        self.metrics.append(
            {"kind": kind, "step": step, "tokens": step * self.tokens_per_step, **fields}
        )

    def _record_train(self, sums: list[float]) -> None:
        loss_sum, norm_sum, _, norm = sums
        step = self.trainer.step
        count, seconds = step - self.logged_step, self.seconds - self.logged_seconds
        self._record(
            "train",
            {
                "loss": finite(loss_sum / count),
                "lr": schedule.lr(step - 1, self.trainer.steps, self.cfg.train),
                "grad_norm": finite(norm),
                "tokens_per_s": round(count * self.tokens_per_step / seconds, 1)
                if seconds
                else None,
                "seconds": round(self.seconds, 3),
            },
        )
        if finite(loss_sum) is None or finite(norm_sum) is None:
            self.broken_at = step
        self.logged_step, self.logged_seconds = step, self.seconds
        self.trainer.restart()

    def _evaluate(self) -> Evaluation:
        """Evaluate and record: the full set at both ends of the run, else the curve subset."""
        self.trainer.synchronize()
        data, step = self.data, self.trainer.step
        whole = step in (0, self.trainer.steps)
        found = evaluate(self.trainer.model, data, self.trainer.autocast(), curve=not whole)
        loss = found.subset(data.curve) if whole else found.loss
        curve_tokens = len(data.curve) * self.cfg.model.context
        fields = {
            "loss": finite(loss),
            "bpb": finite(bits_per_byte(loss, curve_tokens, data.curve_bytes)),
        }
        if whole:
            fields["full_loss"] = finite(found.loss)
            fields["full_bpb"] = finite(bits_per_byte(found.loss, found.tokens, data.bytes))
        self._record("eval", fields)
        return found

    def _record_layers(self) -> None:
        self.trainer.synchronize()
        found = diagnostics.layers(self.trainer.model, *self.probe, self.trainer.autocast())
        self._record(
            "layers",
            {
                k: [finite(x) for x in v] if isinstance(v, list) else finite(v)
                for k, v in found.items()
            },
        )

    def _summary(self, final: Evaluation | None) -> dict[str, Any]:
        """The result, as docs/architecture.md lists it."""
        cfg, data, trainer = self.cfg, self.data, self.trainer
        done = trainer.step == trainer.steps and self.broken_at is None
        loss = final.loss if final is not None and done else float("nan")
        tail_sum = trainer.sums()[2]
        train_loss = tail_sum / schedule.tail(trainer.steps) if done else float("nan")
        end = outcome(self.initial_loss, train_loss, loss, data.unigram_loss, self.broken_at)
        tokens = trainer.step * self.tokens_per_step
        shape = (cfg.train.batch_size, cfg.model.context)
        return {
            "outcome": end.outcome,
            "stalled": end.stalled,
            "reason": end.reason,
            "loss": finite(loss),
            "bpb": finite(bits_per_byte(loss, data.x.size, data.bytes)),
            "initial_loss": finite(self.initial_loss),
            "unigram_loss": data.unigram_loss,
            "train_loss": finite(train_loss),
            "eval_digest": data.digest,
            "eval_tokens": data.x.size,
            "eval_part": cfg.data.eval_part,
            "documents": final.documents(data.names) if final is not None and done else [],
            "steps": trainer.step,
            "tokens": tokens,
            "unique_tokens": unique_tokens(self.prepared, cfg.seeds.data, trainer.step, *shape),
            "epochs": epochs(self.prepared, tokens),
            "seconds": round(self.seconds, 3),
            "wall_seconds": round(self._wall(), 3),
            "tokens_per_s": round(tokens / self.seconds, 1) if self.seconds else None,
            "parameters": count_parameters(cfg.model)._asdict(),
            "flops": flops_per_token(cfg.model).total * tokens,
            "peak_memory_bytes": peak_memory(trainer.device),
            "attempts": self.attempt,
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def say(self, line: str) -> None:
        """A line of log.txt."""
        with (self.folder / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}\n")


def peak_memory(device: torch.device) -> int:
    """Most bytes allocated on the device; on a CPU the process's largest resident size."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
