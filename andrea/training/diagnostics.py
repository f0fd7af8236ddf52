"""What the layers do: gradient norms and sizes of activations, on one fixed batch, the same in
every arm and seed.

A separate eager pass, since hooks do not run in a compiled model. It reads gradients with
`torch.autograd.grad`, so the training's own gradients, random stream and optimizer never know of
it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from andrea.data.batches import training_batch
from andrea.data.prepared import Prepared
from andrea.training.evaluate import evaluating

PROBE_SEED = 2**31 - 1
PROBE_WINDOWS = 8
PROBE_TOKENS = 4096


def probe(prepared: Prepared, context: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The fixed batch: inputs and targets [P, T] of the train part, P·T at most 4096 (and P at most
    8).
    """
    windows = max(1, min(PROBE_WINDOWS, PROBE_TOKENS // context))
    x, y = training_batch(prepared, PROBE_SEED, 0, windows, context)
    return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)


def layers(
    model: nn.Module, x: Tensor, y: Tensor, autocast: AbstractContextManager[Any] | None = None
) -> dict[str, Any]:
    """Per-layer numbers of one forward and backward pass, dropout off.

    Returns:
        `grad_norm` [L] over all parameters of a block; `attn_rms`, `mlp_rms` [L] of what the
        sublayers put out; `residual_rms` [L + 1] of each block's input and the last block's output;
        `embedding_grad_norm` over the token and position embeddings (with a tied head its gradient
        too).
    """
    blocks: Any = model.blocks
    with evaluating(model), watch(blocks) as seen, torch.enable_grad():
        parameters = [p for p in model.parameters() if p.requires_grad]
        with autocast or nullcontext():
            loss = model(x, y).mean()
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
    gradients = {id(p): g for p, g in zip(parameters, found, strict=True) if g is not None}
    embeddings = [model.token_embedding, model.position_embedding]
    rows = [
        *(_norm(gradients, [block]) for block in blocks),
        _norm(gradients, embeddings),
        *seen["attn"],
        *seen["mlp"],
        *seen["residual"],
    ]
    values = iter(torch.stack([row.float() for row in rows]).tolist())
    count = len(blocks)
    return {
        "grad_norm": [next(values) for _ in range(count)],
        "embedding_grad_norm": next(values),
        "attn_rms": [next(values) for _ in range(count)],
        "mlp_rms": [next(values) for _ in range(count)],
        "residual_rms": list(values),
    }


@contextmanager
def watch(blocks: Any) -> Iterator[dict[str, list[Tensor]]]:
    """While inside, note the root mean square of every branch and of the residual stream, layer by
    layer.
    """
    seen: dict[str, list[Tensor]] = {"attn": [], "mlp": [], "residual": []}

    def output(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, inputs, output: seen[name].append(rms(output))

    def arrives(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen["residual"].append(rms(inputs[0]))

    handles = [blocks[-1].register_forward_hook(output("residual"))]
    for block in blocks:
        handles.append(block.register_forward_pre_hook(arrives))
        handles.append(block.attn.register_forward_hook(output("attn")))
        handles.append(block.mlp.register_forward_hook(output("mlp")))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def rms(x: Tensor) -> Tensor:
    """Root mean square over all elements, float32."""
    return x.detach().float().square().mean().sqrt()


def _norm(gradients: dict[int, Tensor], modules: list[Any]) -> Tensor:
    """Norm of the gradients of all parameters in some modules."""
    found = [
        gradients[id(p)]
        for m in modules
        if m is not None
        for p in m.parameters()
        if id(p) in gradients
    ]
    if not found:
        return torch.zeros((), device=next(iter(gradients.values())).device)
    norm: Tensor = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(g.float()) for g in found])
    )
    return norm
