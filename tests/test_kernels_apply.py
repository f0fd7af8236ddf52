"""A model that uses the kernels against the same model in plain torch."""

import copy
from itertools import product
from typing import Any

import pytest
import torch
from kernels_kit import HOST, kernels_on_cpu, pytestmark  # noqa: F401
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, stack_module_state, vmap

from andrea.kernels.apply import KernelGPT, KernelMLP, install_kernels
from andrea.model.config import ModelConfig
from andrea.model.gpt import GPT, build_model
from andrea.model.registry import VARIANTS

SMALL = {"vocab_size": 13, "context": 8, "d_model": 12, "n_layer": 2, "n_head": 3, "init_std": 0.3}
ARMS = [
    *(
        {"norm_placement": p, "activation": a}
        for p, a in product(("pre", "post"), VARIANTS["activation"])
    ),
    *({"norm_placement": p} for p in VARIANTS["norm_placement"]),
    *({"norm": n} for n in VARIANTS["norm"]),
    *({"residual": r} for r in VARIANTS["residual"]),
    {"norm": "rmsnorm", "norm_placement": "sandwich", "bias": False},
    {"norm_affine": False},
    {"norm_bias": False},
    {"final_norm": False, "head_bias": True, "tied": False},
    {"logit_softcap": 2.0, "z_loss": 1e-2},
    {"embedding_norm": True, "n_layer": 1},
    {"mlp_bias": False, "activation": "swiglu", "qk_norm": "head", "positions": "rope"},
    {"init": "mup", "d_model": 24, "mup_base": 12},
    {"dropout": 0.5},
]


def pair(seed: int = 2, **changes: Any) -> tuple[GPT, GPT]:
    plain = build_model(ModelConfig(**{**SMALL, **changes}), seed)
    kernels = copy.deepcopy(plain)
    install_kernels(kernels)
    return plain, kernels


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(13, shape, generator=torch.Generator().manual_seed(seed))


def steps_of(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses and gradients."""
    torch.manual_seed(1)
    losses = model(x, y)
    found = torch.autograd.grad(losses.mean(), [*model.parameters()])
    return losses, dict(zip((name for name, _ in model.named_parameters()), found, strict=True))


@pytest.mark.parametrize(
    "changes",
    [
        *ARMS[::3],
        *(pytest.param(arm, marks=pytest.mark.slow) for arm in ARMS if arm not in ARMS[::3]),
    ],
    ids=str,
)
def test_losses_logits_and_gradients_are_those_of_plain_torch(changes: dict[str, Any]) -> None:
    plain, kernels = pair(**changes)
    x, y = tokens(3, 8), tokens(3, 8, seed=1)
    y[0, 0] = -100
    for mode in (True, False):
        ours, theirs = steps_of(kernels.train(mode), x, y), steps_of(plain.train(mode), x, y)
        torch.testing.assert_close(ours[0], theirs[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours[1], theirs[1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(kernels(x), plain(x), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(kernels(x, y), plain(x, y), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "changes", [{}, {"norm_placement": "post"}, {"norm": "rmsnorm", "activation": "geglu"}], ids=str
)
def test_under_autocast_losses_are_those_of_plain_torch(changes: dict[str, Any]) -> None:
    plain, kernels = pair(**changes)
    x, y = tokens(3, 8), tokens(3, 8, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = steps_of(kernels, x, y), steps_of(plain, x, y)
    exact = steps_of(plain, x, y)
    torch.testing.assert_close(ours[0], exact[0], atol=0.1, rtol=0)
    far, near = ((found[0] - exact[0]).abs().mean() for found in (theirs, ours))
    assert near < 1.5 * far
    for name, gradient in ours[1].items():
        scale = exact[1][name].abs().max()
        assert (gradient - exact[1][name]).abs().max() < 0.06 * scale + 1e-3, name


def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    launch = HOST.launch
    monkeypatch.setattr(
        HOST, "launch", lambda name, *rest, **kw: (seen.append(name), launch(name, *rest, **kw))
    )
    return seen


def test_a_plain_pre_norm_stack_adds_its_branches_in_the_norms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, kernels = pair()
    assert install_kernels(kernels) == {"loss": 1, "norm": 1, "activation": 2, "add_norm": 4}
    seen = launches(monkeypatch)
    kernels(tokens(2, 8), tokens(2, 8))
    norm, activation = "norm_fwd_ln_f32_f32", "act_fwd_gelu_tanh_plain_f32"
    assert seen == [norm, norm, activation, norm, norm, activation, norm, "ce_f32"]


def test_where_someone_listens_to_the_blocks_they_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, kernels = pair()
    heard: list[Tensor] = []
    expected = kernels(tokens(2, 8), tokens(2, 8))
    handle = kernels.blocks[1].register_forward_pre_hook(
        lambda module, inputs: heard.append(inputs[0])
    )
    assert torch.equal(kernels(tokens(2, 8), tokens(2, 8)), expected) and len(heard) == 1
    handle.remove()
    kernels(tokens(2, 8), tokens(2, 8))
    assert len(heard) == 1


@pytest.mark.parametrize(
    "name",
    [
        "blocks.0.norm1",
        "blocks.1.norm2",
        "blocks.0.join1",
        "blocks.1.join2",
        "blocks.0.dropout",
        "final_norm",
    ],
)
def test_where_someone_listens_to_a_part_that_the_fused_way_passes_by_it_is_called(
    name: str,
) -> None:
    plain, kernels = pair()
    heard: list[Tensor] = []
    for model in (plain, kernels):
        model.get_submodule(name).register_forward_hook(
            lambda module, inputs, output: heard.append(output)
        )
    x, y = tokens(2, 8), tokens(2, 8, seed=1)
    torch.testing.assert_close(kernels(x, y), plain(x, y), atol=1e-5, rtol=1e-5)
    ours, theirs = heard[: len(heard) // 2], heard[len(heard) // 2 :]
    assert len(ours) == len(theirs) > 0 and not kernels.can_fuse_residual_adds()
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_names_states_and_copies_stay_as_they_were() -> None:
    plain, kernels = pair()
    assert [*kernels.state_dict()] == [*plain.state_dict()]
    kernels.load_state_dict(plain.state_dict())
    twin = copy.deepcopy(kernels)
    assert type(twin) is KernelGPT and twin.head.weight is twin.token_embedding.weight
    x, y = tokens(2, 8), tokens(2, 8, seed=1)
    assert torch.equal(twin(x, y), kernels(x, y))


def test_what_is_not_the_models_own_stays_plain() -> None:
    class Mine(nn.GELU):
        pass

    assert install_kernels(nn.Linear(2, 2)) == {}
    other = build_model(ModelConfig(**SMALL))
    other.blocks[0].mlp.activation = Mine()  # type: ignore[union-attr]
    assert install_kernels(other)["activation"] == 1
    assert isinstance(other.blocks[1].mlp, KernelMLP) and not isinstance(
        other.blocks[0].mlp, KernelMLP
    )


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_placement": "post", "activation": "swiglu"},
        {"norm": "rmsnorm", "tied": False, "head_bias": True},
    ],
    ids=str,
)
def test_replicas_stacked_by_vmap_have_the_losses_and_gradients_of_solo_runs(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = [pair(seed, **changes)[1] for seed in (1, 2)]
    x, y = tokens(2, 3, 8), tokens(2, 3, 8, seed=1)
    stacked, _ = stack_module_state(replicas)  # type: ignore[arg-type]
    skeleton = copy.deepcopy(replicas[0]).to("meta")
    seen = launches(monkeypatch)
    losses = vmap(lambda p, x, y: functional_call(skeleton, p, (x, y)))(stacked, x, y)
    assert len(seen) == 8 if not changes else len(seen) <= 8
    losses.sum().backward()
    for index, model in enumerate(replicas):
        solo, gradients = steps_of(model, x[index], y[index])
        torch.testing.assert_close(losses[index], solo, atol=1e-6, rtol=1e-6)
        for name, gradient in gradients.items():
            torch.testing.assert_close(
                stacked[name].grad[index], gradient * solo.numel(), atol=1e-5, rtol=1e-5
            )


POST = {"norm_placement": "post", "activation": "swiglu"}


@pytest.mark.parametrize(
    ("changes", "autocast"),
    [
        ({}, True),
        *(
            pytest.param(changes, autocast, marks=pytest.mark.slow)
            for changes, autocast in [({}, False), (POST, False), (POST, True)]
        ),
    ],
    ids=str,
)
def test_a_model_compiles_to_one_graph(changes: dict[str, Any], autocast: bool) -> None:
    torch._dynamo.reset()
    _, kernels = pair(**changes)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(kernels, fullgraph=True, backend=counter)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for seed in range(3):
            x, y = tokens(3, 8, seed=seed), tokens(3, 8, seed=seed + 1)
            ours, eager = steps_of(compiled, x, y), steps_of(kernels, x, y)
            torch.testing.assert_close(ours[0], eager[0], atol=1e-6, rtol=1e-6)
            for one, other in zip(ours[1].values(), eager[1].values(), strict=True):
                torch.testing.assert_close(
                    one, other, atol=1e-2 if autocast else 1e-6, rtol=1e-2 if autocast else 1e-5
                )
    assert counter.frame_count == 1
    torch._dynamo.reset()
