"""Loss on the fixed evaluated tokens: the same windows in every run. Uses no random numbers."""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from andrea.data.batches import EvalSet
from andrea.model.gpt import evaluation_mode
from andrea.records.run import DocumentLoss
from andrea.training.run_ending import finite_or_none

MAX_WINDOWS = 64
"""Windows evaluated at once."""
MAX_LOGITS = 2**24
"""Logits computed at once (64 MB as float32), unless a single window has more."""


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
        """Mean loss in nats per token."""
        return float(self.window_sums.sum()) / self.tokens

    def loss_on(self, windows: npt.NDArray[np.int64]) -> float:
        """Mean loss in nats per token over some of the windows, given by their indices."""
        per_window = self.tokens // len(self.window_sums)
        return float(self.window_sums[windows].sum()) / (len(windows) * per_window)

    def document_losses(self, names: list[str]) -> list[DocumentLoss]:
        """Mean loss of every document that has evaluated tokens."""
        losses = []
        for name, total, count in zip(names, self.document_sums, self.document_tokens, strict=True):
            if count:
                loss = finite_or_none(float(total / count))
                losses.append(DocumentLoss(name=name, tokens=int(count), loss=loss))
        return losses


def bits_per_byte(loss: float, tokens: int, text_bytes: int) -> float:
    """Convert nats per token into bits per byte of the text that the tokens stand for."""
    return loss * tokens / (math.log(2) * text_bytes)


def evaluate(
    model: nn.Module,
    data: EvalSet,
    autocast: AbstractContextManager[Any] | None = None,
    *,
    curve: bool = False,
) -> Evaluation:
    """Evaluate all windows, or with `curve` only those of the curve subset.

    Dropout is off meanwhile, and the model's mode is restored. Sums are float64 over the float32
    losses of the tokens.
    """
    windows = data.curve if curve else np.arange(len(data.x))
    losses = _token_losses(model, data.x[windows], data.y[windows], autocast or nullcontext())
    documents = data.document[windows].ravel()
    count = len(data.names)
    sums = np.bincount(documents, weights=losses.ravel(), minlength=count).astype(np.float64)
    tokens = np.bincount(documents, minlength=count).astype(np.int64)
    return Evaluation(losses.sum(axis=1), sums, tokens, losses.size)


def _token_losses(
    model: nn.Module,
    x: npt.NDArray[np.int64],
    y: npt.NDArray[np.int64],
    autocast: AbstractContextManager[Any],
) -> npt.NDArray[np.float64]:
    """Loss of every target, [W, T]."""
    embedding: Any = model.token_embedding
    vocabulary, device = embedding.weight.shape[0], embedding.weight.device
    at_once = max(1, min(MAX_WINDOWS, MAX_LOGITS // (x.shape[1] * vocabulary)))
    parts = []
    with evaluation_mode(model), torch.no_grad(), autocast:
        for start in range(0, len(x), at_once):
            rows = slice(start, start + at_once)
            inputs = torch.from_numpy(x[rows]).to(device, non_blocking=True)
            targets = torch.from_numpy(y[rows]).to(device, non_blocking=True)
            parts.append(model(inputs, targets).float())
        return torch.cat(parts).cpu().double().numpy()
