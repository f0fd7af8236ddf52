"""What a run records, that it repeats, how it ends, and that it leaves the process as it
found it.
"""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_kit import assert_same_run, corpus, lasting, records, tiny, weights

from andrea.config import RunConfig
from andrea.data.batches import evaluation_set
from andrea.errors import UserError
from andrea.model.gpt import build_model
from andrea.records.run import RunResult
from andrea.training import loop, schedule
from andrea.training import run as run_module
from andrea.training.evaluate import bits_per_byte, evaluate
from andrea.training.run import train
from andrea.training.run_ending import RunEnding, ending_of

numbers = itertools.count()


def trained(tmp_path: Path, cfg: RunConfig) -> tuple[Path, RunResult]:
    """A folder of a finished training and its result."""
    folder = tmp_path / f"run-{next(numbers)}"
    folder.mkdir()
    return folder, train(cfg, corpus(), folder)


def test_metrics_have_every_kind_of_record_at_its_steps(tmp_path: Path) -> None:
    folder, result = trained(tmp_path, tiny())
    every = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {r["step"]: set(r) for r in every if r["kind"] == "train"}.keys() == {
        3,
        6,
        9,
        12,
        15,
        18,
        21,
        24,
    }
    assert all(r["tokens"] == 64 * r["step"] for r in every)
    first, *along, last = [r for r in every if r["kind"] == "eval"]
    assert [first["step"], *(r["step"] for r in along), last["step"]] == [0, 8, 16, 24]
    assert {"full_loss", "full_bpb"} <= first.keys() & last.keys()
    assert not any("full_loss" in r for r in along)
    layers = [r for r in every if r["kind"] == "layers"]
    assert [r["step"] for r in layers] == [0, 12, 24]
    assert [len(layers[0][k]) for k in ("grad_norm", "attn_rms", "mlp_rms", "residual_rms")] == [
        2,
        2,
        2,
        3,
    ]
    train_records = [r for r in every if r["kind"] == "train"]
    assert {"loss", "lr", "grad_norm", "tokens_per_s", "seconds"} <= train_records[0].keys()
    assert all(a["seconds"] <= b["seconds"] for a, b in itertools.pairwise(train_records))
    assert result.loss == last["full_loss"]
    assert result.initial_loss == first["full_loss"]
    assert result.loss < result.initial_loss == pytest.approx(np.log(256), abs=0.1)


def test_where_only_the_seed_of_the_weights_differs_batches_and_dropout_do_not(
    tmp_path: Path,
) -> None:
    asked = ({}, {"init_seed": 9}, {"data_seed": 9}, {"dropout_seed": 9}, {"seed": 9})
    plain, init, data, dropout, all_three = (
        loop.Trainer(tiny(model__dropout=0.3, **more), corpus()) for more in asked
    )

    def batch(trainer: loop.Trainer) -> list[int]:
        return [int(token) for part in trainer._next_batch() for token in part.flatten()]

    def matrix(trainer: loop.Trainer) -> list[float]:
        return [
            float(x)
            for x in trainer.model.get_parameter("blocks.0.mlp.up.weight").detach().flatten()
        ]

    assert batch(plain) == batch(init) == batch(dropout) != batch(data) == batch(all_three)
    assert matrix(plain) == matrix(data) == matrix(dropout) != matrix(init) == matrix(all_three)
    dropout.advance()
    plain.advance()
    assert (
        dropout.read_sums() != plain.read_sums()
    )  # the same weights and batch, other units dropped


def test_a_batch_for_a_gpu_lies_in_pinned_memory_and_one_for_a_cpu_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    trainer = loop.Trainer(tiny(), corpus())
    trainer._next_batch()
    assert not pinned
    trainer.device = torch.device("cuda")
    trainer._next_batch()
    assert len(pinned) == 2


def test_result_accounts_for_tokens_documents_parameters_and_work(tmp_path: Path) -> None:
    cfg = tiny()
    folder, result = trained(tmp_path, cfg)
    data = evaluation_set(corpus(), cfg.data, 16)
    model = build_model(cfg.model)
    model.load_state_dict(weights(folder))
    losses = evaluate(model, data)
    assert result.loss == losses.loss
    assert result.bpb == pytest.approx(result.loss / np.log(2))  # a token is a byte
    assert sum((d.loss or 0.0) * d.tokens for d in result.documents) / 640 == pytest.approx(
        result.loss
    )
    assert (result.steps, result.tokens, result.eval_tokens) == (24, 24 * 64, 640)
    assert result.eval_digest == data.digest
    assert sum(result.parameters.values()) == sum(p.numel() for p in model.parameters())
    assert 0 < result.unique_tokens <= result.tokens
    assert result.epochs == result.tokens / len(corpus().tokens("train"))
    assert json.dumps(result.to_json(), allow_nan=False)


def test_train_records_are_means_since_the_last_one_and_the_result_has_the_last_tenth(
    tmp_path: Path,
) -> None:
    every, result = trained(tmp_path, tiny(train__logs=24))
    single = [r["loss"] for r in records(every, "train")]
    some, _ = trained(tmp_path, tiny(train__logs=4))
    assert [r["loss"] for r in records(some, "train")] == pytest.approx(
        [np.mean(single[start : start + 6]) for start in (0, 6, 12, 18)]
    )
    assert result.train_loss == pytest.approx(np.mean(single[-2:]))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_repeat_in_the_same_process_is_bit_identical_whatever_ran_before(
    tmp_path: Path, dropout: float
) -> None:
    one, first = trained(tmp_path, tiny(model__dropout=dropout))
    trained(tmp_path, tiny(train__lr=1e3, seed=7, model__dropout=0.5))
    torch.rand(17)
    other, second = trained(tmp_path, tiny(model__dropout=dropout))
    assert_same_run(one, other)
    assert lasting(first) == lasting(second)


def test_another_seed_changes_weights_batches_and_dropout() -> None:
    one, other = loop.Trainer(tiny(seed=1), corpus()), loop.Trainer(tiny(seed=2), corpus())
    assert not torch.equal(one.model.token_embedding.weight, other.model.token_embedding.weight)
    draws = []
    for seed, step in ((1, 0), (1, 1), (2, 0), (1, 0)):
        with torch.random.fork_rng():
            loop.seed_step(seed, step, torch.device("cpu"))
            draws.append(torch.rand(1).item())
    assert len(set(draws)) == 3
    assert draws[0] == draws[3]


def test_global_state_of_torch_numpy_and_python_is_as_before(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    before = torch.random.get_rng_state()
    numpy_before, python_before = str(np.random.get_state()), random.getstate()
    trained(tmp_path, tiny(model__dropout=0.1, train__threads=1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert str(np.random.get_state()) == numpy_before
    assert random.getstate() == python_before
    assert torch.get_num_threads() == 2
    assert torch.get_default_dtype() == torch.float32


def test_evaluation_is_the_same_each_time_and_training_never_notices_it(tmp_path: Path) -> None:
    rare, _ = trained(tmp_path, tiny(train__evals=1, train__diagnostics=0, model__dropout=0.1))
    often, _ = trained(tmp_path, tiny(train__evals=24, train__diagnostics=24, model__dropout=0.1))
    for name, tensor in weights(rare).items():
        assert torch.equal(tensor, weights(often)[name]), name
    cfg = tiny(model__dropout=0.5)
    model = build_model(cfg.model, 3).train()
    first = evaluate(model, evaluation_set(corpus(), cfg.data, 16))
    second = evaluate(model, evaluation_set(corpus(), cfg.data, 16))
    assert first.window_sums.tolist() == second.window_sums.tolist()
    assert model.training


def test_evaluation_sums_equal_a_plain_computation_by_window_document_and_subset() -> None:
    cfg = tiny()
    model, data = build_model(cfg.model, 3), evaluation_set(corpus(), cfg.data, 16)
    found = evaluate(model, data)
    with torch.no_grad():
        logits = model(torch.from_numpy(data.x)).double().numpy()
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    losses = -np.log(np.take_along_axis(chances, data.y[..., None], -1))[..., 0]
    np.testing.assert_allclose(found.window_sums, losses.sum(1), rtol=1e-5)
    np.testing.assert_allclose(found.document_sums.sum(), losses.sum(), rtol=1e-5)
    assert found.loss_on(data.curve) == pytest.approx(losses[data.curve].mean(), rel=1e-5)
    assert evaluate(model, data, curve=True).loss == pytest.approx(
        found.loss_on(data.curve), rel=1e-6
    )
    assert bits_per_byte(np.log(2), 100, 50) == 2.0


def test_a_loss_that_is_not_finite_ends_the_run_and_is_a_diverged_result(tmp_path: Path) -> None:
    folder, result = trained(tmp_path, tiny(train__lr=1e30, train__logs=2))
    assert result.outcome == "diverged"
    assert "not finite at step" in result.reason
    assert result.steps < 12  # before the next logging point: on a CPU asking costs nothing
    assert result.loss is None
    assert result.bpb is None
    assert result.train_loss is None
    assert result.documents == []
    assert not result.stalled
    assert records(folder, "train")[-1]["step"] == result.steps
    assert json.dumps(result.to_json(), allow_nan=False)


def test_a_run_that_ends_above_its_initial_loss_is_diverged_and_scored_by_its_end(
    tmp_path: Path,
) -> None:
    folder, result = trained(tmp_path, tiny(train__lr=3.0, train__schedule="constant"))
    assert result.outcome == "diverged"
    assert "above the initial loss" in result.reason
    assert result.loss == records(folder, "eval")[-1]["full_loss"]
    assert result.loss > min(r["loss"] for r in records(folder, "eval"))


def test_a_model_that_learns_nothing_is_completed_and_stalled(tmp_path: Path) -> None:
    _, result = trained(tmp_path, tiny(train__lr=1e-4))
    assert result.outcome == "completed"
    assert result.stalled
    assert result.loss >= 0.99 * result.unigram_loss


def test_a_spike_that_recovers_is_no_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = schedule.lr
    monkeypatch.setattr(
        schedule, "lr", lambda step, steps, cfg: 1.0 if step == 10 else usual(step, steps, cfg)
    )
    folder, result = trained(
        tmp_path, tiny(train__tokens=120 * 64, train__logs=120, train__lr=1e-2)
    )
    assert max(r["loss"] for r in records(folder, "train")) > result.initial_loss
    assert result.outcome == "completed"
    assert result.reason is None or result.stalled


def test_outcomes_follow_from_the_numbers_alone() -> None:
    nan = float("nan")

    def ending(train_loss: float, final_loss: float, broken_at: int | None = None) -> RunEnding:
        return ending_of(
            initial_loss=5.5,
            train_loss=train_loss,
            final_loss=final_loss,
            unigram_loss=3.0,
            broken_at=broken_at,
        )

    assert ending(2.6, 2.6) == RunEnding("completed")
    assert ending(5.4, 2.97).stalled
    assert not ending(5.4, 2.969).stalled
    assert ending(5.6, 2.0).outcome == "diverged"
    assert ending(2.6, nan).outcome == "diverged"
    assert ending(nan, 2.6).outcome == "diverged"
    reason = "the loss or a gradient was not finite at step 12"
    assert ending(2.6, 2.6, 12) == RunEnding("diverged", False, reason)


def test_weights_that_are_not_finite_from_the_start_end_the_run_at_step_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        run_module.Run, "_train_remaining_steps", lambda self: pytest.fail("trained")
    )
    _, result = trained(tmp_path, tiny(model__init_std=1e30))
    assert (result.outcome, result.steps, result.initial_loss) == ("diverged", 0, None)


def test_a_budget_below_one_batch_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    cfg = tiny()
    small = cfg.model_copy(update={"train": cfg.train.model_copy(update={"tokens": 63})})
    with pytest.raises(UserError, match="less than one batch"):
        train(small, corpus(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_seconds_and_speed_leave_compilation_and_evaluation_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(run_module.time, "perf_counter", lambda: clock[0])

    def slow_at_first(model: Any) -> Any:
        calls = itertools.count()

        def forward(*inputs: torch.Tensor) -> Any:
            clock[0] += 100.0 if next(calls) == 0 else 0.5
            return model(*inputs)

        return forward

    def slow_evaluation(*args: Any, **settings: Any) -> Any:
        clock[0] += 1000.0
        return evaluate(*args, **settings)

    monkeypatch.setattr(torch, "compile", slow_at_first)
    monkeypatch.setattr(run_module, "evaluate", slow_evaluation)
    folder, result = trained(tmp_path, tiny(train__compile="on"))
    assert result.seconds == 24 * 0.5
    assert result.tokens_per_s == 64 / 0.5
    assert result.wall_seconds == 4000 + 100 + 12
    every = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {r["tokens_per_s"] for r in every if r["kind"] == "train"} == {128.0}
