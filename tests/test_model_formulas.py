"""Parts of the model against their papers' formulas, written down again here in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from andrea.model.config import ModelConfig
from andrea.model.norms import build_norm
from andrea.model.registry import VARIANTS, variant

D, H, T = 24, 4, 20
SMALL: dict[str, Any] = {"vocab_size": 11, "context": T, "d_model": D, "n_layer": 3, "n_head": H}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stirred(module: torch.nn.Module) -> torch.nn.Module:
    """With parameters that are all different."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(0.7 + 0.3 * normal(*parameter.shape, seed=i))
    return module


def norm_by_hand(name: str, x: Tensor, p: dict[str, Tensor], eps: float) -> Tensor:
    if name == "layernorm":
        centred = x - x.mean(-1, keepdim=True)
        return (
            centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * p["weight"]
            + p["bias"]
        )
    if name.startswith("rmsnorm"):
        gain = 1 + p["offset"] if name == "rmsnorm_1p" else p["weight"]
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain
    if name == "dyt":
        return torch.tanh(p["alpha"] * x) * p["weight"] + p["bias"]
    assert name == "identity"
    return x


@pytest.mark.parametrize("eps", [1e-5, 0.3])
@pytest.mark.parametrize("name", VARIANTS["norm"])
def test_norms_are_their_formulas(name: str, eps: float) -> None:
    reads = "norm_eps" in variant("norm", name).reads
    module = stirred(
        build_norm(ModelConfig(**SMALL, norm=name, **({"norm_eps": eps} if reads else {})))
    )
    x = 3 * normal(5, 7, D) + 0.5
    parameters = {key: value.detach().double() for key, value in module.named_parameters()}
    expected = norm_by_hand(name, x.double(), parameters, eps)
    torch.testing.assert_close(module(x).double(), expected, atol=2e-6, rtol=2e-6)


GATES = {
    "swiglu": lambda x: x / (1 + (-x).exp()),
    "geglu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "geglu_tanh": lambda x: (
        0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "reglu": lambda x: x * (x > 0),
    "bilinear": lambda x: x,
    "glu": lambda x: 1 / (1 + (-x).exp()),
}
PLAIN = {
    "silu": GATES["swiglu"],
    "gelu": GATES["geglu"],
    "gelu_tanh": GATES["geglu_tanh"],
    "relu": GATES["reglu"],
    "relu2": lambda x: (x * (x > 0)) ** 2,
}


@pytest.mark.parametrize("name", VARIANTS["activation"])
def test_mlps_are_their_formulas(name: str) -> None:
    module = stirred(
        variant("activation", name).build(ModelConfig(**SMALL, activation=name, mlp_width=10))
    )
    p = {key: value.detach().double() for key, value in module.named_parameters()}
    x = normal(3, 5, D)

    def through(layer: str, h: Tensor) -> Tensor:
        return h @ p[f"{layer}.weight"].T + p[f"{layer}.bias"]

    read = x.double()
    hidden = (
        GATES[name](through("gate", read)) * through("up", read)
        if name in GATES
        else PLAIN[name](through("up", read))
    )
    torch.testing.assert_close(module(x).double(), through("down", hidden), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", VARIANTS["residual"])
def test_joins_are_their_formulas(name: str) -> None:
    module = stirred(variant("residual", name).build(ModelConfig(**SMALL, residual=name)))
    p = {key: value.detach().double() for key, value in module.named_parameters()}
    x, f = normal(2, 3, D), normal(2, 3, D, seed=1)
    stream, branch = x.double(), f.double()
    expected = {
        "on": stream + branch,
        "off": branch,
        "rezero": stream + p.get("alpha", 0) * branch,
        "layerscale": stream + p.get("gamma", 0) * branch,
        "scaled": stream + branch / math.sqrt(2 * 3),
    }[name]
    torch.testing.assert_close(module(x, f).double(), expected, atol=1e-6, rtol=1e-6)


def test_sinusoidal_positions_are_the_formula_of_vaswani() -> None:
    """PE(t, 2i) = sin(t / 10000^(2i/d)), PE(t, 2i + 1) = cos of the same; an odd width ends with a
    sine.
    """
    for width in (D, 9):
        cfg = ModelConfig(
            **{**SMALL, "d_model": width, "n_head": 3, "context": 300, "positions": "sinusoidal"}
        )
        table = variant("positions", "sinusoidal").build(cfg)(300).double()
        for t in (0, 1, 7, 299):
            for channel in range(width):
                angle = t / 10_000 ** (2 * (channel // 2) / width)
                expected = math.cos(angle) if channel % 2 else math.sin(angle)
                assert table[t, channel].item() == pytest.approx(expected, abs=3e-5)


def rope(**changes: Any) -> Any:
    return variant("positions", "rope").inside(
        ModelConfig(**{**SMALL, "positions": "rope", **changes})
    )


@pytest.mark.parametrize(
    "changes", [{}, {"rope_fraction": 0.5, "head_dim": 8}, {"rope_base": 100}], ids=str
)
def test_with_rope_scores_depend_on_the_distance_alone(changes: dict[str, Any]) -> None:
    """One query and one key at every position: score[t, s] is a function of t − s, and not a
    constant one.
    """
    inside = rope(**changes)
    width = changes.get("head_dim", D // H)
    q, k = (
        normal(1, 1, 1, width, seed=seed).expand(1, 1, T, width).contiguous() for seed in (1, 2)
    )
    turned_q, turned_k = inside.rotate(q, k)
    scores = (turned_q @ turned_k.transpose(2, 3))[0, 0]
    for distance in range(T):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=1e-5)
    assert scores[:, 0].std() > 0.1
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1))
    torch.testing.assert_close(turned_q[0, 0, 0], q[0, 0, 0])  # position 0 is not turned


def test_rope_turns_dimension_i_with_i_plus_half_by_its_own_angle() -> None:
    width = D // H
    inside, x = rope(rope_base=100), normal(1, 1, T, width)
    turned = inside.rotate(x, x)[0].double()[0, 0]
    for t in (0, 1, 19):
        for i in range(width // 2):
            angle = t * 100 ** (-2 * i / width)
            a, b = x[0, 0, t, i].item(), x[0, 0, t, i + width // 2].item()
            expected = (
                a * math.cos(angle) - b * math.sin(angle),
                a * math.sin(angle) + b * math.cos(angle),
            )
            assert (turned[t, i].item(), turned[t, i + width // 2].item()) == pytest.approx(
                expected, abs=1e-5
            )


def test_rope_of_half_a_head_leaves_the_other_half() -> None:
    x = normal(1, 2, T, 8)
    turned = rope(head_dim=8, rope_fraction=0.5).rotate(x, x)[1]
    assert torch.equal(turned[..., 4:], x[..., 4:]) and not torch.equal(turned[..., :4], x[..., :4])


SLOPES = {
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
    12: [
        2**-1,
        2**-2,
        2**-3,
        2**-4,
        2**-5,
        2**-6,
        2**-7,
        2**-8,
        2**-0.5,
        2**-1.5,
        2**-2.5,
        2**-3.5,
    ],
    16: [2 ** (-i / 2) for i in range(1, 17)],
}
"""Press et al. 2022, section 3 for 8 and 16 heads; for 12 what their code gives."""


@pytest.mark.parametrize("heads", SLOPES)
def test_alibi_lowers_scores_by_the_papers_slopes_times_the_distance(heads: int) -> None:
    cfg = ModelConfig(**{**SMALL, "d_model": 48, "n_head": heads, "positions": "alibi"})
    bias = variant("positions", "alibi").inside(cfg).bias(6)
    assert bias.shape[0] == heads
    for head, slope in enumerate(SLOPES[heads]):
        for t in range(6):
            for s in range(t + 1):
                assert bias[head, t, s].item() == pytest.approx(-slope * (t - s), rel=1e-6)
