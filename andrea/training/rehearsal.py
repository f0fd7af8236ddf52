"""Build a model and run it once without numbers (torch's meta device): a fault of a variant shows
before any run.
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


def rehearse(cfg: ModelConfig, where: str) -> None:
    """Count, build and run forward and backward, on one sequence; computes nothing and allocates
    nothing.

    Args:
        where: what to call this model in an error.

    Raises:
        UserError: something failed, or a variant's `count` is not what its `build` makes.
    """
    cfg = cfg.model_copy(update={"vocab_size": cfg.vocab_size or STAND_IN})
    chosen = {axis: variant(axis, getattr(cfg, axis)) for axis in VARIANTS}
    own = {axis: part for axis, part in chosen.items() if is_users_own(part)}
    named = ", ".join([where, *(f"model.{axis} {getattr(cfg, axis)!r}" for axis in own)])
    try:
        told = count_parameters(cfg)._asdict()
        flops_per_token(cfg)
        estimate_memory(cfg, batch_size=1)
        made = _parameters(_run(cfg))
    except (Exception, SystemExit) as error:
        line = _line(error, {part.__module__ for part in own.values()})
        raise UserError(f"{named}{line}: {reason(error)}") from error
    wrong = {group: n for group, n in made.items() if n != told[group]}
    off = [
        f"{group}: it says {told[group]:,}, what it builds has {n:,}" for group, n in wrong.items()
    ]
    if off:
        raise UserError(
            f"{named}: `count` (or `shapes`) does not agree with `build` on parameters; "
            f"{'; '.join(off)}"
        )


def _run(cfg: ModelConfig) -> GPT:
    with torch.random.fork_rng(devices=[]):
        try:
            return _run_on(cfg, "meta")
        except Exception as error:
            if "meta" not in str(error).lower():
                raise
            return _run_on(
                cfg, "cpu"
            )  # something reads a number, which a meta tensor does not have


def _run_on(cfg: ModelConfig, device: str) -> GPT:
    with torch.device(device):
        model = GPT(cfg)
        list(initial_scales(model, cfg))
        lr_scales(model, cfg)
        tokens = torch.zeros((1, cfg.context), dtype=torch.int64)
        model(tokens, tokens).mean().backward()
    return model


def _parameters(model: GPT) -> dict[str, int]:
    """Parameters by the groups of `ParameterCounts`; whatever is no other group's is counted
    with the norms.
    """
    blocks = list(model.blocks.children())
    inside = {"attention": ("attn",), "mlp": ("mlp",), "residual": ("join1", "join2")}
    groups: dict[str, list[torch.nn.Module]] = {
        "token_embedding": [model.token_embedding],
        "position_embedding": []
        if model.position_embedding is None
        else [model.position_embedding],
        **{
            group: [
                block.get_submodule(name)
                for block in blocks
                for name in names
                if hasattr(block, name)
            ]
            for group, names in inside.items()
        },
        "head": [model.head],
    }
    made = {
        name: sum(p.numel() for m in modules for p in m.parameters())
        for name, modules in groups.items()
    }
    if model.config.tied:
        made["head"] -= model.head.weight.numel()
    return made | {"norms": sum(p.numel() for p in model.parameters()) - sum(made.values())}


def _line(error: BaseException, modules: set[str]) -> str:
    """Where the error came from in the user's own file, if it did."""
    files = {getattr(sys.modules.get(name), "__file__", None) for name in modules}
    found = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files
    ]
    return f" ({Path(found[-1].filename).name}:{found[-1].lineno})" if found else ""
