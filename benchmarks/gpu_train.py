"""Tokens a second and MFU of training steps by plain torch, torch.compile, and the kernels
(compiled too), as JSON.

python benchmarks/gpu_train.py OUT.json [--presets andrea-12m,andrea-120m,gpt2] [--batch 32]
[--device cuda]

The routes take turns, so that a clock that changes changes all alike.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from andrea.kernels.adamw import AdamW
from andrea.kernels.apply import install_kernels
from andrea.model.accounting import flops_per_token
from andrea.model.config import ModelConfig
from andrea.model.gpt import build_model
from andrea.model.presets import PRESETS

PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
"""Dense bf16 FLOP/s with float32 accumulation, from the makers' data sheets; the longest name that
fits counts.
"""
ROUTES = {"torch": (False, False), "compile": (False, True), "cuda": (True, True)}
"""Kernels, torch.compile."""
ROUNDS, STEPS = 4, 5


def peak(device: str) -> float | None:
    """Of a device's name; None: unknown."""
    names = sorted((name for name in PEAKS if name in device), key=len)
    return PEAKS[names[-1]] if names else None


def step_of(
    cfg: ModelConfig, route: str, device: torch.device, batch: int
) -> Callable[[], torch.Tensor]:
    """A training step in bf16 autocast with clipping and AdamW; returns its loss."""
    kernels, compiled = ROUTES[route]
    model = build_model(cfg).to(device).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer
    if kernels:
        install_kernels(model)
        optimizer = AdamW(parameters, lr=1e-4, clip=1.0)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    forward: Any = torch.compile(model) if compiled else model
    generator = torch.Generator().manual_seed(0)  # every route trains on the same batch
    tokens = torch.randint(cfg.vocab_size or 1, (batch, cfg.context + 1), generator=generator).to(
        device
    )
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> torch.Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = forward(x, y).sum() / y.numel()
        loss.backward()
        if not kernels:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(preset: str, device: torch.device, batch: int) -> dict[str, Any]:
    """Tokens a second by route, of the median round."""
    cfg = ModelConfig(**({"vocab_size": 256} | dict(PRESETS[preset])))
    steps, losses, seconds = {}, {}, {route: [] for route in ROUTES}  # type: ignore[var-annotated]
    for route in ROUTES:
        begin = time.perf_counter()
        steps[route] = step_of(cfg, route, device, batch)
        losses[route] = [steps[route]().item() for _ in range(3)]
        print(
            f"{preset} {route}: warm after {time.perf_counter() - begin:.1f} s, losses "
            f"{losses[route]}",
            flush=True,
        )
    for _ in range(ROUNDS):
        for route, step in steps.items():
            wait(device)
            begin = time.perf_counter()
            for _ in range(STEPS):
                step()
            wait(device)
            seconds[route].append(time.perf_counter() - begin)
    per_round, flops = STEPS * batch * cfg.context, flops_per_token(cfg).total
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    most, rows = peak(name), {}
    for route, taken in seconds.items():
        speed = per_round / statistics.median(taken)
        rows[route] = {
            "tokens_per_s": speed,
            "slowest": per_round / max(taken),
            "fastest": per_round / min(taken),
            "mfu": speed * flops / most if most else None,
            "losses": losses[route],
        }
        print(f"{preset} {route}: {speed:,.0f} tokens/s", flush=True)
    return {
        "preset": preset,
        "batch": batch,
        "context": cfg.context,
        "flops_per_token": flops,
        "routes": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--presets", default="andrea-12m,andrea-120m,gpt2")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    device, rows = torch.device(args.device), []
    for preset in args.presets.split(","):
        rows.append(measure(preset, device, args.batch))
        args.out.write_text(
            json.dumps({"rows": rows}, indent=1)
        )  # a run that is cut short leaves what it had
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
