"""What a run is called: golden names, what changes a name and what must not."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from training_kit import corpus, tiny

from andrea.config import RunConfig, build
from andrea.errors import UserError
from andrea.model import registry
from andrea.model.attention import Attention
from andrea.model.gpt import GPT
from andrea.model.mlps import Mlp
from andrea.records.run import GitState
from andrea.training import identity as module
from andrea.training.identity import (
    canonical,
    git_state,
    identity,
    resolve,
    run_environment,
    run_id,
)

HERE = {"torch": "2.13", "device": "x86_64 AVX512"}
RESOLVED = {
    "train": {
        "device": "cpu",
        "dtype": "float32",
        "compile": "off",
        "kernels": "torch",
        "micro_batch": 8,
    },
    "model": {"vocab_size": 256, "final_norm": True},
}
GOLDEN = {
    "": "89b3eadd32e7bd49ea8a3d1e6feb2c6499270aa6180d9fe1a814904bf979c400",
    "train.lr=0.01": "d0b133259b19e4a4e7f0f3c83b695a40ed2aa3399ee7aba4a3cc3b6fd3648300",
    "model.activation=swiglu": "568600b25a38ad8fed7a820a42d5106cd0602805c7bb90114e4804b8a466719e",
    "model.norm_placement=sandwich": "f6c4295e27ab89244bc933960e8347c552c6736dcae352b1b0865f96d6946f34",
    "model.positions=rope": "56947c5b2ac7a4dfa166bf1dd517dbf1cb6e5e5b88cd23d36710c0a38f22b05b",
    "model.n_kv_head=2": "d1879008c7a30d63a98dbf3bc4d8c7c586fbf8ce97b903d405d7c0bf89ac7480",
    "train.threads=2": "b3fe3ecf3808d10ef01d17832660324fb3b4267b108353ef78c45d6dbd4dfb99",
    "seed=2": "cef96bb853183652fade8f3330c45bbd407679701270fdf941014eae0c140a3c",
}


def named(**settings: Any) -> str:
    """The run id of a tiny configuration."""
    return run_id(identity(tiny(**settings), "f" * 64, platform=HERE))


@pytest.mark.parametrize("override", GOLDEN)
def test_golden_ids_stay(override: str) -> None:
    """A changed id means that every store trains everything anew: only a change of numbers may do
    that.
    """
    settings: dict[str, Any] = {section: dict(fields) for section, fields in RESOLVED.items()}
    path, _, value = override.partition("=")
    if "." in path:
        section, field = path.split(".")
        settings[section][field] = value
    elif path:
        settings[path] = value
    found = identity(build(RunConfig, settings), "f" * 64, platform=HERE)
    assert run_id(found) == GOLDEN[override]


def test_what_determines_the_numbers_changes_the_name() -> None:
    plain = named()
    different = [
        named(train__lr=0.01),
        named(train__warmup=0.2),
        named(train__final_lr=0.2),
        named(train__micro_batch=2),
        named(train__threads=2),
        named(train__dtype="bfloat16"),
        named(train__compile="on"),
        named(train__tokens=23 * 64),
        named(data__eval_part="tune"),
        named(data__eval_tokens=320),
        named(model__dropout=0.1),
        named(model__norm_placement="post"),
        named(seed=2),
        named(init_seed=2),
        named(data_seed=2),
        named(dropout_seed=2),
        named(model__mlp_ratio=3.9),
        named(model__n_kv_head=1),
        named(model__positions="none"),
        named(model__proj_bias=False),
        named(model__z_loss=0.1),
        run_id(identity(tiny(), "e" * 64, platform=HERE)),
        run_id(identity(tiny(), "f" * 64, 1, platform=HERE)),
        run_id(identity(tiny(), "f" * 64, platform={**HERE, "device": "x86_64 AVX2"})),
    ]
    assert len({plain, *different}) == 1 + len(different)


def test_what_changes_nothing_changes_no_name(tmp_path: Path) -> None:
    plain = named()
    copy = tmp_path / "elsewhere.txt"
    assert (
        named(data__source=f"text:{copy}") == plain
    )  # the fingerprint stands for the text, wherever it lies
    assert named(train__micro_batch=4) == named(train__micro_batch=400) == plain
    assert named(train__tokens=24 * 64 + 63) == plain  # what does not fill a batch is not trained
    assert named(model__final_norm=True) == named(model__vocab_size=256) == plain
    assert named(model__norm_placement="post", model__final_norm=False) == named(
        model__norm_placement="post"
    )
    assert (
        named(model__n_kv_head=2) == named(model__head_dim=8) == named(model__mlp_width=64) == plain
    )
    assert named(model__embedding_scale="sqrt_d") == named(model__embedding_scale=4)
    assert named(model__norm="identity") == named(model__norm_placement="none")
    parts = {f"model__{part}_bias": False for part in ("attn", "proj", "mlp", "norm")}
    assert named(**parts) == named(model__bias=False)
    assert named(train__dtype="float32", train__compile="off", train__kernels="torch") == plain
    assert named(train__schedule="constant", train__final_lr=0.5) == named(
        train__schedule="constant"
    )
    assert named(model__mlp_ratio="8/3", model__d_model=48) == named(
        model__mlp_ratio=2.67, model__d_model=48
    )
    assert (
        named(data__eval_tokens=640 + 15) == named(data__curve_tokens=160 + 15) == plain
    )  # whole windows of 16
    assert named(train__warmup=2.4 / 24) == named(train__warmup=2 / 24) == plain  # 2 of 24 steps
    assert named(train__evals=24) == named(train__evals=99) and named(train__logs=24) == named(
        train__logs=99
    )
    assert named(init_seed=1, data_seed=1, dropout_seed=1) == plain  # as `seed` says
    assert named(seed=5, init_seed=2, data_seed=2, dropout_seed=2) == named(seed=2)


def test_a_later_field_at_the_value_that_means_before_keeps_old_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = canonical(tiny())
    monkeypatch.setitem(module.NEUTRAL, "train.beta1", 0.9)
    assert canonical(tiny())["train"].keys() == old["train"].keys() - {"beta1"}
    assert canonical(tiny(train__beta1=0.8))["train"].keys() == old["train"].keys()


def test_a_raised_numerics_version_renames_the_runs_that_use_the_component(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs = [{}, {"model__activation": "relu"}, {"model__norm_placement": "post"}]
    before = [named(**config) for config in configs]
    assert module.numerics(tiny()) == {}

    def renamed(part: Any) -> list[bool]:
        with monkeypatch.context() as raised:
            if isinstance(part, str):
                raised.setitem(module.COMPONENTS, part, 2)
            else:
                raised.setattr(part, "numerics", 2)
            return [named(**config) != name for config, name in zip(configs, before, strict=True)]

    assert renamed(registry.variant("activation", "relu")) == [False, True, False]
    assert renamed(registry.variant("activation", "gelu_tanh")) == [True, False, True]
    assert renamed(registry.variant("norm_placement", "post")) == [False, False, True]
    everybodys = [
        Attention,
        GPT,
        Mlp,
        registry.variant("norm", "layernorm"),
        registry.variant("init", "gpt2"),
    ]
    for part in (*everybodys, *module.COMPONENTS):
        assert renamed(part) == [True, True, True], part
    assert [named(**config) for config in configs] == before


def test_a_users_own_variant_may_read_the_ratio_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    own = type("Own", (registry.variant("activation", "relu"),), {"__module__": __name__})
    monkeypatch.setattr(sys.modules[__name__], "Own", own, raising=False)
    monkeypatch.setitem(registry.VARIANTS["activation"], "own", f"{__name__}:Own")
    config = {"model__activation": "own", "model__d_model": 48}
    assert named(**config, model__mlp_ratio="8/3") != named(**config, model__mlp_ratio=2.67)


def test_the_source_of_a_users_own_variant_is_part_of_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "my_own_mlps.py"
    source.write_text("from andrea.model.mlps import Relu\n\n\nclass Mine(Relu):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registry.VARIANTS["activation"], "mine", "my_own_mlps:Mine")
    first = named(model__activation="mine")
    assert named(model__activation="mine") == first
    source.write_text(source.read_text() + "# another text\n")
    assert named(model__activation="mine") != first


def test_resolving_leaves_nothing_to_choose_and_is_done_once() -> None:
    asked = build(
        RunConfig, {"data": {"source": corpus().meta.source}, "train": {"micro_batch": 64}}
    )
    cfg = resolve(asked, corpus(), "cpu")
    assert "auto" not in cfg.train.model_dump().values()
    assert (cfg.model.vocab_size, cfg.model.final_norm, cfg.train.micro_batch) == (256, True, 8)
    assert (cfg.train.device, cfg.train.dtype, cfg.train.compile) == ("cpu", "float32", "off")
    assert resolve(cfg, corpus()) == cfg


def test_a_gpu_takes_bfloat16_and_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    has = SimpleNamespace(total_memory=2**34)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
    monkeypatch.setattr(
        module, "choose_kernels", lambda asked, model, route: f"{asked} for {route.dtype}"
    )
    cfg = resolve(build(RunConfig, {}), corpus())
    assert (cfg.train.device, cfg.train.dtype, cfg.train.compile) == ("cuda", "bfloat16", "on")
    assert cfg.train.kernels == "auto for bfloat16"
    assert (
        resolve(build(RunConfig, {"train": {"device": "cpu"}}), corpus(), "cuda").train.device
        == "cpu"
    )
    has.total_memory = 2**20
    with pytest.raises(UserError, match=r"this GPU has 0\.0 GiB"):
        resolve(build(RunConfig, {}), corpus())


def test_a_missing_gpu_and_a_vocabulary_too_small_are_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device"):
        resolve(build(RunConfig, {"train": {"device": "cuda"}}), corpus())
    with pytest.raises(UserError, match="vocab_size 100"):
        resolve(build(RunConfig, {"model": {"vocab_size": 100}}), corpus(), "cpu")


def test_the_processor_that_draws_the_initial_weights_of_a_gpu_run_is_in_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    cpu = module.this_platform("cpu")
    assert module.this_platform("cuda") == {
        "torch": cpu["torch"],
        "device": "NVIDIA H200",
        "cpu": cpu["device"],
    }


def test_environment_says_when_the_tree_is_not_the_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(
            ["git", *who, "-C", str(tmp_path), *arguments], check=True, capture_output=True
        )

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    git("init")
    # Not tracked: an installed copy below somebody else's checkout.
    assert git_state(package) is None
    git("add", ".")
    git("commit", "-m", "first")
    git_state.cache_clear()
    clean = git_state(package)
    assert clean is not None and clean.hash is not None
    assert len(clean.hash) == 40
    assert not clean.dirty
    git_state.cache_clear()
    (package / "new.py").write_text("1")
    assert git_state(package) == GitState(hash=clean.hash, dirty=True)
    git_state.cache_clear()
    names = {"torch", "python", "git", "host", "platform_device"}
    assert names <= run_environment().to_json().keys()
