"""The choice between plain torch and the kernels: `auto` becomes `torch` or `cuda`, once, when a
study is frozen.

On a CPU it is torch, and nothing is measured. On a GPU one measurement for each device and class of
shapes decides, and is remembered on this machine. A study writes down the choice, and a resume
never measures again.
"""

import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from andrea.errors import UserError, reason, warn
from andrea.kernels import backend, nvrtc, source
from andrea.kernels.adamw import AdamW
from andrea.kernels.apply import install_kernels
from andrea.model.config import ModelConfig
from andrea.model.gpt import build_model

MEASURED_BLOCKS = 2
"""Blocks of the model that is measured: they are alike, and loss and optimizer are in it once."""
WARMUP_STEPS = 3
MEASURED_STEPS = 7
LARGEST_SHARE = 0.98
"""Kernels are chosen when they take at most this share of torch's time; on a tie plain torch stays.
"""

Route = Literal["torch", "cuda"]


class TrainRoute(NamedTuple):
    """The resolved training settings that a measurement depends on."""

    device: str
    dtype: str
    compile: str
    micro_batch: int


class ShapeClass(NamedTuple):
    """Everything that decides how fast the routes are: one measurement holds for a class. The
    fields are the keys of the remembered choice.
    """

    device: str
    torch: str
    kernels: int
    text: str
    """Digest of the text of all modules."""
    dtype: str
    compile: str
    rows: int
    d_model: int
    mlp_dim: int
    vocab_size: int
    norm: str
    norm_placement: str
    activation: str
    residual: str
    dropout: bool


class StepTimes(NamedTuple):
    """Milliseconds of a training step by each route."""

    torch: float
    cuda: float


def choose_kernels(setting: str, model: ModelConfig, train: TrainRoute) -> Route:
    """Return the route of a run.

    Args:
        setting: `auto`, `torch` or `cuda`.
        model: with its vocabulary.

    Raises:
        UserError: `cuda` is asked for where kernels do not run.
    """
    if setting == "torch" or (setting == "auto" and train.device != "cuda"):
        return "torch"
    lacking = backend.missing_requirement(torch.device(train.device))
    if setting == "cuda":
        if lacking is not None:
            raise UserError(f"train.kernels cuda: {lacking}; or set train.kernels=torch")
        return "cuda"
    if lacking is not None:
        warn(f"{lacking}; without them plain torch does the work")
        return "torch"
    try:
        return remembered_choice(shape_class(model, train), lambda: measure_steps(model, train))
    # A driver or compiler that does not go together with the device.
    except (RuntimeError, UserError) as error:
        warn(
            f"the CUDA kernels cannot be measured here ({reason(error)}); plain torch does the work"
        )
        return "torch"


def shape_class(model: ModelConfig, train: TrainRoute) -> ShapeClass:
    """Return the class of a run: device and software, the settings of the route, and the shapes
    that kernels see.
    """
    device = torch.device(train.device)
    texts = "".join(map(source.module_text, source.module_names()))
    return ShapeClass(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        torch=torch.__version__,
        kernels=source.NUMERICS,
        text=hashlib.sha256(texts.encode()).hexdigest(),
        dtype=train.dtype,
        compile=train.compile,
        rows=_next_power_of_two(train.micro_batch * model.context),
        mlp_dim=model.mlp_dim,
        vocab_size=_next_power_of_two(model.vocab_size or 1),
        dropout=model.dropouts.residual > 0,
        **model.model_dump(include={"d_model", "norm", "norm_placement", "activation", "residual"}),
    )


def _next_power_of_two(number: int) -> int:
    """Round up, so that sizes that are nearly the same are one class."""
    return 1 << (number - 1).bit_length()


# ---- Remembered choices --------------------------------------------------------------------------


def remembered_choice(shapes: ShapeClass, measure: Callable[[], StepTimes]) -> Route:
    """Return what was chosen for a class before, else what a measurement says. Several processes
    may do so at once.
    """
    key = shapes._asdict()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    path = nvrtc.cache_folder() / "choices" / f"{digest}.json"
    if (chosen := _read_choice(path, key)) is not None:
        return chosen
    times = measure()
    chosen = "cuda" if times.cuda <= LARGEST_SHARE * times.torch else "torch"
    _write_choice(path, {"class": key, "milliseconds": times._asdict(), "chosen": chosen})
    return chosen


def _read_choice(path: Path, key: dict[str, Any]) -> Route | None:
    try:
        choice = json.loads(path.read_text(encoding="utf-8"))
        # The name of a file is a digest, cut short: the class itself is compared too.
        if choice["class"] == key and choice["chosen"] in ("torch", "cuda"):
            return "cuda" if choice["chosen"] == "cuda" else "torch"
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not measured yet, or the file is damaged
    return None


def _write_choice(path: Path, choice: dict[str, Any]) -> None:
    """Write a file that appears whole, since other processes may read it at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(choice, file, indent=2)
    Path(temporary).replace(path)


# ---- Measurement ---------------------------------------------------------------------------------


def measure_steps(model: ModelConfig, train: TrainRoute) -> StepTimes:
    """Return the median time of a training step of a shallow model by each route."""
    device = torch.device(train.device)
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # dropout must not move the run's own stream
        steps = {
            "torch": _training_step(model, train, "torch"),
            "cuda": _training_step(model, train, "cuda"),
        }
        return StepTimes(**median_times(steps, MEASURED_STEPS, partial(_time_step, device)))


def median_times(
    steps: Mapping[str, Callable[[], Any]], repeats: int, time_step: Callable[..., float]
) -> dict[str, float]:
    """Return the median time of each step after a warm-up, as `time_step(step)` measures it. They
    take turns, so that a clock that changes changes all alike.
    """
    for step in steps.values():
        for _ in range(WARMUP_STEPS):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            times[name].append(time_step(step))
    return {name: statistics.median(measured) for name, measured in times.items()}


def _time_step(device: torch.device, step: Callable[[], None]) -> float:
    """Return the milliseconds of a step by the wall clock: the host's share of it counts too."""
    _synchronize(device)
    begin = time.perf_counter()
    step()
    _synchronize(device)
    return (time.perf_counter() - begin) * 1e3


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _training_step(config: ModelConfig, train: TrainRoute, route: Route) -> Callable[[], None]:
    """Return a step as the training makes it: forward and backward of a micro-batch, clipping,
    AdamW.
    """
    device = torch.device(train.device)
    shallow = config.model_copy(update={"n_layer": min(config.n_layer, MEASURED_BLOCKS)})
    model = build_model(shallow).to(device).train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer: torch.optim.Optimizer
    if route == "cuda":
        install_kernels(model)
        optimizer = AdamW(parameters, clip=1.0)
    else:
        optimizer = torch.optim.AdamW(parameters, fused=True)
    forward: Any = torch.compile(model) if train.compile == "on" else model
    half_precision = train.dtype == "bfloat16"
    # Drawn tokens, since they spread over the rows of the embedding as those of a text do.
    generator = torch.Generator().manual_seed(0)
    shape = (train.micro_batch, config.context)
    tokens = torch.randint(config.vocab_size or 1, shape, generator=generator).to(device)

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16) if half_precision else nullcontext():
            loss = forward(tokens, tokens).sum() / tokens.numel()
        loss.backward()
        if route == "torch":  # the kernels' step clips itself
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
