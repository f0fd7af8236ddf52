"""What every arm's model does: causal, independent over the batch, differentiable, tied for ever, at any size."""

import copy
import io
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from andrea.model.config import VARIANTS, ModelConfig
from andrea.model.gpt import GPT, build_model

SMALL = {"vocab_size": 13, "context": 8, "d_model": 12, "n_layer": 2, "n_head": 3, "init_std": 0.3}
ARMS = list(product(VARIANTS["norm_placement"], VARIANTS["activation"]))


def arm(placement: str, activation: str, seed: int = 2, **changes: Any) -> GPT:
    return build_model(ModelConfig(**{**SMALL, "norm_placement": placement, "activation": activation, **changes}), seed)


def some_tokens(*shape: int, seed: int = 0, vocab_size: int = 13) -> Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("placement", "activation"), ARMS)
def test_no_position_sees_a_later_token_and_each_sees_all_earlier_ones(placement: str, activation: str) -> None:
    model, tokens = arm(placement, activation), some_tokens(1, 8)
    before = model(tokens)
    for position in range(8):
        changed = tokens.clone()
        changed[0, position] = (changed[0, position] + 1) % 13
        moved = (model(changed) - before).abs().amax(dim=(0, 2)) > 1e-5
        assert not moved[:position].any()
        assert moved[position:].all()


@pytest.mark.parametrize(("placement", "activation"), ARMS)
def test_a_sequence_gets_the_same_logits_alone_in_a_batch_and_as_a_prefix(placement: str, activation: str) -> None:
    model, tokens = arm(placement, activation), some_tokens(5, 8, seed=1)
    together = model(tokens)
    for row in range(5):
        torch.testing.assert_close(model(tokens[row : row + 1])[0], together[row], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(tokens[:, :3]), together[:, :3], atol=1e-5, rtol=1e-5)


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


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(ValueError, match="9 tokens do not fit into a context of 8"):
        arm("pre", "gelu")(some_tokens(1, 9))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(("placement", "activation"), ARMS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_replicas_stacked_by_vmap_have_the_losses_and_gradients_of_solo_runs(
    placement: str, activation: str, tied: bool
) -> None:
    replicas = [arm(placement, activation, seed, tied=tied) for seed in (1, 2)]
    tokens, targets = some_tokens(2, 3, 8), some_tokens(2, 3, 8, seed=1)
    stacked, _ = stack_module_state(replicas)  # type: ignore[arg-type]
    skeleton = copy.deepcopy(replicas[0]).to("meta")

    losses = vmap(lambda p, x, y: functional_call(skeleton, p, (x, y)))(stacked, tokens, targets)
    losses.sum().backward()
    for index, model in enumerate(replicas):
        solo = model(tokens[index], targets[index])
        solo.sum().backward()
        torch.testing.assert_close(losses[index], solo, atol=1e-5, rtol=1e-5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(stacked[name].grad[index], parameter.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("placement", "activation"), [("pre", "gelu_tanh"), ("post", "gelu_tanh"), ("pre", "swiglu"), ("post", "gelu")]
)
def test_gradients_are_those_of_finite_differences(placement: str, activation: str) -> None:
    shape = {"vocab_size": 5, "context": 3, "d_model": 4, "n_layer": 1, "n_head": 2, "mlp_ratio": 1.5}
    model = arm(placement, activation, **shape).double()
    tokens, targets = some_tokens(2, 3, vocab_size=5), some_tokens(2, 3, seed=1, vocab_size=5)
    names = [name for name, _ in model.named_parameters()]

    def loss(*weights: Tensor) -> Tensor:
        output: Tensor = functional_call(model, dict(zip(names, weights, strict=True)), (tokens, targets))
        return output

    assert torch.autograd.gradcheck(loss, [p.detach().requires_grad_() for p in model.parameters()])


def tied_after(model: GPT) -> bool:
    same = model.head.weight is model.token_embedding.weight
    return same and sum(name.startswith("head") for name, _ in model.named_parameters()) == 0


@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
def test_s8_a_tied_head_shares_its_storage_after_every_way_of_loading(assign: bool) -> None:
    source = arm("pre", "gelu", seed=5)
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    loaded = arm("pre", "gelu", seed=6)
    loaded.load_state_dict(torch.load(file, weights_only=True), assign=assign)
    tokens = some_tokens(2, 8)
    assert torch.equal(loaded(tokens), source(tokens))
    assert tied_after(loaded) and tied_after(copy.deepcopy(loaded)) and tied_after(copy.deepcopy(loaded).double())
    assert tied_after(copy.deepcopy(loaded).to("meta").to_empty(device="cpu"))


def test_an_untied_head_stays_apart_after_a_load() -> None:
    source, loaded = arm("pre", "gelu", 5, tied=False), arm("pre", "gelu", 6, tied=False)
    loaded.load_state_dict(source.state_dict())
    assert loaded.head.weight.data_ptr() != loaded.token_embedding.weight.data_ptr()
    assert torch.equal(loaded.head.weight, source.head.weight)


SIZES = [
    {"d_model": 1, "n_head": 1, "context": 1, "vocab_size": 1, "n_layer": 1, "mlp_ratio": 0.1},
    {"d_model": 1, "n_head": 1, "context": 3, "vocab_size": 2},
    {"d_model": 7, "n_head": 7, "context": 5, "vocab_size": 3, "mlp_ratio": 2.3},
    {"d_model": 33, "n_head": 3, "context": 1, "vocab_size": 257},
    {"d_model": 31, "n_head": 1, "context": 17, "vocab_size": 11, "n_layer": 1},
]


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes.values())))
@pytest.mark.parametrize(("placement", "activation"), ARMS)
def test_sizes_of_one_and_odd_sizes_work(placement: str, activation: str, sizes: dict[str, Any]) -> None:
    model = arm(placement, activation, **sizes)
    tokens = some_tokens(2, sizes["context"], vocab_size=sizes["vocab_size"])
    loss = model(tokens, tokens)
    loss.mean().backward()
    assert loss.shape == tokens.shape and loss.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


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


@pytest.mark.parametrize(("placement", "activation"), ARMS)
def test_the_model_compiles_without_a_graph_break(placement: str, activation: str) -> None:
    model, tokens = arm(placement, activation), some_tokens(2, 8)
    torch.compiler.reset()  # compiled code of other models counts against a limit
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(tokens, tokens), model(tokens, tokens))


def test_s6_a_second_model_in_a_process_equals_the_first() -> None:
    tokens = some_tokens(2, 8)
    first = arm("post", "swiglu")(tokens)
    arm("pre", "relu", seed=9)(tokens, tokens).sum().backward()
    assert torch.equal(first, arm("post", "swiglu")(tokens))


def test_parameters_have_the_names_that_other_rooms_rely_on() -> None:
    names = {name for name, _ in arm("pre", "swiglu").named_parameters()}
    parts = ("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.up", "mlp.gate", "mlp.down")
    blocks = {f"blocks.{i}.{part}.{kind}" for i in range(2) for part in parts for kind in ("weight", "bias")}
    tables = {"token_embedding.weight", "position_embedding.weight", "final_norm.weight", "final_norm.bias"}
    assert names == blocks | tables
