"""What torch does to a model: compile it, stack it, differentiate, save and load it. Every kind of
model bears it.
"""

import copy
import io
from typing import Any

import pytest
import torch
from model_zoo import KNOWN, NAMES, QUICK, model, some_tokens
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from andrea.model.gpt import GPT


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", QUICK)
def test_replicas_stacked_by_vmap_have_the_losses_and_gradients_of_solo_runs(name: str) -> None:
    replicas = [model(name, seed).double() for seed in (1, 2)]
    tokens, targets = some_tokens(2, 3, 8), some_tokens(2, 3, 8, seed=1)
    stacked, buffers = stack_module_state(replicas)  # type: ignore[arg-type]
    skeleton = copy.deepcopy(replicas[0]).to("meta")

    losses = vmap(lambda p, b, x, y: functional_call(skeleton, (p, b), (x, y)))(
        stacked, buffers, tokens, targets
    )
    losses.sum().backward()
    for index, built in enumerate(replicas):
        solo = built(tokens[index], targets[index])
        solo.sum().backward()
        torch.testing.assert_close(losses[index], solo)
        for parameter_name, parameter in built.named_parameters():
            torch.testing.assert_close(stacked[parameter_name].grad[index], parameter.grad)


@pytest.mark.parametrize("name", QUICK)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    built = (
        model(name, context=5, vocab_size=5).double().eval()
    )  # in training, the z-loss is not in the value
    tokens, targets = some_tokens(2, 4, vocab_size=5), some_tokens(2, 4, seed=1, vocab_size=5)
    names = [name for name, _ in built.named_parameters()]

    def loss(*weights: Tensor) -> Tensor:
        output: Tensor = functional_call(
            built, dict(zip(names, weights, strict=True)), (tokens, targets)
        )
        return output

    weights = [p.detach().requires_grad_() for p in built.parameters()]
    assert torch.autograd.gradcheck(loss, weights, fast_mode=True)


@pytest.mark.slow
def test_each_gradient_by_itself_is_that_of_finite_differences() -> None:
    small = {
        "vocab_size": 5,
        "context": 4,
        "d_model": 4,
        "n_layer": 2,
        "n_head": 2,
        "head_dim": 2,
        "mlp_ratio": 1.5,
    }
    built = model("gemma-2", **small).double().eval()
    tokens, targets = some_tokens(2, 4, vocab_size=5), some_tokens(2, 4, seed=1, vocab_size=5)
    names = [name for name, _ in built.named_parameters()]
    weights = [p.detach().requires_grad_() for p in built.parameters()]
    assert torch.autograd.gradcheck(
        lambda *values: functional_call(
            built, dict(zip(names, values, strict=True)), (tokens, targets)
        ),
        weights,
    )


def tied_as_asked(built: GPT) -> bool:
    same = built.head.weight is built.token_embedding.weight
    return (
        same is built.config.tied and ("head.weight" in dict(built.named_parameters())) is not same
    )


@pytest.mark.parametrize("name", [*KNOWN, "untied", "bias of the head", "bias of an untied head"])
@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
def test_a_tied_head_shares_its_storage_after_every_way_of_loading(name: str, assign: bool) -> None:
    source = model(name, seed=5)
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    loaded = model(name, seed=6, stirred=False)
    loaded.load_state_dict(torch.load(file, weights_only=True), assign=assign)
    tokens = some_tokens(2, 8)
    assert torch.equal(loaded(tokens), source(tokens))
    assert (
        tied_as_asked(loaded)
        and tied_as_asked(copy.deepcopy(loaded))
        and tied_as_asked(copy.deepcopy(loaded).double())
    )
    assert tied_as_asked(copy.deepcopy(loaded).to("meta").to_empty(device="cpu"))


def test_an_untied_head_stays_apart_after_a_load() -> None:
    source, loaded = model("untied", 5), model("untied", 6)
    loaded.load_state_dict(source.state_dict())
    assert loaded.head.weight.data_ptr() != loaded.token_embedding.weight.data_ptr()
    assert torch.equal(loaded.head.weight, source.head.weight)


def same_when_compiled(name: str, backend: str) -> None:
    built, tokens = model(name), some_tokens(2, 8)
    torch.compiler.reset()  # compiled code of other models counts against a limit
    compiled: Any = torch.compile(built, fullgraph=True, backend=backend)
    loss, expected = compiled(tokens, tokens), built(tokens, tokens)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
    gradients = torch.autograd.grad(loss.sum(), list(built.parameters()))
    for found, other in zip(
        gradients, torch.autograd.grad(expected.sum(), list(built.parameters())), strict=True
    ):
        torch.testing.assert_close(found, other, atol=1e-4, rtol=1e-3)


SOME = ("gemma-2", "gpt-j", "openai-gpt")


@pytest.mark.parametrize(
    "name", [*SOME, *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n not in SOME)]
)
def test_every_model_compiles_without_a_graph_break(name: str) -> None:
    same_when_compiled(name, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma-2", "bloom"])
def test_compiled_code_computes_what_the_model_does(name: str) -> None:
    same_when_compiled(name, "inductor")
