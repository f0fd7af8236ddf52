"""Who computes the memory-bound parts of a run: `auto` becomes `cuda` or `torch`, once, when a
study is frozen.

On a CPU it is torch, and nothing is measured. On a GPU one measurement for each device and class of
shapes decides, and is remembered on this machine; a study writes down what came of it and never
asks again.
"""

import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from andrea.errors import UserError, reason, warn
from andrea.kernels import backend, nvrtc, source
from andrea.model.config import ModelConfig

LAYERS = 2
"""Blocks of the model that is measured: they are alike, and loss and optimizer are in it once."""
STEPS = 7
FASTER = 0.98
"""Kernels are chosen when they take at most this share of torch's time; on a tie the plain route
stays.
"""

Measure = Callable[[], dict[str, float]]


def choose(asked: str, cfg: ModelConfig, train: dict[str, Any]) -> str:
    """`torch` or `cuda` for a run.

    Args:
        asked: `auto`, `torch` or `cuda`.
        cfg: with its vocabulary.
        train: resolved `device`, `dtype`, `compile`, `micro_batch`.

    Raises:
        UserError: `cuda` is asked for where kernels do not run.
    """
    if asked == "torch" or (asked == "auto" and train["device"] != "cuda"):
        return "torch"
    lacking = backend.missing(torch.device(train["device"]))
    if asked == "cuda":
        if lacking is not None:
            raise UserError(f"train.kernels cuda: {lacking}; or set train.kernels=torch")
        return "cuda"
    if lacking is not None:
        warn(f"{lacking}; without them plain torch does the work")
        return "torch"
    try:
        return remembered(shape_class(cfg, train), lambda: measure(cfg, train))
    except (
        RuntimeError,
        UserError,
    ) as error:  # a driver or compiler that does not go together with the device
        warn(
            f"the CUDA kernels cannot be measured here ({reason(error)}); plain torch does the work"
        )
        return "torch"


def shape_class(cfg: ModelConfig, train: dict[str, Any]) -> dict[str, Any]:
    """What one measurement holds for: the device and its software, the route, and the shapes that
    kernels see.
    """
    device = torch.device(train["device"])
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        "kernels": source.NUMERICS,
        "text": hashlib.sha256("".join(map(source.text, source.modules())).encode()).hexdigest(),
        **{name: train[name] for name in ("dtype", "compile")},
        "rows": _near(train["micro_batch"] * cfg.context),
        "d_model": cfg.d_model,
        "mlp_dim": cfg.mlp_dim,
        "vocab_size": _near(cfg.vocab_size or 1),
        **{
            name: getattr(cfg, name)
            for name in ("norm", "norm_placement", "activation", "residual")
        },
        "dropout": cfg.dropouts.residual > 0,
    }


def _near(number: int) -> int:
    """The next power of two: sizes that are nearly the same are one class."""
    return 1 << (number - 1).bit_length()


def remembered(key: dict[str, Any], measured: Measure) -> str:
    """What was chosen for a class before, else what a measurement says; several processes may ask
    at once.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    path = nvrtc.cache_folder() / "choices" / f"{digest}.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["class"] == key and found["chosen"] in ("torch", "cuda"):
            return str(found["chosen"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # nobody asked yet, or the file is damaged
    times = measured()
    chosen = "cuda" if times["cuda"] <= FASTER * times["torch"] else "torch"
    _write(path, {"class": key, "milliseconds": times, "chosen": chosen})
    return chosen


def _write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=2)
    Path(name).replace(path)


def measure(cfg: ModelConfig, train: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of a training step of a shallow model by torch and by kernels, taken in turns."""
    device = torch.device(train["device"])
    with torch.random.fork_rng(
        devices=[torch.cuda.current_device()] if device.type == "cuda" else []
    ):
        return _measured(cfg, train, device)


def _measured(cfg: ModelConfig, train: dict[str, Any], device: torch.device) -> dict[str, float]:
    steps = {kernels: _step(cfg, train, kernels, device) for kernels in ("torch", "cuda")}
    for step in steps.values():
        for _ in range(3):
            step()
    taken: dict[str, list[float]] = {kernels: [] for kernels in steps}
    for _ in range(STEPS):
        for kernels, step in steps.items():
            _wait(device)
            begin = time.perf_counter()
            step()
            _wait(device)
            taken[kernels].append((time.perf_counter() - begin) * 1e3)
    return {kernels: statistics.median(times) for kernels, times in taken.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _step(
    cfg: ModelConfig, train: dict[str, Any], kernels: str, device: torch.device
) -> Callable[[], None]:
    """A step as the training makes it: forward and backward of a micro-batch, clipping, AdamW."""
    from andrea.kernels.adamw import AdamW
    from andrea.kernels.apply import use
    from andrea.model.gpt import build_model

    shallow = cfg.model_copy(update={"n_layer": min(cfg.n_layer, LAYERS)})
    model = build_model(shallow).to(device).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer
    if kernels == "cuda":
        use(model)
        optimizer = AdamW(parameters, clip=1.0)
    else:
        optimizer = torch.optim.AdamW(parameters, fused=True)
    forward: Any = torch.compile(model) if train["compile"] == "on" else model
    half = train["dtype"] == "bfloat16"
    drawn = torch.Generator().manual_seed(
        0
    )  # rows of the table are read, and added to, as in a text: not one alone
    tokens = torch.randint(
        cfg.vocab_size or 1, (train["micro_batch"], cfg.context), generator=drawn
    ).to(device)

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16) if half else nullcontext():
            loss = forward(tokens, tokens).sum() / tokens.numel()
        loss.backward()
        if kernels == "torch":
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
