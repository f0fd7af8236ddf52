"""Every kernel against float64 on the CPU, in every order of its threads; what the shim itself must
notice.
"""

from collections.abc import Callable

import kernel_suite_more
import numpy as np
import pytest
import torch
from shim_backend import ORDERS, HostBackend, KernelError, call, compile_text, needs_shim, opened

from andrea.kernels import launch_plans, source

HOST = HostBackend()
QUICK, ALL = kernel_suite_more.checks(full=False), kernel_suite_more.checks()
REST = {name: check for name, check in ALL.items() if name not in QUICK}
Check = Callable[[HostBackend], None]


@needs_shim
@pytest.mark.parametrize("check", QUICK.values(), ids=QUICK.keys())
def test_a_kernel_gives_the_numbers_of_float64(check: Check) -> None:
    check(HOST)


@needs_shim
@pytest.mark.slow
@pytest.mark.parametrize("check", REST.values(), ids=REST.keys())
def test_a_kernel_gives_the_numbers_of_float64_for_every_type_and_function(check: Check) -> None:
    check(HOST)


@needs_shim
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_every_16_bit_number_goes_through_a_kernel_unchanged(kind: str) -> None:
    every = (
        torch.arange(65536, dtype=torch.int32)
        .to(torch.int16)
        .view(torch.bfloat16 if kind == "bf16" else torch.float16)
    )
    every = every[~every.isnan()]
    out, rows = torch.empty_like(every), 1
    plan = launch_plans.plan_cross_entropy_scale(kind, rows, len(every))
    one, two = torch.ones(1), torch.full((1,), 2.0)
    values = {"src": every, "src_stride": 0, "dst": out, "dst_stride": 0,
        "dloss": two, "dloss_stride": 0,
              "upstream": one,
              "upstream_stride": 0, "rows": rows, "columns": len(every)}  # fmt: skip
    HOST.run(plan, values)
    assert torch.equal(out, (every.float() * 2).to(every.dtype))
    HOST.run(plan, {**values, "dloss": one, "src": every, "dst": out})
    assert torch.equal(out, every)


WRONG = {
    "divergent __syncthreads": "if (threadIdx.x < 32) { __syncthreads(); n = 1; }\n else { "
    "__syncthreads(); n = 2; }",
    "has exited": "if (threadIdx.x == 3) return; n = __shfl_xor_sync(0xffffffffu, n, 1);",
    "deadlock": "if (threadIdx.x < 16) n = __shfl_xor_sync(0xffffffffu, n, 1); else "
    "__syncthreads();",
    "not in mask": "n = __shfl_xor_sync(0xffffu, n, 1);",
    "beyond the dynamic shared memory": "DYN_SHARED(int, memory); memory[threadIdx.x / 16 + 2] = "
    "n;",
}


@needs_shim
@pytest.mark.parametrize("said", WRONG)
@pytest.mark.parametrize("order", ORDERS)
def test_the_shim_names_what_no_gpu_may_be_given(said: str, order: int) -> None:
    text = f'extern "C" __global__ void wrong(int n) {{ {WRONG[said]} }} EXPORT_KERNEL(wrong)'
    library = opened(compile_text(text))
    with pytest.raises(KernelError, match=said):
        call(library, "wrong", 1, 64, 16, [np.int32(1)], order)
    with pytest.raises(KernelError, match="status 2"):
        call(library, "wrong", 1, 2048, 16, [np.int32(1)], order)


def test_arguments_are_checked_by_name_and_typed_as_the_text_says() -> None:
    plan = launch_plans.plan_reduce_parts("f32", 2, 3, 5)
    packed = launch_plans.pack_arguments(plan, {"partial": 64, "segments": 2, "columns": 5})
    assert packed[:2] == [64, None]
    assert [type(arg) for arg in packed[2:]] == [np.int64, np.int32, np.int32]
    with pytest.raises(ValueError, match="no argument rows"):
        launch_plans.pack_arguments(plan, {"rows": 1})
    with pytest.raises(ValueError, match="needs segments"):
        launch_plans.pack_arguments(plan, {"columns": 5})
    for module in (*source.module_names(), *source.module_names("f64")):
        for name in source.kernel_names(module):
            assert source.kernel_arguments(name) and source.module_of(name) == module
            assert source.kernel_family(name) in source.REGISTER_BUDGETS
    assert [source.type_suffix(t) for t in ("torch.float16", "bfloat16")] == ["f16", "bf16"]


@pytest.mark.parametrize("columns", [1, 31, 768, 1600, 50257, 300_000])
@pytest.mark.parametrize("rows", [1, 65_537, 2**33])
def test_plans_of_any_size_are_what_a_gpu_takes(rows: int, columns: int) -> None:
    for shared in (49_152, 232_448):
        limits = launch_plans.DeviceLimits(shared)
        norm = launch_plans.NormShape("ln", "f32", "bf16", rows, 3, columns)
        activation = launch_plans.ActivationShape("silu", True, "bf16", rows, 3, columns)
        plans = [
            launch_plans.plan_cross_entropy("bf16", rows, columns, limits),
            launch_plans.plan_cross_entropy_scale("bf16", rows, columns),
            launch_plans.plan_norm_forward(norm._replace(replicas=1), limits),
            launch_plans.plan_norm_backward(norm, limits),
            launch_plans.plan_activation_forward(activation),
            launch_plans.plan_activation_backward(activation, limits),
            launch_plans.plan_reduce_parts("f32", 6, 400, columns),
        ]
        for plan in plans:
            assert (
                1 <= plan.grid <= 2**31 - 1
                and plan.block <= 1024
                and plan.block % 32 == 0
                and plan.shared_bytes <= shared
            )
            # Few parts: stage 2 must stay small beside stage 1.
            assert "norm_bwd" not in plan.kernel or plan.arguments["parts"] <= 132 * 16
    with pytest.raises(ValueError, match="columns must be from 1"):
        launch_plans.plan_cross_entropy("bf16", 1, 0)


def test_the_optimizers_chunks_cover_every_tensor_once() -> None:
    sizes = [
        1,
        launch_plans.OPTIMIZER_CHUNK,
        launch_plans.OPTIMIZER_CHUNK + 1,
        3 * launch_plans.OPTIMIZER_CHUNK,
    ]
    chunks = launch_plans.split_into_chunks(sizes)
    assert [sum(tensor == t for t, _ in chunks) for tensor in range(4)] == [1, 1, 2, 3]
    assert launch_plans.plan_adamw_update("f32", len(chunks), 2).grid == 14
    with pytest.raises(ValueError, match="more than"):
        launch_plans.plan_adamw_update("f32", 2**30, 4)
