"""What every model does, whatever it is made of: causal, independent over the batch, the same
twice, at any size.
"""

import copy
from typing import Any

import pytest
import torch
from model_zoo import NAMES, QUICK, config, model, some_tokens, stir
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional as F

from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT, build_model
from andrea.model.registry import VARIANTS

SMALL = {"vocab_size": 13, "context": 8, "d_model": 12, "n_layer": 2, "n_head": 3, "init_std": 0.3}


def arm(placement: str, activation: str, seed: int = 2, **changes: Any) -> GPT:
    return build_model(
        ModelConfig(**{**SMALL, "norm_placement": placement, "activation": activation, **changes}),
        seed,
    )


def reach(cfg: ModelConfig) -> int:
    """How many positions further on a token still tells."""
    windows = [cfg.at_layer(i).window or cfg.context for i in range(cfg.n_layer)]
    return min(cfg.context, sum(window - 1 for window in windows))


@pytest.mark.parametrize("name", NAMES)
def test_no_position_sees_a_later_token_and_each_sees_all_earlier_ones_in_its_reach(
    name: str,
) -> None:
    cfg, built, tokens = config(name), model(name).double(), some_tokens(1, 8)
    changed = tokens.repeat(9, 1)
    changed[range(8), range(8)] = (changed[range(8), range(8)] + 1) % 13
    *after, before = built(changed)
    for position, logits in enumerate(after):
        moved = ((logits - before).abs().amax(dim=1) > 1e-10).tolist()
        last = position + reach(cfg)
        assert moved == [position <= t <= last for t in range(8)], position


def test_windows_reach_as_far_as_the_blocks_carry_and_no_further() -> None:
    assert [
        reach(config("window", n_layer=n, window=w)) for n, w in ((1, 2), (2, 3), (3, 3), (5, 3))
    ] == [1, 4, 6, 8]
    assert reach(config("window, every second")) == 8


@pytest.mark.parametrize("name", QUICK)
def test_a_sequence_gets_the_same_logits_alone_in_a_batch_and_as_a_prefix(name: str) -> None:
    built, tokens = model(name), some_tokens(5, 8, seed=1)
    together = built(tokens)
    for row in range(5):
        torch.testing.assert_close(
            built(tokens[row : row + 1])[0], together[row], atol=1e-5, rtol=1e-5
        )
    torch.testing.assert_close(built(tokens[:, :3]), together[:, :3], atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings(
    "ignore:Mismatch dtype between input and weight"
)  # of a norm of bfloat16 queries
@pytest.mark.parametrize("name", QUICK)
def test_the_same_seed_gives_the_same_bits_and_in_half_precision_nearly_the_same_loss(
    name: str,
) -> None:
    tokens, targets = some_tokens(2, 8), some_tokens(2, 8, seed=1)
    built = model(name)
    loss = built(tokens, targets)
    assert torch.equal(loss, model(name)(tokens, targets))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = built(tokens, targets)
    half.mean().backward()
    assert half.dtype == torch.float32
    assert all(p.grad is not None and p.grad.isfinite().all() for p in built.parameters())
    torch.testing.assert_close(half.mean(), loss.mean(), atol=0.03, rtol=0.02)


def test_the_loss_is_the_cross_entropy_of_every_token_and_is_not_reduced() -> None:
    model, tokens, targets = arm("pre", "gelu"), some_tokens(3, 8), some_tokens(3, 8, seed=1)
    log_probabilities = model(tokens).double().log_softmax(-1)
    expected = -log_probabilities.gather(-1, targets[..., None])[..., 0]
    loss = model(tokens, targets)
    assert loss.shape == (3, 8) and loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, atol=1e-5, rtol=1e-5)
    targets[1, 2] = -100
    assert model(tokens, targets)[1, 2] == 0


def test_the_loss_is_float32_in_bfloat16_too() -> None:
    model, tokens = arm("pre", "swiglu"), some_tokens(2, 8)
    assert copy.deepcopy(model).bfloat16()(tokens, tokens).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(tokens, tokens)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, model(tokens, tokens), atol=0.3, rtol=0.05)


@pytest.mark.filterwarnings(
    "ignore:Mismatch dtype between input and weight"
)  # of a norm of bfloat16 branches
@pytest.mark.parametrize("residual", VARIANTS["residual"])
@pytest.mark.parametrize("norm", VARIANTS["norm"])
def test_under_autocast_the_stream_is_float32_wherever_the_norm_stands_and_without_skip_a_branch(
    norm: str, residual: str
) -> None:
    """So no arm carries a coarser stream than another: what `off` hands on was rounded in the other
    arms too.
    """
    for placement in VARIANTS["norm_placement"]:
        try:
            cfg = config("norm layernorm", norm=norm, norm_placement=placement, residual=residual)
        except ValidationError:
            continue
        built, seen = build_model(cfg), set()
        built.blocks[1].register_forward_pre_hook(
            lambda block, inputs, seen=seen: seen.add(inputs[0].dtype)
        )
        with torch.autocast("cpu", dtype=torch.bfloat16):
            built(some_tokens(2, 8))
        assert seen <= {torch.float32} or residual == "off", placement


def test_under_autocast_a_cap_of_logits_rounds_nothing_further() -> None:
    built, tokens, heads = model("cap of logits"), some_tokens(2, 8), []
    built.head.register_forward_hook(lambda head, inputs, output: heads.append(output))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = built(tokens)
    assert heads[0].dtype == torch.bfloat16
    torch.testing.assert_close(
        logits.double(), 2 * torch.tanh(heads[0].double() / 2), atol=1e-6, rtol=1e-6
    )


def test_under_autocast_a_cap_of_scores_rounds_only_the_products() -> None:
    attention: Any = model("cap of scores", attn_softcap=50.0, head_dim=64).blocks[0].attn
    generator = torch.Generator().manual_seed(0)
    q, k, v = (2 * torch.randn(4, 4, 64, 64, generator=generator).bfloat16() for _ in "qkv")
    scores = 50 * torch.tanh((q @ k.transpose(2, 3)).double() / 8 / 50)
    weights = scores.masked_fill(~torch.ones(64, 64, dtype=torch.bool).tril(), -torch.inf).softmax(
        -1
    )
    expected = weights @ v.double()
    assert (attention._attend(q, k, v).double() - expected).norm() < 0.004 * expected.norm()


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(ValueError, match="9 tokens do not fit into a context of 8"):
        arm("pre", "gelu")(some_tokens(1, 9))


def test_the_z_loss_moves_the_gradient_as_its_formula_says_and_no_loss_that_is_told() -> None:
    with_z, without = model("z-loss"), model("norm_placement pre")
    tokens, targets = some_tokens(3, 8), some_tokens(3, 8, seed=1).clone()
    targets[1, 2:] = -100
    assert torch.equal(with_z(tokens, targets), without(tokens, targets))
    with_z(tokens, targets).sum().backward()
    logits = without(tokens)
    square = logits.logsumexp(-1).square()[targets >= 0].sum()
    (
        F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") + 0.1 * square
    ).backward()
    for (name, one), other in zip(with_z.named_parameters(), without.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-4, msg=name)
    evaluated = model("z-loss").eval()
    evaluated(tokens, targets).sum().backward()
    assert not torch.allclose(evaluated.head.weight.grad, with_z.head.weight.grad)  # type: ignore[arg-type]


SIZES = [
    {"d_model": 1, "n_head": 1, "context": 1, "vocab_size": 1, "n_layer": 1, "mlp_ratio": 0.1},
    {"d_model": 1, "n_head": 1, "context": 3, "vocab_size": 2},
    {"d_model": 7, "n_head": 7, "context": 5, "vocab_size": 3, "mlp_ratio": 2.3},
    {"d_model": 33, "n_head": 3, "context": 1, "vocab_size": 257},
    {"d_model": 31, "n_head": 1, "context": 17, "vocab_size": 11, "n_layer": 1},
]


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes.values())))
def test_sizes_of_one_and_odd_sizes_work_or_are_refused(sizes: dict[str, Any]) -> None:
    worked = []
    for name in NAMES:
        try:
            built = stir(build_model(config(name, **sizes)))
        except ValidationError:
            continue
        tokens = some_tokens(2, sizes["context"], vocab_size=sizes["vocab_size"])
        loss = built(tokens, tokens)
        loss.mean().backward()
        assert loss.shape == tokens.shape and loss.isfinite().all(), name
        assert all(p.grad is not None and p.grad.isfinite().all() for p in built.parameters()), name
        worked.append(name)
    assert len(worked) > len(NAMES) / 2


def test_dropout_follows_the_seeded_generator_and_is_off_in_evaluation() -> None:
    model, tokens = arm("pre", "gelu", dropout=0.3), some_tokens(2, 8)

    def drawn(seed: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            output: Tensor = model(tokens)
            return output

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    model.eval()
    assert torch.equal(drawn(1), drawn(2))
    torch.testing.assert_close(drawn(1), arm("pre", "gelu")(tokens))


def test_a_second_model_in_a_process_equals_the_first() -> None:
    tokens = some_tokens(2, 8)
    first = arm("post", "swiglu")(tokens)
    arm("pre", "relu", seed=9)(tokens, tokens).sum().backward()
    assert torch.equal(first, arm("post", "swiglu")(tokens))


def test_parameters_have_the_names_that_other_rooms_rely_on() -> None:
    names = {name for name, _ in arm("pre", "swiglu").named_parameters()}
    parts = ("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.up", "mlp.gate", "mlp.down")
    blocks = {
        f"blocks.{i}.{part}.{kind}"
        for i in range(2)
        for part in parts
        for kind in ("weight", "bias")
    }
    tables = {
        "token_embedding.weight",
        "position_embedding.weight",
        "final_norm.weight",
        "final_norm.bias",
    }
    assert names == blocks | tables


def test_parameters_stand_in_the_order_in_which_older_runs_summed_their_gradients_norms() -> None:
    """Another order clips by other bits under the same run id."""
    model = build_model(
        ModelConfig(vocab_size=5, context=2, d_model=4, n_head=2, n_layer=1, bias=False)
    )
    inside = [
        f"blocks.0.{part}.weight"
        for part in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.up", "mlp.down")
    ]
    tables = ["token_embedding.weight", "position_embedding.weight"]
    assert [name for name, _ in model.named_parameters()] == [*tables, *inside, "final_norm.weight"]
