"""A compiled run: no recompilation, diagnostics as ever, checkpoints that a plain model reads."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from training_kit import corpus, records, tiny, weights

from andrea.model.gpt import build_model
from andrea.training.loop import Trainer
from andrea.training.run import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="torch.compile needs a C++ compiler"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_s14_a_new_learning_rate_at_every_step_recompiles_nothing() -> None:
    trainer = Trainer(tiny(train__compile="on", model__dropout=0.1), corpus())
    trainer.warm_up()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(8):
            trainer.advance()
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    assert all(isinstance(rate, torch.Tensor) for rate in rates)


def test_s14_an_optimizer_step_that_is_compiled_reads_the_rate_as_a_tensor() -> None:
    trainer = Trainer(tiny(train__compile="on"), corpus())
    trainer.optimizer.step = torch.compile(trainer.optimizer.step)  # type: ignore[method-assign]
    for _ in range(3):
        trainer.advance()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(5):
            trainer.advance()


def test_s15_layers_are_recorded_under_compile_and_the_checkpoint_fits_a_plain_model(tmp_path: Path) -> None:
    compiled, plain = tmp_path / "compiled", tmp_path / "plain"
    for folder, choice in ((compiled, "on"), (plain, "off")):
        folder.mkdir()
        train(tiny(train__compile=choice), corpus(), folder)
    ours, theirs = records(compiled, "layers"), records(plain, "layers")
    assert len(ours) == 3
    for one, other in zip(ours, theirs, strict=True):
        for key in ("grad_norm", "attn_rms", "mlp_rms", "residual_rms"):
            assert one[key] == pytest.approx(other[key], rel=2e-2), key
    assert records(compiled, "eval")[-1]["full_loss"] == pytest.approx(
        records(plain, "eval")[-1]["full_loss"], abs=2e-3
    )
    assert not any("_orig_mod" in name for name in weights(compiled))
    build_model(tiny().model).load_state_dict(weights(compiled))
