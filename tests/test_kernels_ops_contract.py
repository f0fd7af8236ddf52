"""What torch asks of an op: schema, gradient, shapes without numbers, a graph without breaks or
recompiles.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from kernels_kit import classes, drawn, kernels_on_cpu, pytestmark  # noqa: F401
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from andrea.kernels import activation, cross_entropy, norm

OPS = torch.ops.andrea
ROWS, COLUMNS, VOCABULARY = (2, 5), 12, 19


def x(seed: int = 0, columns: int = COLUMNS, dtype: torch.dtype = torch.float32) -> Tensor:
    return drawn(*ROWS, columns, seed=seed, dtype=dtype)


def w(seed: int = 0, *lead: int) -> Tensor:
    return drawn(*lead, COLUMNS, seed=seed)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.detach().mean(-1), 1 / x.detach().std(-1)


def _cases() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    t = classes(*ROWS, of=VOCABULARY)
    logits, head, half = x(columns=VOCABULARY), drawn(VOCABULARY, COLUMNS), torch.bfloat16
    empty = torch.empty(0)
    yield "norm", OPS.norm, (x(), w(), w(1), "ln", 1e-5, torch.float32)
    yield "norm without weights", OPS.norm, (x(), None, None, "rms", 1e-5, torch.float32)
    yield "norm into bf16", OPS.norm, (x(), w(), None, "rms", 1e-5, half)
    yield "add_norm", OPS.add_norm, (x(), x(1), w(), w(1), "ln", 1e-5)
    yield "add_norm of a bf16 branch", OPS.add_norm, (x(), x(1, dtype=half), w(), None, "ln", 1e-5)
    yield "add_norm of replicas", OPS.add_norm, (x(), x(1), w(0, 2), w(1, 2), "rms", 1e-5)
    dy, s = x(2).detach(), x(3).detach()
    yield "norm_backward", OPS.norm_backward, (dy, s, s, *_statistics(s), w().detach(), "ln", 2)
    yield (
        "norm_backward rms",
        OPS.norm_backward,
        (dy.to(half), None, s, empty, _statistics(s)[1], w().detach(), "rms", 1),
    )
    yield "activation", OPS.activation, (x(), w(), "gelu_tanh")
    yield "activation without bias", OPS.activation, (x(), None, "relu2")
    yield "activation_backward", OPS.activation_backward, (dy, s, w().detach(), "silu", True)
    yield "gated_activation", OPS.gated_activation, (x(), x(1), w(), w(1), "silu")
    yield "gated_activation without bias", OPS.gated_activation, (x(), x(1), None, None, "identity")
    yield (
        "gated_activation_backward",
        OPS.gated_activation_backward,
        (dy, s, s, w().detach(), None, "gelu", True),
    )
    yield "cross_entropy", OPS.cross_entropy, (logits, t, None, -100, 0.0, 0.0, True)
    upstream = torch.full(ROWS, 0.1)
    yield "cross_entropy with all", OPS.cross_entropy, (logits, t, upstream, -100, 5.0, 1e-3, True)
    yield (
        "cross_entropy alone",
        OPS.cross_entropy,
        (logits.detach(), t, None, -100, 0.0, 0.0, False),
    )
    yield (
        "cross_entropy_backward",
        OPS.cross_entropy_backward,
        (logits.detach(), upstream, torch.tensor(0.1)),
    )
    yield "head_loss", OPS.head_loss, (x(), head, None, t, -100, 0.0, 0.0, True)
    yield (
        "head_loss with all",
        OPS.head_loss,
        (x(), head, drawn(VOCABULARY), t, -100, 5.0, 1e-3, True),
    )
    yield (
        "head_loss of replicas",
        OPS.head_loss,
        (x(), drawn(2, VOCABULARY, COLUMNS), None, t, -100, 0.0, 0.0, True),
    )


CASES = list(_cases())


@pytest.mark.parametrize(
    ("op", "args"),
    [
        pytest.param(*args, id=name, marks=[pytest.mark.slow] if number % 3 else [])
        for number, (name, *args) in enumerate(CASES)
    ],
)
def test_every_op_is_what_torch_expects_of_one_with_gradients(
    op: Any, args: tuple[Any, ...]
) -> None:
    torch.library.opcheck(op.default, args)


def test_every_op_is_checked() -> None:
    defined = {
        name.removeprefix("andrea::")
        for name in torch._C._dispatch_get_all_op_names()
        if "andrea::" in name
    }
    assert defined == {op.default._schema.name.removeprefix("andrea::") for _, op, _ in CASES}


def _layer(x: Tensor, delta: Tensor, w: Tensor, b: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    total, y = norm.add_norm(x, delta, w, b, "ln", 1e-5)
    y = activation.activation(y, b, "gelu_tanh") + activation.gated_activation(
        y, y * 2, None, b, "silu"
    )
    y = norm.norm(total + y, w, None, "rms", 1e-6)
    logits = y @ head.T
    return cross_entropy.head_loss(y, head, None, targets) + cross_entropy.cross_entropy(
        logits, targets, z_loss=1e-4
    )


def _layers_inputs(seed: int, rows: tuple[int, ...] = ROWS) -> list[Tensor]:
    tensors = [drawn(*rows, COLUMNS, seed=seed), drawn(*rows, COLUMNS, seed=seed + 1), w(2), w(3)]
    return [*tensors, drawn(VOCABULARY, COLUMNS), classes(*rows, of=VOCABULARY, seed=seed)]


@pytest.fixture
def counter() -> Iterator[CompileCounterWithBackend]:
    """A compiler that counts what it compiles."""
    torch._dynamo.reset()
    yield CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()


def test_compiled_without_a_break_or_a_recompile_and_equal_to_eager(
    counter: CompileCounterWithBackend,
) -> None:
    compiled = torch.compile(_layer, fullgraph=True, backend=counter)
    for seed in range(4):
        inputs = _layers_inputs(seed)
        ours, eager = compiled(*inputs), _layer(*inputs)
        assert torch.equal(ours, eager)
        for one, other in zip(
            torch.autograd.grad(ours.sum(), inputs[:-1]),
            torch.autograd.grad(eager.sum(), inputs[:-1]),
            strict=True,
        ):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert counter.frame_count == 1


def test_other_sizes_are_one_more_graph(counter: CompileCounterWithBackend) -> None:
    compiled = torch.compile(_layer, fullgraph=True, backend=counter)
    for rows in ((2, 5), (3, 5), (7, 5), (9, 5)):
        inputs = _layers_inputs(0, rows)
        torch.testing.assert_close(compiled(*inputs), _layer(*inputs), atol=1e-6, rtol=1e-6)
    assert counter.frame_count == 2


def test_under_autocast_too(counter: CompileCounterWithBackend) -> None:
    inputs = _layers_inputs(0)
    with torch.autocast("cpu", torch.bfloat16):
        compiled = torch.compile(_layer, fullgraph=True, backend=counter)
        torch.testing.assert_close(compiled(*inputs), _layer(*inputs), atol=1e-5, rtol=1e-5)


def test_a_norm_with_a_bias_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="a norm with a bias needs a weight"):
        norm.norm(x(), None, w(), "ln", 1e-5)
    with pytest.raises(ValueError, match="a norm with a bias needs a weight"):
        norm.add_norm(x(), x(1), None, w(), "ln", 1e-5)


def test_an_op_on_a_device_without_kernels_says_what_to_set() -> None:
    from andrea.errors import UserError
    from andrea.kernels import backend

    backend.install_backend("cpu", None)
    with pytest.raises(UserError, match=r"do not run on device cpu; set train\.kernels=torch"):
        norm.norm(x(), None, None, "ln", 1e-5)
