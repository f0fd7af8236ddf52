"""Runs with `train.kernels: cuda`, over the shim: the training of plain torch, the same bits every
time.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import stored
import torch
from kernels_kit import kernels_on_cpu, pytestmark  # noqa: F401
from test_study_freeze import ablation
from training_kit import assert_same_run, corpus, job, lasting, records, tiny, weights

from andrea.errors import UserError
from andrea.kernels import backend, choose
from andrea.kernels.adamw import AdamW
from andrea.kernels.apply import KernelGPT
from andrea.model.config import ModelConfig
from andrea.model.gpt import build_model
from andrea.store.runs import RunStore
from andrea.study.plan.freeze import freeze
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.plan.plan import Request
from andrea.study.plan.resolve import make_plan
from andrea.training import identity as identity_module
from andrea.training import run as run_module
from andrea.training.identity import identity, numerics, run_id
from andrea.training.job import run_job
from andrea.training.loop import Trainer
from andrea.training.run import Run, train

STEPS = 50


def fifty(**settings: Any) -> Any:
    return tiny(
        **{"train__tokens": STEPS * 64, "train__evals": 5, "train__logs": STEPS, **settings}
    )


def trained(folder: Path, **settings: Any) -> dict[str, Any]:
    folder.mkdir()
    return train(fifty(**settings), corpus(), folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "model__norm_placement": "post",
            "model__activation": "swiglu",
            "model__norm": "rmsnorm",
            "train__micro_batch": 3,
            "model__z_loss": 1e-3,
        },
        {"train__dtype": "bfloat16", "model__tied": False, "train__clip": 0.1},
    ],
    ids=["pre-norm", "post-norm swiglu, accumulated", "bf16, clipped"],
)
def test_fifty_steps_by_kernels_are_those_of_plain_torch(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    ours = trained(tmp_path / "cuda", train__kernels="cuda", **changes)
    theirs = trained(tmp_path / "torch", train__kernels="torch", **changes)
    half = changes.get("train__dtype") == "bfloat16"
    near = {"abs": 2e-2} if half else {"abs": 2e-4}
    for kind, key in (("train", "loss"), ("train", "grad_norm"), ("eval", "loss")):
        one, other = ([r[key] for r in records(tmp_path / way, kind)] for way in ("cuda", "torch"))
        assert len(one) > 4 and one == pytest.approx(other, **near, rel=5e-2 if half else 2e-4), (
            kind,
            key,
        )
    assert ours.loss == pytest.approx(theirs.loss, **near) and ours.loss < ours.initial_loss - 0.5
    for one, other in zip(
        records(tmp_path / "cuda", "layers"), records(tmp_path / "torch", "layers"), strict=True
    ):
        for key in ("grad_norm", "attn_rms", "mlp_rms", "residual_rms"):
            assert one[key] == pytest.approx(other[key], rel=0.1 if half else 2e-3), key


@pytest.mark.slow
def test_the_same_run_has_the_same_bits_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        trained(tmp_path / name, train__kernels="cuda")
    assert_same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_a_resumed_run_equals_the_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "CHECKPOINT_SHARE", 0)
    whole, settings = tmp_path / "whole", {"train__kernels": "cuda", "train__micro_batch": 3}
    whole.mkdir()
    found: dict[int, Path] = {}
    save = Run._save_checkpoint

    def save_and_copy(self: Run) -> None:
        save(self)
        if self.trainer.step in (7, 20):
            found[self.trainer.step] = tmp_path / f"after-{self.trainer.step}"
            shutil.copytree(self.folder, found[self.trainer.step])

    monkeypatch.setattr(Run, "_save_checkpoint", save_and_copy)
    result = train(tiny(**settings), corpus(), whole, checkpoint_every_s=0)
    assert sorted(found) == [7, 20]
    for folder in found.values():
        again = train(tiny(**settings), corpus(), folder, attempt=2, checkpoint_every_s=1e9)
        assert lasting(again) == lasting(result)
        assert_same_run(folder, whole)


@pytest.mark.slow
def test_a_compiled_run_by_kernels_compiles_during_the_warm_up_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor round the kernels; the rate is another at every step, and the run is that of plain
    torch.
    """
    torch._dynamo.reset()
    seen: list[int] = []
    warm_up = Trainer.warm_up

    def watched(trainer: Trainer) -> None:
        warm_up(trainer)
        seen.append(compilations())

    def compilations() -> int:
        return int(torch._dynamo.utils.counters["frames"]["ok"])

    monkeypatch.setattr(Trainer, "warm_up", watched)
    for name, compiled in (("torch", "off"), ("cuda", "on")):
        (tmp_path / name).mkdir()
        train(tiny(train__kernels=name, train__compile=compiled), corpus(), tmp_path / name)
    assert seen == [compilations()] and seen[0] > 0
    ours, theirs = (
        [r["loss"] for r in records(tmp_path / name, "train")] for name in ("cuda", "torch")
    )
    assert ours == pytest.approx(theirs, abs=1e-4)
    torch._dynamo.reset()


@pytest.mark.slow
def test_the_checkpoint_fits_a_plain_model(tmp_path: Path) -> None:
    train(tiny(train__kernels="cuda"), corpus(), tmp_path)
    build_model(tiny().model).load_state_dict(weights(tmp_path))


@pytest.mark.slow
def test_a_job_is_stored_under_an_id_of_its_own(tmp_path: Path) -> None:
    cfg = tiny(train__kernels="cuda")
    result = run_job(*job(tmp_path, cfg))
    assert result is not None and result.outcome == "completed"
    kept = stored.config(RunStore(tmp_path), run_id(identity(cfg, corpus().fingerprint)))
    assert kept is not None and kept["identity"]["route"]["kernels"] == "cuda"


def test_the_route_is_part_of_the_id_and_ids_of_plain_torch_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def named(**settings: Any) -> str:
        return run_id(identity(tiny(**settings), corpus().fingerprint))

    assert named(train__kernels="torch") == named(train__kernels="auto") == named()
    assert "kernels" not in identity(tiny(), corpus().fingerprint)["route"]
    assert numerics(tiny(train__kernels="cuda")) == {}
    ours, plain = named(train__kernels="cuda"), named()
    monkeypatch.setattr(identity_module, "KERNELS", 2)
    assert ours not in (plain, named(train__kernels="cuda")) and named() == plain


def test_other_optimizers_stay_torchs() -> None:
    for name in ("adamw", "sgd", "lion", "muon"):
        trainer = Trainer(tiny(train__kernels="cuda", train__optimizer=name), corpus())
        assert isinstance(trainer.model, KernelGPT) and isinstance(trainer.optimizer, AdamW) == (
            name == "adamw"
        )
        trainer.advance()


def test_learning_rate_shares_of_mup_reach_the_kernels(tmp_path: Path) -> None:
    mup = {"model__init": "mup", "model__mup_base": 8, "train__tokens": 10 * 64}
    for name in ("cuda", "torch"):
        (tmp_path / name).mkdir()
        train(tiny(train__kernels=name, **mup), corpus(), tmp_path / name)
    ours, theirs = (weights(tmp_path / name) for name in ("cuda", "torch"))
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], atol=2e-5, rtol=1e-3)


def test_cuda_where_no_kernels_run_is_refused_before_anything_is_written() -> None:
    backend.install_backend("cpu", None)
    with pytest.raises(
        UserError,
        match=r"train\.kernels cuda: .* do not run on device cpu; or set train\.kernels=torch",
    ):
        tiny(train__kernels="cuda")


def test_auto_is_resolved_once_for_all_arms_when_a_study_is_frozen(
    tiny_text: Path, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The baseline's route is everybody's, is written down, and is not asked for again."""

    def measured(asked: str, cfg: ModelConfig, train: choose.TrainRoute) -> str:
        return asked if asked != "auto" else "cuda" if cfg.norm_placement == "pre" else "torch"

    monkeypatch.setattr(identity_module, "choose_kernels", measured)
    planned = make_plan(Request(ablation(tiny_text), name="norms"), store)
    assert [arm.config.train.kernels for arm in planned.arms.values()] == ["cuda", "cuda"]
    assert {arm.unresolved.train.kernels for arm in planned.arms.values()} == {"auto"}
    folder = freeze(planned, store)
    told = stored.study_json(folder, "resolved.json")["arms"]
    assert [arm["config"]["train"]["kernels"] for arm in told.values()] == ["cuda", "cuda"]
    monkeypatch.setattr(identity_module, "choose_kernels", lambda *_: pytest.fail("asked again"))
    study = FrozenStudy(folder, store)
    run = study.plan("pre", "tune", "grid", lr=1e-3, seed=1)
    assert study.settings(run.run_id)["train"]["kernels"] == "cuda"


def test_on_a_cpu_auto_is_torch_even_where_kernels_could_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choose, "measure_steps", lambda *_: pytest.fail("measured"))
    assert tiny(train__kernels="auto").train.kernels == "torch"
