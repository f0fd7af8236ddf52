"""What determines a run's numbers, and the name that follows from it. `auto` is resolved here, once
per study.

A run id is the digest of: the canonical configuration, the data's fingerprint, the numerics
    versions of the components
used, the platform, the route and the number of the repeat. What cannot change a number is
normalised away or left out.
"""

import hashlib
import importlib
import os
import platform as machine
import socket
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

import andrea
from andrea.config import RunConfig
from andrea.data.batches import require_batches, windows
from andrea.data.prepared import Prepared, require_vocab
from andrea.errors import UserError
from andrea.kernels.choose import choose
from andrea.kernels.source import NUMERICS as KERNELS
from andrea.model.checks import normal_form
from andrea.model.gpt import GPT
from andrea.model.registry import VARIANTS, variant
from andrea.model.variants import is_users_own
from andrea.store.digest import digest
from andrea.store.versions import installed
from andrea.training import schedule
from andrea.training.config import READS, UNFLOORED, TrainConfig
from andrea.training.memory import device_of, require_memory

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
"""Settings that mean, at this value, what was done before they existed: left out, so that older ids
stay.
"""
COMPONENTS: dict[str, int] = {
    "batches": 1,
    "evaluation": 1,
    "loop": 1,
    "optimizer": 1,
    "schedule": 1,
}
"""Numerics versions of what trains the model: raise one when the same input gives other bits. The
model's parts have theirs as `numerics` of the class. Version 1 is left out of the identity, so a
new component leaves older ids alone.
"""


def resolve(cfg: RunConfig, prepared: Prepared, host_device: str = "auto") -> RunConfig:
    """The configuration with nothing left to choose: vocabulary, final norm, device, precision,
    compile, micro-batch, kernels (on a GPU perhaps by measuring).

    Args:
        host_device: `cpu` or `cuda` where the command named one; a device named in `train.device`
            comes first.

    Raises:
        UserError: `cuda` is asked for, as device or kernels, and absent, the vocabulary is smaller
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
    on_gpu = device == "cuda"
    train: dict[str, Any] = {
        "device": device,
        "dtype": cfg.train.dtype
        if cfg.train.dtype != "auto"
        else ("bfloat16" if on_gpu else "float32"),
        "compile": cfg.train.compile
        if cfg.train.compile != "auto"
        else ("on" if on_gpu else "off"),
        "micro_batch": min(cfg.train.micro_batch or cfg.train.batch_size, cfg.train.batch_size),
    }
    model = {
        "vocab_size": require_vocab(prepared, cfg.model.vocab_size),
        "final_norm": cfg.model.has_final_norm,
    }
    resolved = cfg.model_copy(
        update={
            "train": cfg.train.model_copy(update=train),
            "model": cfg.model.model_copy(update=model),
        }
    )
    require_memory(resolved)
    kernels = choose(cfg.train.kernels, resolved.model, train)
    return resolved.model_copy(
        update={"train": resolved.train.model_copy(update={"kernels": kernels})}
    )


def identity(
    cfg: RunConfig, fingerprint: str, repeat: int = 0, platform: dict[str, str] | None = None
) -> dict[str, Any]:
    """What `run_id` digests.

    Args:
        cfg: as `resolve` returns it.
        fingerprint: of the data.
        repeat: 0, or the number of a control that trains the same thing again.
        platform: instead of this machine's.
    """
    return {
        "config": canonical(cfg),
        "data": fingerprint,
        "numerics": numerics(cfg),
        "platform": platform or this_platform(cfg.train.device),
        "route": {
            **_without_neutral({"train": cfg.train.model_dump(mode="json", include=set(ROUTE))})[
                "train"
            ],
            "layout": "solo",
            "world_size": 1,
        },
        "repeat": repeat,
    }


def run_id(identity: dict[str, Any]) -> str:
    """The name of a run."""
    return digest(identity)


def canonical(cfg: RunConfig) -> dict[str, Any]:
    """The resolved configuration without what the fingerprint, the platform and the route say,
    inactive settings set to their defaults: two configurations that provably train the same have
    one canonical form.
    """
    steps, seeds = schedule.steps(cfg), cfg.seeds
    own = any(
        is_users_own(part) for part in _parts(cfg).values()
    )  # a user's own part may read any setting
    model = (
        cfg.model.model_dump(mode="json") | {"mlp_dim": cfg.model.mlp_dim}
        if own
        else normal_form(cfg.model)
    )
    judged = windows(cfg.data.eval_tokens, cfg.model.context)
    data = {
        "eval_part": cfg.data.eval_part,
        "eval_windows": judged,
        "curve_windows": min(judged, windows(cfg.data.curve_tokens, cfg.model.context)),
    }
    train = cfg.train.model_dump(mode="json", exclude={*ROUTE, "device"})
    train["tokens"] = steps * schedule.batch_tokens(cfg)
    train["warmup"] = schedule.warmup_steps(steps, cfg.train)
    train |= {name: min(train[name], steps) for name in ("evals", "logs", "diagnostics")}
    train |= _unread(cfg.train)
    if cfg.train.schedule == "wsd":
        train["decay"] = schedule.decay_steps(steps, cfg.train)
    apart = {"init_seed": seeds.init, "dropout_seed": seeds.dropout}
    return _without_neutral(
        {
            "model": model,
            "data": data,
            "train": train,
            "seed": seeds.data,
            **{name: seed for name, seed in apart.items() if seed != seeds.data},
        }
    )


def _unread(train: TrainConfig) -> dict[str, Any]:
    """Settings that this optimizer and this schedule do not read, at their defaults."""
    unread = frozenset().union(*READS.values()) - READS[train.optimizer]
    unread |= {"final_lr"} if train.schedule in UNFLOORED else set()
    unread |= {"decay"} if train.schedule != "wsd" else set()
    return {name: TrainConfig.model_fields[name].default for name in unread}


def _without_neutral(sections: dict[str, Any]) -> dict[str, Any]:
    kept = dict(sections)
    for path, value in NEUTRAL.items():
        section, _, field = path.partition(".")
        if section in kept and kept[section].get(field) == value:
            kept[section] = {k: v for k, v in kept[section].items() if k != field}
    return kept


def numerics(cfg: RunConfig) -> dict[str, Any]:
    """Versions above 1 of the components that this configuration uses, and digests of the sources
    of a user's own.
    """
    parts = _parts(cfg)
    versions = COMPONENTS | {name: getattr(part, "numerics", 1) for name, part in parts.items()}
    if cfg.train.kernels == "cuda":
        versions["kernels"] = KERNELS
    sources = {
        f"{name} source": _source_digest(part) for name, part in parts.items() if is_users_own(part)
    }
    return {name: version for name, version in versions.items() if version != 1} | sources


def _parts(cfg: RunConfig) -> dict[str, type]:
    """The classes of the model's parts."""
    chosen = {axis: getattr(cfg.model, axis) for axis in VARIANTS}
    variants = {f"{axis}={name}": variant(axis, name) for axis, name in chosen.items()}
    return {"model": GPT, **variants}


def _source_digest(part: type) -> str:
    """Of the source that was loaded; the file may have been edited since."""
    module = importlib.import_module(part.__module__)
    loaded: str | None = getattr(module, "__andrea_digest__", None)
    return loaded or (
        hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest() if module.__file__ else ""
    )


def this_platform(device: str) -> dict[str, str]:
    """What bits depend on besides the program: torch's minor version and the kinds of processors."""
    version = ".".join(torch.__version__.split(".")[:2])
    cpu = f"{machine.machine()} {torch.backends.cpu.get_cpu_capability()}"
    if device == "cuda":
        # Initial weights are drawn on the CPU.
        return {"torch": version, "device": torch.cuda.get_device_name(), "cpu": cpu}
    return {"torch": version, "device": cpu}


def env(device: str = "cpu") -> dict[str, Any]:
    """Where a run was trained: versions, git hash and dirty flag (None outside a checkout), host,
    device.
    """
    return {
        "andrea": installed("andrea"),
        "python": machine.python_version(),
        **{name: installed(name) for name in ("torch", "numpy", "pydantic", "tokenizers")},
        "cuda": torch.version.cuda,
        "git": git_state(),
        "host": socket.gethostname(),
        "system": machine.platform(),
        **{f"platform_{key}": value for key, value in this_platform(device).items()},
    }


@cache
def git_state(package: Path = Path(andrea.__file__).parent) -> dict[str, Any] | None:
    """Commit of the checkout that the package's code is tracked in, and whether its tree differs
    from that commit.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=20
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return {"hash": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", ":/"))}
    except (OSError, subprocess.SubprocessError):
        return None
