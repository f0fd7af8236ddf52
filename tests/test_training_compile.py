"""A compiled run: compiled once, diagnostics as ever, checkpoints that a plain model reads.

What is compiled is the model with its loss. It would be compiled again for another size of
micro-batch (a ragged last one), the mode of evaluation, or hooks of diagnostics; an optimizer step,
were it compiled, for every learning rate.
"""

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
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "g++")) is None,
        reason="torch.compile needs a C++ compiler",
    ),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def test_a_whole_run_compiles_during_the_warm_up_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rate is another at every step; it evaluates, looks at its layers and saves in between."""
    seen: list[int] = []
    warm_up = Trainer.warm_up

    def watched(trainer: Trainer) -> None:
        warm_up(trainer)
        seen.append(_compilations())

    monkeypatch.setattr(Trainer, "warm_up", watched)
    train(
        tiny(train__compile="on", train__micro_batch=3, model__dropout=0.1),
        corpus(),
        tmp_path,
        checkpoint_every_s=0,
    )
    assert len(records(tmp_path, "eval")) == 4 and len(records(tmp_path, "layers")) == 3
    assert seen == [_compilations()] and seen[0] > 0


def test_that_count_sees_an_optimizer_step_that_is_compiled_for_every_rate() -> None:
    trainer = Trainer(tiny(train__compile="on"), corpus())
    trainer.warm_up()
    before = _compilations()
    trainer.optimizer.step = torch.compile(trainer.optimizer.step)  # type: ignore[method-assign]
    for _ in range(3):
        trainer.advance()
    assert _compilations() > before + 1


def _compilations() -> int:
    """Frames that were compiled since the compiler was reset, counted again each time they are."""
    return int(torch._dynamo.utils.counters["frames"]["ok"])


def test_layers_are_recorded_under_compile_and_the_checkpoint_fits_a_plain_model(
    tmp_path: Path,
) -> None:
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
