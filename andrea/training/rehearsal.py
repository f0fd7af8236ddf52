"""A rehearsal of a model on torch's meta device, which computes nothing: it shows faults of a
variant before any run.
"""

import sys
import traceback
from pathlib import Path

import torch

from andrea.errors import UserError, reason
from andrea.model.accounting import count_parameters, estimate_memory, flops_per_token
from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT
from andrea.model.inits import initial_scales, lr_scales
from andrea.model.registry import VARIANTS, variant
from andrea.model.variants import is_users_own
from andrea.training.memory import STAND_IN


def rehearse(cfg: ModelConfig, model_name: str) -> None:
    """Count a model's parameters, build it, and run forward and backward on one sequence.

    Args:
        model_name: how an error calls this model.

    Raises:
        UserError: something failed, or a variant's `count` is not what its `build` makes.
    """
    cfg = cfg.model_copy(update={"vocab_size": cfg.vocab_size or STAND_IN})
    chosen = {axis: variant(axis, getattr(cfg, axis)) for axis in VARIANTS}
    users_parts = {axis: part for axis, part in chosen.items() if is_users_own(part)}
    variants = [f"model.{axis} {getattr(cfg, axis)!r}" for axis in users_parts]
    title = ", ".join([model_name, *variants])
    try:
        counted = count_parameters(cfg)._asdict()
        flops_per_token(cfg)
        estimate_memory(cfg, batch_size=1)
        built = _built_parameters(_build_and_run(cfg))
    except (Exception, SystemExit) as error:
        line = _line_in_modules(error, {part.__module__ for part in users_parts.values()})
        raise UserError(f"{title}{line}: {reason(error)}") from error
    differences = [
        f"{group}: it says {counted[group]:,}, what it builds has {n:,}"
        for group, n in built.items()
        if n != counted[group]
    ]
    if differences:
        raise UserError(
            f"{title}: `count` (or `shapes`) does not agree with `build` on parameters; "
            f"{'; '.join(differences)}"
        )


def _build_and_run(cfg: ModelConfig) -> GPT:
    with torch.random.fork_rng(devices=[]):
        try:
            return _build_and_run_on(cfg, "meta")
        except Exception as error:
            if "meta" not in str(error).lower():
                raise
            # Something reads a number, which a meta tensor does not have.
            return _build_and_run_on(cfg, "cpu")


def _build_and_run_on(cfg: ModelConfig, device: str) -> GPT:
    with torch.device(device):
        model = GPT(cfg)
        list(initial_scales(model, cfg))
        lr_scales(model, cfg)
        tokens = torch.zeros((1, cfg.context), dtype=torch.int64)
        model(tokens, tokens).mean().backward()
    return model


def _built_parameters(model: GPT) -> dict[str, int]:
    """Parameters of a built model by the groups of `ParameterCounts`; those of no other group are
    counted with the norms.
    """
    group_of = {"attn": "attention", "mlp": "mlp", "join1": "residual", "join2": "residual"}
    counts = {
        "token_embedding": _count(model.token_embedding),
        "position_embedding": _count(model.position_embedding),
        **dict.fromkeys(group_of.values(), 0),
        "head": _count(model.head),
    }
    for block in model.blocks.children():
        for name, group in group_of.items():
            counts[group] += _count(getattr(block, name, None))
    if model.config.tied:
        counts["head"] -= model.head.weight.numel()
    return counts | {"norms": _count(model) - sum(counts.values())}


def _count(module: torch.nn.Module | None) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())


def _line_in_modules(error: BaseException, modules: set[str]) -> str:
    """File and line of a user's module that the error came through, in brackets, or nothing."""
    files = {getattr(sys.modules.get(name), "__file__", None) for name in modules}
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files
    ]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
