"""The text of the kernels, their names and arguments, and how they are launched. Without torch.

A *module* is what is compiled at once: one kernel file for one storage type (`ce_bf16`), for the
    pair of a stream and
a branch (`norm_f32_bf16`), or for one activation and storage type (`act_gelu_tanh_bf16`). GPUs and
tests compile the same text. `f64` modules exist for tests alone, which differentiate kernels
numerically.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

NUMERICS = 1
"""Raise it when a kernel gives other bits for the same input."""

OPTIONS = ("-std=c++17",)
"""For every compiler. No fast-math: what is approximate is spelled out in the text."""

TYPES = ("f32", "bf16", "f16")
SIZE = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}
PAIRS = (("f32", "f32"), ("f32", "bf16"), ("bf16", "bf16"), ("f32", "f16"), ("f16", "f16"))
"""Storage of the residual stream, and of branches and normed output."""
PLAIN = ("gelu_tanh", "gelu", "silu", "relu", "relu2")
GATED = (*PLAIN, "sigmoid", "identity")
CHUNK = 16384
"""Elements of one block of the optimizer."""
LARGEST_GRID = 2**31 - 1
MOST_COLUMNS = 2**30
WARP, VECTOR = 32, 16

REGISTERS = {
    "ce": 80,
    "ce_scale": 48,
    "norm_fwd": 80,
    "norm_bwd": 128,
    "act_fwd": 64,
    "act_bwd": 128,
    "reduce_parts": 64,
    "gradnorm": 64,
    "adamw_prepare": 64,
    "adamw": 80,
}
"""Most registers of a thread, by the beginning of the kernel's name. 65,536 of a multiprocessor
over these and over the threads of a block tell how many blocks hide each other's waiting: 64 leave
1024 threads, half of what fits at all.
"""


class Limits(NamedTuple):
    """What the plan of a launch depends on."""

    shared: int = 49152
    """Bytes of dynamic shared memory that one block may ask for (232,448 on an H200)."""
    multiprocessors: int = 132


ANY_GPU = Limits()
"""What every GPU has."""


class Launch(NamedTuple):
    """A kernel with its shape, and the arguments that belong to the shape."""

    name: str
    grid: int
    block: int
    shared: int
    extra: dict[str, int]


class Arg(NamedTuple):
    """A kernel's argument; kind is `ptr`, `i32`, `i64` or `real` (float32; float64 in an f64
    module).
    """

    name: str
    kind: str


# ---- Text
# ------------------------------------------------------------------------------------------------


@cache
def _file(name: str) -> str:
    return (files("andrea.kernels") / name).read_text(encoding="utf-8")


@cache
def modules(real: str = "f32") -> tuple[str, ...]:
    """Everything that can be compiled; with `f64` the modules of the tests that differentiate
    numerically.
    """
    if real == "f64":
        types: tuple[str, ...] = ("f64",)
        pairs: tuple[tuple[str, str], ...] = (("f64", "f64"),)
    else:
        types, pairs = TYPES, PAIRS
    return (
        *(f"ce_{kind}" for kind in types),
        *(f"norm_{stream}_{branch}" for stream, branch in pairs),
        *(f"act_{function}_{kind}" for function in GATED for kind in types),
        f"reduce_{real}",
        *(f"adamw_{kind}" for kind in types),
    )


def text(module: str) -> str:
    """All that a compiler needs for a module: no includes, no files."""
    return _file("rt.cuh") + body(module)


def body(module: str) -> str:
    """A module without what all have in common."""
    family, *words = module.split("_")
    defines = {"TYPES": words[-1]}
    types = [f"typedef {words[-1]} T;"]
    if family == "norm":
        defines["TYPES"] = "_".join(words)
        types.append(f"typedef {words[0]} R;")
    if family == "act":
        defines["ACT"] = "_".join(words[:-1])
    return "\n".join(
        [
            f"namespace {module}_module {{",
            *types,
            *(f"#define {name} {value}" for name, value in defines.items()),
            _file(_FILES[family]),
            *(f"#undef {name}" for name in defines),
            "}\n",
        ]
    )


_FILES = {
    "ce": "cross_entropy.cu",
    "norm": "norm.cu",
    "act": "activation.cu",
    "reduce": "reduce.cu",
    "adamw": "adamw.cu",
}


def names(module: str) -> tuple[str, ...]:
    """The kernels of a module."""
    family, *words = module.split("_")
    ending = "_".join(words)
    if family == "ce":
        return (f"ce_{ending}", f"ce_scale_{ending}")
    if family == "norm":
        return tuple(
            f"norm_{way}_{kind}_{ending}" for way in ("fwd", "bwd") for kind in ("ln", "rms")
        )
    if family == "act":
        function, kind = "_".join(words[:-1]), words[-1]
        return tuple(
            f"act_{way}_{function}_{form}_{kind}"
            for form in ("plain", "gated")
            for way in ("fwd", "bwd")
        )
    if family == "reduce":
        return (f"reduce_parts_{ending}",)
    return (f"gradnorm_{ending}", f"adamw_prepare_{ending}", f"adamw_{ending}")


@cache
def _module_of() -> dict[str, str]:
    return {
        name: module
        for real in ("f32", "f64")
        for module in modules(real)
        for name in names(module)
    }


def module(name: str) -> str:
    """The module that has a kernel.

    Raises:
        KeyError: no module has it.
    """
    return _module_of()[name]


# ---- Arguments
# -------------------------------------------------------------------------------------------

_SCALARS = {"int": "i32", "i64": "i64", "real": "real"}


@cache
def signature(name: str) -> tuple[Arg, ...]:
    """A kernel's arguments in order, as its text declares them.

    Raises:
        KeyError: there is no such kernel.
    """
    source = _file(_FILES[module(name).split("_")[0]])
    family = family_of(name)
    form = {"plain": "PLAIN", "gated": "GATED"}.get(name.split("_")[-2], "NAME")
    kernel = f"{family}_{name.split('_')[2]}" if family.startswith("norm") else family
    found = re.search(rf"\b{form}\({kernel}\)\(\s*([^{{]*?)\) {{", source)
    assert found, f"{name}: no such kernel in its file"
    declared = found[1]
    if declared.endswith("ARGUMENTS"):  # a list that several kernels share
        macro = re.search(rf"#define {declared}((?:.*\\\n)*.*\n)", source)
        assert macro, f"{name}: no {declared} in its file"
        declared = macro[1].replace("\\\n", " ")
    return _arguments(declared)


def _arguments(declared: str) -> tuple[Arg, ...]:
    arguments = []
    kind = ""
    for part in declared.split(","):
        *words, last = part.replace("*", " * ").split()
        kind = "ptr" if "*" in words else _SCALARS[words[-1]]
        arguments.append(Arg(last, kind))
    return tuple(arguments)


def family_of(name: str) -> str:
    """A kernel's name without variant and types: the key of REGISTERS."""
    return max((family for family in REGISTERS if name.startswith(f"{family}_")), key=len)


def pack(launch: Launch, values: Mapping[str, Any]) -> list[Any]:
    """The arguments of a launch in order: pointers as given (left out: null), numbers with their
    exact type.

    Raises:
        ValueError: a name that the kernel does not have, or a number that is missing.
    """
    wanted = signature(launch.name)
    given = {**launch.extra, **values}
    if unknown := given.keys() - {arg.name for arg in wanted}:
        raise ValueError(f"{launch.name} has no argument {', '.join(sorted(unknown))}")
    if missing := [arg.name for arg in wanted if arg.kind != "ptr" and arg.name not in given]:
        raise ValueError(f"{launch.name} needs {', '.join(missing)}")
    real = np.float64 if launch.name.endswith("_f64") else np.float32
    scalar = {"i32": np.int32, "i64": np.int64, "real": real}
    return [
        given.get(arg.name) if arg.kind == "ptr" else scalar[arg.kind](given[arg.name])
        for arg in wanted
    ]


def suffix(dtype: str) -> str:
    """`torch.bfloat16` and `bfloat16` are `bf16`.

    Raises:
        ValueError: no kernel stores this type.
    """
    known = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}
    name = str(dtype).removeprefix("torch.")
    if name not in known:
        raise ValueError(f"no kernel for {dtype}; there are {', '.join(known)}")
    return known[name]


# ---- Shapes of launches
# ----------------------------------------------------------------------------------


def _up(number: int, to: int) -> int:
    return -(-number // to) * to


def _size(columns: int, rows: int) -> None:
    if not 1 <= columns <= MOST_COLUMNS or rows < 0:
        raise ValueError(
            f"{rows} rows of {columns} columns: columns must be from 1 to {MOST_COLUMNS}"
        )


def _lanes(vectors: int, per_thread: int, most: int) -> int:
    """Threads of a row, whole warps, so that each has about `per_thread` vectors."""
    lanes = WARP
    while lanes < most and lanes * per_thread < vectors:
        lanes = min(2 * lanes, most)
    return lanes


def _grid(rows: int, groups: int) -> int:
    return min(-(-rows // groups), LARGEST_GRID)


def cross_entropy(dtype: str, rows: int, columns: int, limits: Limits = ANY_GPU) -> Launch:
    """Loss and gradient of [rows, columns] logits."""
    _size(columns, rows)
    vectors = columns * SIZE[dtype] // VECTOR
    row_bytes = vectors * VECTOR
    # A row that leaves no room for a second block on the multiprocessor gets twice the threads.
    lanes = _lanes(vectors, 4, 768 if row_bytes > limits.shared // 2 else 384)
    groups = 256 // WARP if lanes == WARP else 1
    cached = groups * row_bytes <= limits.shared
    return Launch(
        f"ce_{dtype}",
        _grid(rows, groups),
        lanes * groups,
        groups * row_bytes if cached else 0,
        {"lanes": lanes, "cached": int(cached)},
    )


def cross_entropy_scale(dtype: str, rows: int, columns: int) -> Launch:
    """Rows of a gradient times a number each."""
    _size(columns, rows)
    return Launch(f"ce_scale_{dtype}", _grid(rows, 1), 256, 0, {})


def norm_forward(
    kind: str, stream: str, branch: str, rows: int, columns: int, limits: Limits = ANY_GPU
) -> Launch:
    """Residual add and norm of [rows, columns]; kind `ln` or `rms`."""
    _size(columns, rows)
    vector = VECTOR // SIZE[stream]
    lanes = WARP if columns <= 1024 else _lanes(columns // vector, 2, 256)
    groups = 256 // WARP if lanes == WARP else 1
    row_bytes = _up(columns, vector) * SIZE[stream]
    cached = groups * row_bytes <= limits.shared
    return Launch(
        f"norm_fwd_{kind}_{stream}_{branch}",
        _grid(rows, groups),
        lanes * groups,
        groups * row_bytes if cached else 0,
        {"lanes": lanes, "cached": int(cached)},
    )


def norm_backward(
    kind: str,
    stream: str,
    branch: str,
    rows_per_replica: int,
    replicas: int,
    columns: int,
    limits: Limits = ANY_GPU,
) -> Launch:
    """Its backward; `partial` is [1 + with_bias, replicas, extra["parts"], columns]."""
    _size(columns, rows_per_replica)
    vector = VECTOR // SIZE[stream]
    # Two sums, s and dy for each column.
    column_bytes = 2 * max(4, SIZE[stream] if stream == "f64" else 4) + SIZE[stream] + SIZE[branch]
    row_bytes = _up(columns, vector) * column_bytes
    lanes, groups = WARP, 256 // WARP
    if columns > 1024 or groups * row_bytes > limits.shared:
        lanes, groups = _lanes(columns // vector, 2, 256), 1
    cached = groups * row_bytes <= limits.shared
    shared = groups * row_bytes if cached else 0
    # One wave: as many blocks as run at once, each with its share of the rows.
    at_once = min(512 // (lanes * groups), max(1, limits.shared // shared) if shared else 2)
    parts = max(
        1, min(limits.multiprocessors * at_once // max(1, replicas), -(-rows_per_replica // groups))
    )
    return Launch(
        f"norm_bwd_{kind}_{stream}_{branch}",
        parts * replicas,
        lanes * groups,
        shared,
        {"parts": parts, "lanes": lanes, "cached": int(cached)},
    )


def _tile(dtype: str, columns: int) -> tuple[int, int]:
    """Threads of a block along the columns, and tiles: the widest block that leaves few threads
    without work.
    """
    vectors = -(-columns * SIZE[dtype] // VECTOR)
    widths = [256, 128, 64, 32, 16, 8, 4, 2, 1]
    waste = {width: -(-vectors // width) * width - vectors for width in widths}
    width = next((w for w in widths if waste[w] * 20 <= vectors), 1)
    return width, -(-vectors // width)


def _activation(name: str, dtype: str, replicas: int, columns: int, parts: int) -> Launch:
    width, tiles = _tile(dtype, columns)
    parts = max(1, min(parts, LARGEST_GRID // (tiles * max(1, replicas))))
    return Launch(
        name, tiles * parts * replicas, 256, 0, {"width": width, "tiles": tiles, "parts": parts}
    )


def activation_forward(
    function: str,
    gated: bool,
    dtype: str,
    rows_per_replica: int,
    replicas: int,
    columns: int,
    limits: Limits = ANY_GPU,
) -> Launch:
    """An activation of [replicas * rows_per_replica, columns]; each thread has four rows."""
    _size(columns, rows_per_replica)
    width, _ = _tile(dtype, columns)
    parts = -(-rows_per_replica // (256 // width * 4))
    name = f"act_fwd_{function}_{'gated' if gated else 'plain'}_{dtype}"
    return _activation(name, dtype, replicas, columns, parts)


def activation_backward(
    function: str,
    gated: bool,
    dtype: str,
    rows_per_replica: int,
    replicas: int,
    columns: int,
    limits: Limits = ANY_GPU,
) -> Launch:
    """Its backward; `partial` is [1 or 2, replicas, extra["parts"], columns]."""
    _size(columns, rows_per_replica)
    width, tiles = _tile(dtype, columns)
    # Enough blocks for four waves, few enough that the second stage has little to add.
    blocks = limits.multiprocessors * (2 if gated else 3) * 4
    parts = min(
        -(-blocks // (tiles * max(1, replicas))), -(-rows_per_replica // (256 // width * 2))
    )
    name = f"act_bwd_{function}_{'gated' if gated else 'plain'}_{dtype}"
    return _activation(name, dtype, replicas, columns, parts)


def reduce_parts(real: str, segments: int, parts: int, columns: int) -> Launch:
    """Sums of [segments, parts, columns] over the parts."""
    _size(columns, segments)
    return Launch(
        f"reduce_parts_{real}", _grid(segments * -(-columns // 32), 1), 1024, 0, {"parts": parts}
    )


def chunks_of(numels: Sequence[int]) -> list[tuple[int, int]]:
    """The optimizer's chunks: (tensor, offset) over tensors of these sizes."""
    return [
        (tensor, offset) for tensor, numel in enumerate(numels) for offset in range(0, numel, CHUNK)
    ]


def _optimizer(name: str, chunks: int, replicas: int) -> Launch:
    if chunks * replicas > LARGEST_GRID:
        raise ValueError(
            f"{chunks} chunks of {replicas} replicas are more than {LARGEST_GRID} blocks"
        )
    return Launch(name, chunks * replicas, 256, 0, {"n_chunks": chunks, "chunk": CHUNK})


def gradient_norm(dtype: str, chunks: int, replicas: int) -> Launch:
    """Sums of squares by chunk."""
    return _optimizer(f"gradnorm_{dtype}", chunks, replicas)


def adamw_prepare(real: str, replicas: int) -> Launch:
    """Norms and what one step needs, by replica."""
    return Launch(f"adamw_prepare_{real}", replicas, 256, 0, {})


def adamw(dtype: str, chunks: int, replicas: int) -> Launch:
    """The update."""
    return _optimizer(f"adamw_{dtype}", chunks, replicas)
