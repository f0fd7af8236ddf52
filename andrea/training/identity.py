"""The identity of a run: everything that determines its numbers, and the run id, its digest.

It holds the canonical configuration, the data's fingerprint, the numerics versions of the
components used, the platform, the route and the number of the repeat. Settings that cannot change a
number are normalised or left out. `auto` is resolved here, once per study.
"""

import hashlib
import importlib
import os
import platform as machine
import socket
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import torch

import andrea
from andrea.config import RunConfig
from andrea.data.batches import require_batches, whole_windows
from andrea.data.prepared import Prepared, require_vocab
from andrea.errors import UserError
from andrea.kernels.choose import TrainRoute, choose_kernels
from andrea.kernels.source import NUMERICS as KERNELS
from andrea.model.checks import normal_form
from andrea.model.gpt import GPT
from andrea.model.registry import VARIANTS, variant
from andrea.model.variants import is_users_own
from andrea.records.base import Settings
from andrea.records.run import Environment, GitState
from andrea.store.digest import digest
from andrea.store.versions import installed
from andrea.training import schedule
from andrea.training.config import OPTIMIZER_READS, SCHEDULES_WITHOUT_FLOOR, TrainConfig
from andrea.training.memory import device_of, require_memory

Identity: TypeAlias = dict[str, Any]
"""`config`, `data`, `numerics`, `platform`, `route`, `repeat`, as plain JSON values."""
ROUTE = ("dtype", "kernels", "compile", "threads", "micro_batch")
"""Settings of `train` that change bits but not the experiment."""
NEUTRAL: dict[str, Any] = {
    "train.kernels": "torch",
    "train.optimizer": "adamw",
    "train.decay": 0.2,
    "model.norm_bias": None,
    "model.dyt_alpha": 0.5,
    "model.embedding_norm": False,
    "model.mlp_width": None,
    "model.mlp_multiple": 1,
    "model.residual": "on",
    "model.layerscale_init": 0.1,
    "model.positions": "learned",
    "model.rope_base": 10_000.0,
    "model.rope_fraction": 1.0,
    "model.attention": "softmax",
    "model.n_kv_head": None,
    "model.head_dim": None,
    "model.window": None,
    "model.full_every": None,
    "model.qk_norm": "none",
    "model.attn_scale": None,
    "model.attn_softcap": None,
    "model.head_bias": False,
    "model.embedding_scale": 1.0,
    "model.logit_softcap": None,
    "model.z_loss": 0.0,
    "model.attn_bias": None,
    "model.proj_bias": None,
    "model.mlp_bias": None,
    "model.dropout_embedding": None,
    "model.dropout_attention": None,
    "model.dropout_residual": None,
    "model.mup_base": 128,
}
"""Settings at the value that stands for what was done before they existed: left out of the
identity, so that older ids stay.
"""
COMPONENTS: dict[str, int] = {
    "batches": 1,
    "evaluation": 1,
    "loop": 1,
    "optimizer": 1,
    "schedule": 1,
}
"""Numerics versions of the components that train the model: raise one when the same input gives
other bits. The model's parts have theirs as `numerics` of the class. Version 1 is left out of the
identity, so that a new component leaves older ids alone.
"""


def resolve(cfg: RunConfig, prepared: Prepared, host_device: str = "auto") -> RunConfig:
    """Return the configuration with every choice made: vocabulary, final norm, device, precision,
    compile, micro-batch, kernels (on a GPU perhaps by measuring).

    Args:
        host_device: the device that the command named, or `auto`; `train.device` comes first.

    Raises:
        UserError: `cuda` is required, as device or kernels, and absent, the vocabulary is smaller
            than the tokenizer's, or the budget or the text is smaller than a batch.
    """
    schedule.steps(cfg)
    require_batches(prepared, cfg.train.batch_size, cfg.model.context)
    cores = os.cpu_count() or 1
    if cfg.train.threads > cores:
        raise UserError(
            f"train.threads {cfg.train.threads}: this machine has {cores} cores; ask for {cores} "
            "or fewer"
        )
    device = device_of(cfg, host_device)
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: this torch sees no CUDA device; use --device cpu")
    train = cfg.train.model_dump(include={"dtype", "compile"})
    if train["dtype"] == "auto":
        train["dtype"] = "bfloat16" if device == "cuda" else "float32"
    if train["compile"] == "auto":
        train["compile"] = "on" if device == "cuda" else "off"
    train["device"] = device
    train["micro_batch"] = min(cfg.train.micro_batch or cfg.train.batch_size, cfg.train.batch_size)
    model = {
        "vocab_size": require_vocab(prepared, cfg.model.vocab_size),
        "final_norm": cfg.model.has_final_norm,
    }
    resolved = _with_updates(cfg, train=train, model=model)
    require_memory(resolved)
    return _with_updates(
        resolved,
        train={"kernels": choose_kernels(cfg.train.kernels, resolved.model, TrainRoute(**train))},
    )


def _with_updates(cfg: RunConfig, **sections: Settings) -> RunConfig:
    """Change settings of sections without validating them again."""
    changed = {
        name: getattr(cfg, name).model_copy(update=settings) for name, settings in sections.items()
    }
    return cfg.model_copy(update=changed)


def identity(
    cfg: RunConfig, fingerprint: str, repeat: int = 0, platform: dict[str, str] | None = None
) -> Identity:
    """Return everything that determines a run's numbers.

    Args:
        cfg: as `resolve` returns it.
        fingerprint: of the data.
        repeat: 0, or the number of a control that trains the same configuration again.
        platform: instead of this machine's.
    """
    route = cfg.train.model_dump(mode="json", include=set(ROUTE))
    return {
        "config": canonical(cfg),
        "data": fingerprint,
        "numerics": numerics(cfg),
        "platform": platform or this_platform(cfg.train.device),
        "route": {**_without_neutral({"train": route})["train"], "layout": "solo", "world_size": 1},
        "repeat": repeat,
    }


def run_id(identity: Identity) -> str:
    """Return the digest of an identity, by which the store names the run."""
    return digest(identity)


def canonical(cfg: RunConfig) -> Settings:
    """Return the canonical form of a resolved configuration, which all configurations that provably
    train the same have in common.

    It leaves out what the fingerprint, the platform and the route contain, and has settings that
    nothing reads at their defaults.
    """
    seeds = cfg.seeds
    other_seeds = {"init_seed": seeds.init, "dropout_seed": seeds.dropout}
    eval_windows = whole_windows(cfg.data.eval_tokens, cfg.model.context)
    curve_windows = whole_windows(cfg.data.curve_tokens, cfg.model.context)
    data = {
        "eval_part": cfg.data.eval_part,
        "eval_windows": eval_windows,
        "curve_windows": min(eval_windows, curve_windows),
    }
    return _without_neutral(
        {
            "model": _canonical_model(cfg),
            "data": data,
            "train": _canonical_train(cfg),
            "seed": seeds.data,
            **{name: seed for name, seed in other_seeds.items() if seed != seeds.data},
        }
    )


def _canonical_model(cfg: RunConfig) -> Settings:
    if any(is_users_own(part) for part in _model_parts(cfg).values()):
        # A user's own part may read any setting.
        return cfg.model.model_dump(mode="json") | {"mlp_dim": cfg.model.mlp_dim}
    return normal_form(cfg.model)


def _canonical_train(cfg: RunConfig) -> Settings:
    steps = schedule.steps(cfg)
    train = cfg.train.model_dump(mode="json", exclude={*ROUTE, "device"})
    train["tokens"] = steps * schedule.batch_tokens(cfg)
    train["warmup"] = schedule.warmup_steps(steps, cfg.train)
    train |= {name: min(train[name], steps) for name in ("evals", "logs", "diagnostics")}
    train |= _unread_settings(cfg.train)
    if cfg.train.schedule == "wsd":
        train["decay"] = schedule.decay_steps(steps, cfg.train)
    return train


def _unread_settings(train: TrainConfig) -> Settings:
    """Settings that this optimizer and this schedule do not read, at their defaults."""
    unread = set().union(*OPTIMIZER_READS.values()) - OPTIMIZER_READS[train.optimizer]
    if train.schedule in SCHEDULES_WITHOUT_FLOOR:
        unread.add("final_lr")
    if train.schedule != "wsd":
        unread.add("decay")
    return {name: TrainConfig.model_fields[name].default for name in unread}


def _without_neutral(sections: Settings) -> Settings:
    """Drop the settings that have their value of `NEUTRAL`."""
    reduced = dict(sections)
    for path, value in NEUTRAL.items():
        section, _, field = path.partition(".")
        if section in reduced and reduced[section].get(field) == value:
            reduced[section] = {k: v for k, v in reduced[section].items() if k != field}
    return reduced


def numerics(cfg: RunConfig) -> dict[str, int | str]:
    """Return the numerics versions above 1 of the components that this configuration uses, and the
    digests of the source of a user's own parts.
    """
    parts = _model_parts(cfg)
    versions = COMPONENTS | {name: getattr(part, "numerics", 1) for name, part in parts.items()}
    if cfg.train.kernels == "cuda":
        versions["kernels"] = KERNELS
    sources = {
        f"{name} source": _source_digest(part) for name, part in parts.items() if is_users_own(part)
    }
    return {name: version for name, version in versions.items() if version != 1} | sources


def _model_parts(cfg: RunConfig) -> dict[str, type]:
    """The classes of the model's parts, by axis and variant."""
    chosen = {axis: getattr(cfg.model, axis) for axis in VARIANTS}
    variants = {f"{axis}={name}": variant(axis, name) for axis, name in chosen.items()}
    return {"model": GPT, **variants}


def _source_digest(part: type) -> str:
    """Digest of the source that was loaded; the file may have been edited since."""
    module = importlib.import_module(part.__module__)
    digest_when_loaded: str | None = getattr(module, "__andrea_digest__", None)
    if digest_when_loaded or not module.__file__:
        return digest_when_loaded or ""
    return hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()


def this_platform(device: str) -> dict[str, str]:
    """Return what bits depend on besides the program: torch's minor version and the kinds of
    processors.
    """
    version = ".".join(torch.__version__.split(".")[:2])
    cpu = f"{machine.machine()} {torch.backends.cpu.get_cpu_capability()}"
    if device == "cuda":
        # The CPU matters too: initial weights are drawn on it.
        return {"torch": version, "device": torch.cuda.get_device_name(), "cpu": cpu}
    return {"torch": version, "device": cpu}


def run_environment(device: str = "cpu") -> Environment:
    """Return versions, git state, host and device of this process."""
    platform = {f"platform_{key}": value for key, value in this_platform(device).items()}
    packages = ("andrea", "torch", "numpy", "pydantic", "tokenizers")
    return Environment(
        **{package: installed(package) for package in packages},
        python=machine.python_version(),
        cuda=torch.version.cuda,
        git=git_state(),
        host=socket.gethostname(),
        system=machine.platform(),
        **platform,
    )


@cache
def git_state(package: Path = Path(andrea.__file__).parent) -> GitState | None:
    """Commit of the checkout that the package's code is tracked in, and whether its tree differs
    from that commit; None outside a checkout.
    """

    def run_git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=20
        ).stdout.strip()

    try:
        run_git("ls-files", "--error-unmatch", "__init__.py")
        commit = run_git("rev-parse", "HEAD")
        return GitState(hash=commit, dirty=bool(run_git("status", "--porcelain", ":/")))
    except (OSError, subprocess.SubprocessError):
        return None
