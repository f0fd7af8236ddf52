"""Loss on the fixed evaluated tokens: the same windows in every run, drawn from nobody's random
stream.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from andrea.data.batches import EvalSet
from andrea.training.outcome import finite

WINDOWS = 64
"""Windows evaluated at once, at most."""
LOGITS = 2**24
"""Logits computed at once, at most (64 MB as float32), unless a single window has more."""


@dataclass(frozen=True)
class Evaluation:
    """Losses of W windows of T tokens, in nats."""

    window_sums: npt.NDArray[np.float64]
    """[W] summed loss of each window."""
    document_sums: npt.NDArray[np.float64]
    """[D] summed loss of each document's evaluated tokens."""
    document_tokens: npt.NDArray[np.int64]
    """[D] evaluated tokens of each document."""
    tokens: int
    """W·T."""

    @property
    def loss(self) -> float:
        """Mean loss per token in nats."""
        return float(self.window_sums.sum()) / self.tokens

    def subset(self, windows: npt.NDArray[np.int64]) -> float:
        """Mean loss per token over some of the windows."""
        per_window = self.tokens // len(self.window_sums)
        return float(self.window_sums[windows].sum()) / (len(windows) * per_window)

    def documents(self, names: list[str]) -> list[dict[str, Any]]:
        """Loss by document, of those that have evaluated tokens."""
        return [
            {
                "name": names[i],
                "tokens": int(count),
                "loss": finite(float(self.document_sums[i] / count)),
            }
            for i, count in enumerate(self.document_tokens)
            if count
        ]


def bits_per_byte(loss: float, tokens: int, size: int) -> float:
    """Nats per token as bits per byte of the text that the tokens stand for."""
    return loss * tokens / (math.log(2) * size)


def evaluate(
    model: nn.Module,
    data: EvalSet,
    autocast: AbstractContextManager[Any] | None = None,
    *,
    curve: bool = False,
) -> Evaluation:
    """Evaluate all windows, or with `curve` those of the curve subset (the result's windows are
    then these alone).

    The model's mode is restored; dropout is off meanwhile. Sums are float64 over float32 losses per
    token.
    """
    chosen = data.curve if curve else np.arange(len(data.x))
    x, y, document = data.x[chosen], data.y[chosen], data.document[chosen]
    losses = _losses(model, x, y, autocast or nullcontext())
    flat = document.ravel()
    return Evaluation(
        losses.sum(axis=1),
        np.bincount(flat, weights=losses.ravel(), minlength=len(data.names)).astype(np.float64),
        np.bincount(flat, minlength=len(data.names)).astype(np.int64),
        losses.size,
    )


def _losses(
    model: nn.Module,
    x: npt.NDArray[np.int64],
    y: npt.NDArray[np.int64],
    autocast: AbstractContextManager[Any],
) -> npt.NDArray[np.float64]:
    embedding: Any = model.token_embedding
    vocabulary, device = embedding.weight.shape[0], embedding.weight.device
    size = max(1, min(WINDOWS, LOGITS // (x.shape[1] * vocabulary)))
    parts = []
    with evaluating(model), torch.no_grad(), autocast:
        for start in range(0, len(x), size):
            inputs = torch.from_numpy(x[start : start + size]).to(device, non_blocking=True)
            targets = torch.from_numpy(y[start : start + size]).to(device, non_blocking=True)
            parts.append(model(inputs, targets).float())
        return torch.cat(parts).cpu().double().numpy()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, restored afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
