"""Gradient norms and activation sizes by layer, on one fixed batch, the same in every arm and seed.

A separate eager pass, since hooks do not run in a compiled model. It takes gradients with
`torch.autograd.grad`, so that the training's own gradients, random stream and optimizer state stay
as they are.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from andrea.data.batches import training_batch
from andrea.data.prepared import Prepared
from andrea.model.gpt import evaluation_mode
from andrea.training.run_ending import finite_or_none

PROBE_SEED = 2**31 - 1
PROBE_WINDOWS = 8
PROBE_TOKENS = 4096


class LayerStatistics(NamedTuple):
    """Numbers of one forward and backward pass through L blocks; one that is not finite is None."""

    grad_norm: list[float | None]
    """[L] over all parameters of a block."""
    embedding_grad_norm: float | None
    """Over the token and position embeddings; with a tied head its gradient too."""
    attn_rms: list[float | None]
    """[L] root mean square of the attention's output."""
    mlp_rms: list[float | None]
    """[L] root mean square of the MLP's output."""
    residual_rms: list[float | None]
    """[L + 1] root mean square of each block's input and of the last block's output."""


def probe_batch(prepared: Prepared, context: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The fixed batch: inputs and targets [P, T] of the train part, P·T ≤ 4096 and P ≤ 8."""
    windows = max(1, min(PROBE_WINDOWS, PROBE_TOKENS // context))
    x, y = training_batch(prepared, PROBE_SEED, 0, windows, context)
    return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)


def layer_statistics(
    model: nn.Module, x: Tensor, y: Tensor, autocast: AbstractContextManager[Any] | None = None
) -> LayerStatistics:
    """Run one forward and backward pass on inputs and targets [P, T], with dropout off."""
    blocks: Any = model.blocks
    with evaluation_mode(model), record_activations(blocks) as activations, torch.enable_grad():
        parameters = [p for p in model.parameters() if p.requires_grad]
        with autocast or nullcontext():
            loss = model(x, y).mean()
        computed = torch.autograd.grad(loss, parameters, allow_unused=True)
    gradients = {id(p): g for p, g in zip(parameters, computed, strict=True) if g is not None}
    embeddings = [model.token_embedding, model.position_embedding]
    numbers = [
        *(_gradient_norm(gradients, [block]) for block in blocks),
        _gradient_norm(gradients, embeddings),
        *activations["attn"],
        *activations["mlp"],
        *activations["residual"],
    ]
    # One transfer from the device for all of them.
    transferred = torch.stack([number.float() for number in numbers]).tolist()
    values = [finite_or_none(value) for value in transferred]
    n = len(blocks)
    return LayerStatistics(
        grad_norm=values[:n],
        embedding_grad_norm=values[n],
        attn_rms=values[n + 1 : 2 * n + 1],
        mlp_rms=values[2 * n + 1 : 3 * n + 1],
        residual_rms=values[3 * n + 1 :],
    )


@contextmanager
def record_activations(blocks: Any) -> Iterator[dict[str, list[Tensor]]]:
    """Collect, layer by layer, the root mean square of every branch and of the residual stream."""
    sizes: dict[str, list[Tensor]] = {"attn": [], "mlp": [], "residual": []}

    def record_output(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, inputs, output: sizes[name].append(root_mean_square(output))

    def record_input(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sizes["residual"].append(root_mean_square(inputs[0]))

    with ExitStack() as hooks:
        hooks.enter_context(blocks[-1].register_forward_hook(record_output("residual")))
        for block in blocks:
            hooks.enter_context(block.register_forward_pre_hook(record_input))
            hooks.enter_context(block.attn.register_forward_hook(record_output("attn")))
            hooks.enter_context(block.mlp.register_forward_hook(record_output("mlp")))
        yield sizes


def root_mean_square(x: Tensor) -> Tensor:
    """Root mean square over all elements, float32."""
    return x.detach().float().square().mean().sqrt()


def _gradient_norm(gradients: dict[int, Tensor], modules: list[Any]) -> Tensor:
    """Norm of the gradients of all parameters in some modules; 0 where there are none."""
    parameters = [p for module in modules if module is not None for p in module.parameters()]
    norms = [
        torch.linalg.vector_norm(gradients[id(p)].float()) for p in parameters if id(p) in gradients
    ]
    if not norms:
        return torch.zeros((), device=next(iter(gradients.values())).device)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm
