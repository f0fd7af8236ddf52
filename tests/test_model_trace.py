"""A traced token's numbers against the same model computed by hand, for every placement and every
residual.
"""

from dataclasses import asdict
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from andrea.model import registry
from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT, build_model
from andrea.model.placements import Placement
from andrea.model.registry import VARIANTS, register
from andrea.model.trace import Trace, trace

SMALL = {"vocab_size": 17, "context": 9, "d_model": 12, "n_layer": 3, "n_head": 3, "init_std": 0.3}
ARMS = [
    (placement, residual)
    for placement, residual in product(VARIANTS["norm_placement"], VARIANTS["residual"])
    if residual == "on" or placement != "deepnorm"
]
ON_THE_STREAM = ("post", "deepnorm")
TEXT = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5])


def model_of(placement: str = "pre", residual: str = "on", seed: int = 3, **changes: Any) -> GPT:
    """A model in float64 whose gains of branches, norms and biases are not what they start as."""
    cfg = ModelConfig(**{**SMALL, "norm_placement": placement, "residual": residual, **changes})
    model = build_model(cfg, seed).double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.4 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
    return model


def by_hand(model: GPT) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """The stream [T, C] before the first block and after every block; what every sublayer started
    from, read, added.
    """
    cfg = model.config
    x = model.embed(TEXT[None])
    streams, parts = [x[0]], []
    for block in model.blocks:
        start = x
        for i, sublayer in ((1, block.attn), (2, block.mlp)):
            norm = getattr(block, f"norm{i}", getattr(block, "norm1", nn.Identity()))
            source = start if cfg.norm_placement.startswith("parallel") else x
            before_it = cfg.norm_placement in ("pre", "sandwich", "parallel", "parallel_two")
            read = norm(source) if before_it else source
            branch = sublayer(read)
            if cfg.norm_placement == "sandwich":
                branch = getattr(block, f"after{i}")(branch)
            if cfg.norm_placement == "res_post":
                branch = norm(branch)
            join = getattr(block, f"join{i}")
            branch = {
                "rezero": lambda f, join=join: join.alpha * f,
                "layerscale": lambda f, join=join: join.gamma * f,
                "scaled": lambda f, join=join: f / (2 * cfg.n_layer) ** 0.5,
            }.get(cfg.residual, lambda f: f)(branch)
            # Beside attention the MLP has nothing left to replace.
            replaced = cfg.residual == "off" and not (
                i == 2 and cfg.norm_placement.startswith("parallel")
            )
            weight = (2 * cfg.n_layer) ** 0.25 if cfg.norm_placement == "deepnorm" else 1.0
            after = branch if replaced else weight * x + branch
            after = norm(after) if cfg.norm_placement in ON_THE_STREAM else after
            part = {"before": x, "source": source, "read": read, "added": branch, "after": after}
            parts.append({name: value[0] for name, value in part.items()})
            x = after
        streams.append(x[0])
    return streams, parts


def norm(x: Tensor) -> float:
    return float(x.square().sum().sqrt())


@pytest.mark.parametrize(("placement", "residual"), ARMS)
@torch.no_grad()
def test_what_is_traced_is_what_the_layers_computed_by_hand(placement: str, residual: str) -> None:
    model, place = model_of(placement, residual), 5
    streams, parts = by_hand(model)
    found = trace(model, TEXT, place)
    assert len(found.steps) == len(parts) == 6
    way = streams[-1][place] - streams[0][place]
    for step, part in zip(found.steps, parts, strict=True):
        at = {name: value[place] for name, value in part.items()}
        for name in ("before", "source", "read", "added", "after"):
            assert getattr(step, name) == pytest.approx(norm(at[name]), rel=1e-10, abs=1e-12), name
        change = at["after"] - at["before"]
        assert step.change == pytest.approx(norm(change), rel=1e-10)
        assert step.moved == pytest.approx(norm(change - at["added"]), rel=1e-10, abs=1e-9)
        cosine = float(at["source"] @ at["added"]) / norm(at["source"]) / norm(at["added"])
        assert step.cosine == pytest.approx(cosine, abs=1e-10)
        assert step.share == pytest.approx(float(at["added"] @ way / (way @ way)), abs=1e-10)
    assert [(step.block, step.sublayer) for step in found.steps] == list(
        product((1, 2, 3), ("attn", "mlp"))
    )
    assert sum(step.share + step.moved_share for step in found.steps) == pytest.approx(1, abs=1e-10)
    assert found.stream == pytest.approx(norm(streams[-1][place]), rel=1e-10)


@pytest.mark.parametrize(("placement", "residual"), [arm for arm in ARMS if arm[1] != "off"])
@torch.no_grad()
def test_embedding_and_branches_add_up_to_the_last_stream_where_no_norm_stands_on_it(
    placement: str, residual: str
) -> None:
    model = model_of(placement, residual)
    streams, parts = by_hand(model)
    found = trace(model, TEXT, 7)
    if placement in ON_THE_STREAM:
        assert all(step.moved > 0.01 for step in found.steps)
        return
    assert all(step.moved == 0 for step in found.steps)
    whole = streams[0][7] + sum(part["added"][7] for part in parts)
    torch.testing.assert_close(whole, streams[-1][7], atol=1e-10, rtol=0)
    assert norm(whole) == pytest.approx(found.stream, abs=1e-10)


@torch.no_grad()
def test_without_skips_a_branch_removes_the_whole_stream() -> None:
    found = trace(model_of("pre", "off"), TEXT, 4)
    for step in found.steps:
        assert step.moved == pytest.approx(step.before, rel=1e-10) and step.added == pytest.approx(
            step.after
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "rope", "n_kv_head": 1, "qk_norm": "head"},
        {"positions": "alibi", "window": 3, "embedding_norm": True, "norm": "rmsnorm"},
        {
            "positions": "sinusoidal",
            "embedding_scale": "sqrt_d",
            "tied": False,
            "logit_softcap": 5.0,
        },
        {"norm_placement": "none", "init": "mup", "mup_base": 6},
    ],
    ids=["gqa", "window", "untied", "mup"],
)
@torch.no_grad()
def test_the_lens_is_the_head_at_every_depth_and_at_the_last_the_models_own_answer(
    changes: dict[str, Any],
) -> None:
    model = model_of(
        changes.get("norm_placement", "pre"),
        **{k: v for k, v in changes.items() if k != "norm_placement"},
    )
    found = trace(model, TEXT, 5, top=17)
    logits = model(TEXT[None])[0, 5]
    streams, _ = by_hand(model)
    for depth, stream in zip(found.lens, streams, strict=True):
        expected = model.unembed(stream[None])[0, 5].softmax(-1)
        told = {guess.token: guess.probability for guess in depth.guesses}
        assert [told[token] for token in range(17)] == pytest.approx(expected.tolist(), abs=1e-10)
        assert [guess.token for guess in depth.guesses] == expected.argsort(
            descending=True
        ).tolist()
        assert depth.probability == pytest.approx(float(expected[TEXT[6]]), abs=1e-10)
        assert depth.guesses[depth.rank - 1].token == TEXT[6] == found.target
    assert found.lens[-1].guesses[0].token == int(logits.argmax())
    assert found.lens[-1].guesses[0].probability == pytest.approx(
        float(logits.softmax(-1).max()), abs=1e-10
    )
    assert (found.normed is None) == (not model.config.has_final_norm)


@torch.no_grad()
def test_the_embedding_is_told_as_its_two_tables_scaled() -> None:
    model = model_of(embedding_scale="sqrt_d")
    start = trace(model, TEXT, 2).start
    assert start.token == pytest.approx(12**0.5 * norm(model.token_embedding.weight[4]), rel=1e-10)
    assert start.position == pytest.approx(norm(model.position_embedding.weight[2]), rel=1e-10)
    assert start.after == pytest.approx(norm(model.embed(TEXT[None])[0, 2]), rel=1e-10)
    assert trace(model_of(positions="rope"), TEXT, 2).start.position is None


def test_tracing_drops_nothing_out_and_leaves_the_model_as_it_was() -> None:
    model = model_of(dropout=0.5).train()
    first, second = trace(model, TEXT, 3), trace(model, TEXT, 3)
    assert first == second == trace(model.eval(), TEXT, 3)
    model.train()
    trace(model, TEXT, 3)
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_last_token_has_nothing_to_be_compared_with() -> None:
    found = trace(model_of(), TEXT, 8)
    assert found.target is None and found.lens[0].rank is None and found.lens[0].probability is None


class Alone(nn.Module):
    """A user's block that has no more than a forward and its sublayers."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.attn, self.mlp = nn.Identity(), nn.Linear(cfg.d_model, cfg.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(x)


class Owned(Placement):
    """A placement that builds it."""

    @classmethod
    def build(cls, cfg: ModelConfig) -> nn.Module:
        return Alone(cfg)


def test_a_block_that_does_not_say_its_stages_is_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {axis: dict(names) for axis, names in registry.VARIANTS.items()}
    monkeypatch.setattr(registry, "VARIANTS", known)
    register("norm_placement", "alone", f"{__name__}:Owned")
    with torch.random.fork_rng(devices=[]):
        model = GPT(ModelConfig(**{**SMALL, "norm_placement": "alone"})).double()
    found = trace(model, TEXT, 5)
    assert [step.sublayer for step in found.steps] == ["block"] * 3
    assert all(
        step.read is None and step.moved == 0 and step.added == step.change for step in found.steps
    )


def deep(**changes: Any) -> Trace:
    """A fresh model of GPT-2's depth."""
    shape = {"vocab_size": 64, "context": 32, "d_model": 96, "n_layer": 12, "n_head": 4}
    return trace(build_model(ModelConfig(**{**shape, **changes}), 1), torch.arange(32), 31)


def test_a_fresh_models_branches_are_small_and_smaller_by_the_depth_than_unscaled_ones() -> None:
    """GPT-2's residual projections start 1/√(2L) smaller; at its 0.02 a branch is a fraction of the
    stream.
    """
    found = deep()
    assert all(step.added < 0.35 * step.before for step in found.steps)
    unscaled = deep(residual="scaled")
    plain = [step.added / step.before for step in found.steps]
    scaled = [step.added / step.before for step in unscaled.steps]
    assert plain[0] / scaled[0] == pytest.approx(24**0.5, rel=0.01)


@pytest.mark.parametrize(
    "changes", [{"init": "zero_out"}, {"residual": "rezero"}], ids=["zero_out", "rezero"]
)
def test_zeroed_branches_make_every_block_the_identity_exactly(changes: dict[str, Any]) -> None:
    found = deep(**changes)
    assert all(step.added == step.change == step.moved == 0 for step in found.steps)
    assert found.stream == found.start.after and found.carried == pytest.approx(1)
    assert all(step.share is None and step.cosine is None for step in found.steps)
    assert len({depth.guesses for depth in found.lens}) == 1


def test_a_trace_is_plain_data() -> None:
    found = asdict(trace(model_of(), TEXT, 3))
    assert isinstance(found["steps"][0], dict) and isinstance(
        found["lens"][0]["guesses"][0]["probability"], float
    )
