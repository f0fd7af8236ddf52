"""Launch plans: the blocks, threads and shared memory that a kernel gets for an input's shape.

Kernels that work on rows give each row to its *lanes*: the 32 threads of a warp (a block then has
eight such groups, and needs no barrier) or all threads of a block. Grids have x alone; a kernel
whose rows outnumber its blocks loops over them. Each kernel file says how its threads map to data.

Imports no torch. Shapes: N rows, C columns, R replicas of N / R rows each.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from andrea.kernels.source import ITEM_BYTES, kernel_arguments

WARP = 32
BLOCK_THREADS = 256
VECTOR_BYTES = 16
"""Of the widest load of one thread."""
LARGEST_GRID = 2**31 - 1
MOST_COLUMNS = 2**30
"""Offsets inside a row have 32 bits, and a loop may step beyond the row's end."""
OPTIMIZER_CHUNK = 16384
"""Elements that one block of the optimizer updates."""


class DeviceLimits(NamedTuple):
    """The properties of a device that plans depend on."""

    shared_bytes: int = 49152
    """Dynamic shared memory that one block may ask for (232,448 on an H200)."""
    multiprocessors: int = 132


ANY_GPU = DeviceLimits()
"""Shared memory that every GPU gives a block without being asked."""


class LaunchPlan(NamedTuple):
    """A kernel, its launch shape, and the arguments that belong to that shape."""

    kernel: str
    grid: int
    block: int
    shared_bytes: int
    arguments: dict[str, int]


class NormShape(NamedTuple):
    """Rows that a norm reads, [replicas · rows_per_replica, columns], and how they are stored."""

    kind: Literal["ln", "rms"]
    stream: str
    branch: str
    rows_per_replica: int
    replicas: int
    columns: int

    @property
    def rows(self) -> int:
        return self.replicas * self.rows_per_replica

    def kernel_name(self, way: Literal["fwd", "bwd"]) -> str:
        return f"norm_{way}_{self.kind}_{self.stream}_{self.branch}"


class ActivationShape(NamedTuple):
    """Rows of an activation, [replicas · rows_per_replica, columns], and how they are stored."""

    function: str
    gated: bool
    storage: str
    rows_per_replica: int
    replicas: int
    columns: int

    def kernel_name(self, way: Literal["fwd", "bwd"]) -> str:
        form = "gated" if self.gated else "plain"
        return f"act_{way}_{self.function}_{form}_{self.storage}"


def pack_arguments(plan: LaunchPlan, values: Mapping[str, Any]) -> list[Any]:
    """Return all arguments of a launch in the kernel's order: pointers as they are (null where one
    is left out), numbers with their exact type.

    Raises:
        ValueError: the kernel has no argument of a name, or a number is missing.
    """
    declared = kernel_arguments(plan.kernel)
    arguments = {**plan.arguments, **values}
    if unknown := arguments.keys() - {argument.name for argument in declared}:
        raise ValueError(f"{plan.kernel} has no argument {', '.join(sorted(unknown))}")
    numbers = [argument.name for argument in declared if argument.kind != "ptr"]
    if missing := [name for name in numbers if name not in arguments]:
        raise ValueError(f"{plan.kernel} needs {', '.join(missing)}")
    # A launch passes the bytes of a number: one of the wrong width would shift all that follow.
    real = np.float64 if plan.kernel.endswith("_f64") else np.float32
    number_types = {"i32": np.int32, "i64": np.int64, "real": real}
    packed: list[Any] = []
    for name, kind in declared:
        if kind == "ptr":
            packed.append(arguments.get(name))
        else:
            packed.append(number_types[kind](arguments[name]))
    return packed


# ---- Rows and the threads that share them --------------------------------------------------------


class RowThreads(NamedTuple):
    """Threads of a block, shared out among rows."""

    lanes: int
    """Threads of one row."""
    groups: int
    """Rows that a block works on at once."""

    @property
    def block(self) -> int:
        return self.lanes * self.groups


WARP_ROWS = RowThreads(WARP, BLOCK_THREADS // WARP)


def _block_row(vectors: int, per_thread: int, most: int) -> RowThreads:
    """Give a row a whole block, in which a thread has about `per_thread` vectors."""
    lanes = WARP
    while lanes < most and lanes * per_thread < vectors:
        lanes = min(2 * lanes, most)
    return RowThreads(lanes, 1)


class RowCache(NamedTuple):
    """Shared memory in which rows wait for a second pass; without it they are read again."""

    shared_bytes: int
    fits: bool


def _row_cache(groups: int, row_bytes: int, limits: DeviceLimits) -> RowCache:
    needed = groups * row_bytes
    if needed > limits.shared_bytes:
        return RowCache(0, False)
    return RowCache(needed, True)


def _row_plan(
    kernel: str, grid: int, threads: RowThreads, cache: RowCache, **arguments: int
) -> LaunchPlan:
    arguments |= {"lanes": threads.lanes, "cached": int(cache.fits)}
    return LaunchPlan(kernel, grid, threads.block, cache.shared_bytes, arguments)


def _require_size(columns: int, rows: int) -> None:
    if not 1 <= columns <= MOST_COLUMNS or rows < 0:
        message = f"{rows} rows of {columns} columns: columns must be from 1 to {MOST_COLUMNS}"
        raise ValueError(message)


def _divide_up(number: int, by: int) -> int:
    return -(-number // by)


def _round_up(number: int, to: int) -> int:
    return _divide_up(number, to) * to


def _row_grid(rows: int, groups: int) -> int:
    return min(_divide_up(rows, groups), LARGEST_GRID)


# ---- Cross-entropy -------------------------------------------------------------------------------


def plan_cross_entropy(
    storage: str, rows: int, columns: int, limits: DeviceLimits = ANY_GPU
) -> LaunchPlan:
    """Plan loss and gradient of logits [rows, columns]."""
    _require_size(columns, rows)
    vectors = columns * ITEM_BYTES[storage] // VECTOR_BYTES
    row_bytes = vectors * VECTOR_BYTES
    if vectors <= 4 * WARP:
        threads = WARP_ROWS
    else:
        # Four vectors a thread, since the kernel keeps four loads in flight.
        # A row that leaves no room for a second block on the multiprocessor gets twice the threads.
        alone = row_bytes > limits.shared_bytes // 2
        threads = _block_row(vectors, per_thread=4, most=768 if alone else 384)
    cache = _row_cache(threads.groups, row_bytes, limits)
    return _row_plan(f"ce_{storage}", _row_grid(rows, threads.groups), threads, cache)


def plan_cross_entropy_scale(storage: str, rows: int, columns: int) -> LaunchPlan:
    """Plan the multiplication of each row of a gradient by a number of its own."""
    _require_size(columns, rows)
    return LaunchPlan(f"ce_scale_{storage}", _row_grid(rows, 1), BLOCK_THREADS, 0, {})


# ---- Norms ---------------------------------------------------------------------------------------

WIDEST_WARP_ROW = 1024
"""Columns up to which a warp has a row of a norm, so that its sums need no barrier."""
RESIDENT_THREADS = 512
"""Threads of a multiprocessor that the backward's 128 registers a thread leave room for."""


def _wide_row(shape: NormShape) -> RowThreads:
    vectors = shape.columns * ITEM_BYTES[shape.stream] // VECTOR_BYTES
    return _block_row(vectors, per_thread=2, most=BLOCK_THREADS)


def _padded_columns(shape: NormShape) -> int:
    """Columns of a row in shared memory, where every row starts at a multiple of 16 bytes."""
    return _round_up(shape.columns, VECTOR_BYTES // ITEM_BYTES[shape.stream])


def plan_norm_forward(shape: NormShape, limits: DeviceLimits = ANY_GPU) -> LaunchPlan:
    """Plan residual add and norm."""
    _require_size(shape.columns, shape.rows)
    threads = WARP_ROWS if shape.columns <= WIDEST_WARP_ROW else _wide_row(shape)
    row_bytes = _padded_columns(shape) * ITEM_BYTES[shape.stream]
    cache = _row_cache(threads.groups, row_bytes, limits)
    grid = _row_grid(shape.rows, threads.groups)
    return _row_plan(shape.kernel_name("fwd"), grid, threads, cache)


def plan_norm_backward(shape: NormShape, limits: DeviceLimits = ANY_GPU) -> LaunchPlan:
    """Plan the backward of residual add and norm.

    Each block adds the rows of one of `arguments["parts"]` parts of a replica, into a row of
    `partial` [1 + with_bias, R, parts, C].
    """
    _require_size(shape.columns, shape.rows_per_replica)
    # Shared memory holds two float32 sums, s and dy for each column.
    real_bytes = 8 if shape.stream == "f64" else 4
    column_bytes = 2 * real_bytes + ITEM_BYTES[shape.stream] + ITEM_BYTES[shape.branch]
    row_bytes = _padded_columns(shape) * column_bytes
    threads = WARP_ROWS
    cache = _row_cache(threads.groups, row_bytes, limits)
    if shape.columns > WIDEST_WARP_ROW or not cache.fits:
        threads = _wide_row(shape)
        cache = _row_cache(threads.groups, row_bytes, limits)
    # One wave: as many blocks as run at once, each with its share of the rows. More would only
    # make more rows of `partial` for the second stage.
    resident = 2
    if cache.fits:
        by_memory = max(1, limits.shared_bytes // cache.shared_bytes)
        resident = min(RESIDENT_THREADS // threads.block, by_memory)
    wave = limits.multiprocessors * resident // max(1, shape.replicas)
    parts = max(1, min(wave, _divide_up(shape.rows_per_replica, threads.groups)))
    return _row_plan(shape.kernel_name("bwd"), parts * shape.replicas, threads, cache, parts=parts)


# ---- Activations ---------------------------------------------------------------------------------


class _Tiling(NamedTuple):
    """Columns cut into tiles; a block is `width` threads along them by 256 / width rows."""

    width: int
    tiles: int

    @property
    def block_rows(self) -> int:
        return BLOCK_THREADS // self.width


def _tile_columns(shape: ActivationShape) -> _Tiling:
    """Return the widest tiles that leave at most a twentieth of the threads without a column."""
    vectors = _divide_up(shape.columns * ITEM_BYTES[shape.storage], VECTOR_BYTES)
    width = BLOCK_THREADS
    while (_round_up(vectors, width) - vectors) * 20 > vectors:
        width //= 2
    return _Tiling(width, _divide_up(vectors, width))


def _activation_plan(
    kernel: str, shape: ActivationShape, tiling: _Tiling, parts: int
) -> LaunchPlan:
    # A block's number holds its tile, part and replica; with fewer parts each walks further down.
    most_parts = LARGEST_GRID // (tiling.tiles * max(1, shape.replicas))
    parts = max(1, min(parts, most_parts))
    arguments = {"width": tiling.width, "tiles": tiling.tiles, "parts": parts}
    grid = tiling.tiles * parts * shape.replicas
    return LaunchPlan(kernel, grid, BLOCK_THREADS, 0, arguments)


def plan_activation_forward(shape: ActivationShape) -> LaunchPlan:
    """Plan an activation, in which each thread has four rows."""
    _require_size(shape.columns, shape.rows_per_replica)
    tiling = _tile_columns(shape)
    # As many as the kernel loads before it uses the first.
    parts = _divide_up(shape.rows_per_replica, tiling.block_rows * 4)
    return _activation_plan(shape.kernel_name("fwd"), shape, tiling, parts)


def plan_activation_backward(shape: ActivationShape, limits: DeviceLimits = ANY_GPU) -> LaunchPlan:
    """Plan the backward of an activation; `partial` is [1 or 2, R, arguments["parts"], C]."""
    _require_size(shape.columns, shape.rows_per_replica)
    tiling = _tile_columns(shape)
    # Enough blocks for four waves, few enough that the second stage has little to add.
    resident = 2 if shape.gated else 3
    blocks = limits.multiprocessors * resident * 4
    parts = min(
        _divide_up(blocks, tiling.tiles * max(1, shape.replicas)),
        _divide_up(shape.rows_per_replica, tiling.block_rows * 2),
    )
    return _activation_plan(shape.kernel_name("bwd"), shape, tiling, parts)


def plan_reduce_parts(real: str, segments: int, parts: int, columns: int) -> LaunchPlan:
    """Plan the sums of [segments, parts, columns] over the parts, 32 columns a block."""
    _require_size(columns, segments)
    # 32 × 32 threads: a warp reads 128 consecutive bytes, and 32 of them add a column's parts.
    grid = _row_grid(segments * _divide_up(columns, 32), 1)
    return LaunchPlan(f"reduce_parts_{real}", grid, 1024, 0, {"parts": parts})


# ---- Optimizer -----------------------------------------------------------------------------------


def split_into_chunks(numels: Sequence[int]) -> list[tuple[int, int]]:
    """Return the optimizer's chunks, (tensor, offset), of tensors with `numels` elements."""
    return [
        (tensor, offset)
        for tensor, numel in enumerate(numels)
        for offset in range(0, numel, OPTIMIZER_CHUNK)
    ]


def _chunk_plan(kernel: str, chunks: int, replicas: int) -> LaunchPlan:
    if chunks * replicas > LARGEST_GRID:
        message = f"{chunks} chunks of {replicas} replicas are more than {LARGEST_GRID} blocks"
        raise ValueError(message)
    arguments = {"n_chunks": chunks, "chunk": OPTIMIZER_CHUNK}
    return LaunchPlan(kernel, chunks * replicas, BLOCK_THREADS, 0, arguments)


def plan_gradient_norm(storage: str, chunks: int, replicas: int) -> LaunchPlan:
    """Plan the sum of squares of each chunk of the gradients."""
    return _chunk_plan(f"gradnorm_{storage}", chunks, replicas)


def plan_adamw_prepare(real: str, replicas: int) -> LaunchPlan:
    """Plan the gradient norm of each replica, and the numbers that its step needs."""
    return LaunchPlan(f"adamw_prepare_{real}", replicas, BLOCK_THREADS, 0, {})


def plan_adamw_update(storage: str, chunks: int, replicas: int) -> LaunchPlan:
    """Plan the update of all parameters of one storage type."""
    return _chunk_plan(f"adamw_{storage}", chunks, replicas)
