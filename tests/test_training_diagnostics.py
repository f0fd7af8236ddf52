"""Per-layer numbers: right by an independent computation, and invisible to the training."""

import copy
import math

import pytest
import torch
from model_zoo import QUICK, some_tokens
from model_zoo import model as of_kind
from torch.nn import functional as F
from training_kit import corpus, tiny

from andrea.model.gpt import GPT, build_model
from andrea.training import diagnostics
from andrea.training.loop import Trainer


def by_hand(model: GPT, x: torch.Tensor, y: torch.Tensor) -> dict[str, list[float]]:
    """The same numbers without hooks and without `autograd.grad`, for pre-norm."""
    model = copy.deepcopy(model).eval()
    sizes: dict[str, list[float]] = {"attn_rms": [], "mlp_rms": [], "residual_rms": []}

    def note(name: str, tensor: torch.Tensor) -> torch.Tensor:
        sizes[name].append(math.sqrt(float(tensor.detach().double().square().mean())))
        return tensor

    stream = note("residual_rms", model.token_embedding(x) + model.position_embedding(x.shape[1]))
    for block in model.blocks:
        stream = stream + note("attn_rms", block.attn(block.norm1(stream)))
        stream = stream + note("mlp_rms", block.mlp(block.norm2(stream)))
        note("residual_rms", stream)
    logits = model.final_norm(stream) @ model.head.weight.T
    F.cross_entropy(logits.flatten(0, 1), y.flatten()).backward()

    def norm(*prefixes: str) -> float:
        found = [p.grad for name, p in model.named_parameters() if name.startswith(prefixes)]
        return math.sqrt(sum(float(g.double().square().sum()) for g in found if g is not None))

    sizes["grad_norm"] = [norm(f"blocks.{i}.") for i in range(len(model.blocks))]
    return sizes | {"embedding_grad_norm": [norm("token_embedding", "position_embedding")]}


@pytest.mark.parametrize("tied", [True, False])
def test_numbers_equal_an_independent_computation(tied: bool) -> None:
    cfg = tiny(model__tied=tied, model__n_layer=3, model__dropout=0.3)
    model = build_model(cfg.model, 5).train()
    x, y = diagnostics.probe_batch(corpus(), 16, torch.device("cpu"))
    expected = by_hand(model, x, y)
    found = diagnostics.layer_statistics(model, x, y)
    assert set(found._fields) == expected.keys()
    for key, values in expected.items():
        value = getattr(found, key)
        ours = value if isinstance(value, list) else [value]
        assert ours == pytest.approx(values, rel=1e-4), key
    assert len(found.residual_rms) == 4


@pytest.mark.parametrize("name", QUICK)
def test_every_kind_of_model_is_seen_through(name: str) -> None:
    model, x, y = of_kind(name), some_tokens(2, 8), some_tokens(2, 8, seed=1)
    found = diagnostics.layer_statistics(model, x, y)
    model.eval()(x, y).mean().backward()
    stream = model.embed(x)
    sizes = [diagnostics.root_mean_square(stream).item()]
    for block in model.blocks:
        stream = block(stream)
        sizes.append(diagnostics.root_mean_square(stream).item())

    def norm(module: torch.nn.Module | None) -> list[torch.Tensor]:
        return (
            []
            if module is None
            else [p.grad.flatten() for p in module.parameters() if p.grad is not None]
        )

    tables = [*norm(model.token_embedding), *norm(model.position_embedding)]
    assert found.residual_rms == pytest.approx(sizes, rel=1e-4)
    assert found.grad_norm == pytest.approx(
        [torch.cat(norm(block)).norm().item() for block in model.blocks], rel=1e-4
    )
    assert found.embedding_grad_norm == pytest.approx(torch.cat(tables).norm().item(), rel=1e-4)
    assert all(
        len(sizes) == len(model.blocks) and min(sizes) > 0
        for sizes in (found.attn_rms, found.mlp_rms)
    )


def test_post_norm_streams_are_seen_after_their_norms() -> None:
    model = build_model(tiny(model__norm_placement="post").model, 5)
    found = diagnostics.layer_statistics(
        model, *diagnostics.probe_batch(corpus(), 16, torch.device("cpu"))
    )
    assert found.residual_rms[1:] == pytest.approx([1.0, 1.0], rel=1e-2)


def test_a_look_leaves_no_trace_on_gradients_hooks_mode_and_random_stream() -> None:
    trainer = Trainer(tiny(model__dropout=0.4), corpus())
    trainer.advance()
    for parameter in trainer.parameters:
        parameter.grad = torch.full_like(parameter, 0.25)
    kept = copy.deepcopy(trainer.state_dict())
    random_before = torch.random.get_rng_state()
    diagnostics.layer_statistics(
        trainer.model, *diagnostics.probe_batch(corpus(), 16, torch.device("cpu"))
    )
    assert torch.equal(torch.random.get_rng_state(), random_before)
    assert all(bool((p.grad == 0.25).all()) for p in trainer.parameters)
    assert trainer.model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in trainer.model.modules())
    now = trainer.state_dict()
    assert now["sums"] == kept["sums"]
    assert all(torch.equal(now["model"][name], tensor) for name, tensor in kept["model"].items())


def test_the_probe_batch_is_one_for_all_arms_and_bounded() -> None:
    x, y = diagnostics.probe_batch(corpus(), 16, torch.device("cpu"))
    again, _ = diagnostics.probe_batch(corpus(), 16, torch.device("cpu"))
    assert x.shape == y.shape == (8, 16)
    assert torch.equal(x, again)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert diagnostics.probe_batch(corpus(), 3000, torch.device("cpu"))[0].shape == (1, 3000)
