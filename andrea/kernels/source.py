"""Texts of the kernels: modules, the kernels in them, and the arguments that each declares.

A *module* is what a compiler gets at once: one kernel file for one storage type (`ce_bf16`), for
the types of a stream and its branches (`norm_f32_bf16`), or for one activation and storage type
(`act_gelu_tanh_bf16`). A GPU and the tests' CPU compile the same text. `f64` modules are compiled
by tests alone, which differentiate kernels numerically.

Imports no torch, so that modules can be compiled where there is none.
"""

import re
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

NUMERICS = 1
"""Raise it when a kernel gives other bits for the same input."""

COMPILER_OPTIONS = ("-std=c++17",)
"""Of every compiler. No fast-math: what is approximate is spelled out in the text."""

STORAGE_TYPES = ("f32", "bf16", "f16")
ITEM_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}
NORM_TYPES = (("f32", "f32"), ("f32", "bf16"), ("bf16", "bf16"), ("f32", "f16"), ("f16", "f16"))
"""Storage of the residual stream, and of branches and normed output."""
PLAIN_ACTIVATIONS = ("gelu_tanh", "gelu", "silu", "relu", "relu2")
GATED_ACTIVATIONS = (*PLAIN_ACTIVATIONS, "sigmoid", "identity")

REGISTER_BUDGETS = {
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
"""Most registers of a thread, by family of kernels.

A multiprocessor has 65,536 registers. Divided by these and by the threads of a block they give the
number of resident blocks, which hide each other's waiting for memory: 64 registers leave room for
1,024 threads, half of what a multiprocessor can hold.
"""

ArgumentKind = Literal["ptr", "i32", "i64", "real"]


class KernelArgument(NamedTuple):
    """An argument that a kernel declares."""

    name: str
    kind: ArgumentKind
    """`real` is float32, in an f64 module float64."""


# ---- Modules -------------------------------------------------------------------------------------

_FILES = {
    "ce": "cross_entropy.cu",
    "norm": "norm.cu",
    "act": "activation.cu",
    "reduce": "reduce.cu",
    "adamw": "adamw.cu",
}
"""Kernel file by the first word of a module's name."""


@cache
def _read_file(name: str) -> str:
    return (files("andrea.kernels") / name).read_text(encoding="utf-8")


@cache
def module_names(real: str = "f32") -> tuple[str, ...]:
    """Return every module that computes in `real`: `f32`, or `f64` for the numerical derivatives
    of the tests.
    """
    storage_types: tuple[str, ...] = STORAGE_TYPES
    norm_types: tuple[tuple[str, str], ...] = NORM_TYPES
    if real == "f64":
        storage_types, norm_types = ("f64",), (("f64", "f64"),)
    return (
        *(f"ce_{storage}" for storage in storage_types),
        *(f"norm_{stream}_{branch}" for stream, branch in norm_types),
        *(f"act_{name}_{storage}" for name in GATED_ACTIVATIONS for storage in storage_types),
        f"reduce_{real}",
        *(f"adamw_{storage}" for storage in storage_types),
    )


def module_text(module: str) -> str:
    """Return everything that a compiler needs for a module: it includes no other file."""
    return _read_file("rt.cuh") + module_body(module)


def module_body(module: str) -> str:
    """Return a module's text without `rt.cuh`, so that tests can compile several modules as one
    unit. A namespace of its own keeps equal names of different modules apart.
    """
    family, *words = module.split("_")
    typedefs = [f"typedef {words[-1]} T;"]
    macros = {"TYPES": words[-1]}
    if family == "norm":
        typedefs.append(f"typedef {words[0]} R;")
        macros["TYPES"] = "_".join(words)
    if family == "act":
        macros["ACT"] = "_".join(words[:-1])
    lines = [
        f"namespace {module}_module {{",
        *typedefs,
        *(f"#define {name} {value}" for name, value in macros.items()),
        _read_file(_FILES[family]),
        *(f"#undef {name}" for name in macros),
        "}\n",
    ]
    return "\n".join(lines)


# ---- Kernels -------------------------------------------------------------------------------------


_KERNELS = {
    "ce": ("ce", "ce_scale"),
    "norm": ("norm_fwd_ln", "norm_fwd_rms", "norm_bwd_ln", "norm_bwd_rms"),
    "reduce": ("reduce_parts",),
    "adamw": ("gradnorm", "adamw_prepare", "adamw"),
}
"""Kernels of a module by its first word, without their types; activations have names of their own.
"""


def kernel_names(module: str) -> tuple[str, ...]:
    """Return the kernels of a module."""
    family, _, suffix = module.partition("_")
    if family == "act":
        function, storage = suffix.rsplit("_", 1)
        variants = (("fwd", "plain"), ("bwd", "plain"), ("fwd", "gated"), ("bwd", "gated"))
        return tuple(f"act_{way}_{function}_{form}_{storage}" for way, form in variants)
    return tuple(f"{kernel}_{suffix}" for kernel in _KERNELS[family])


@cache
def _modules_by_kernel() -> dict[str, str]:
    modules = module_names("f32") + module_names("f64")
    return {kernel: module for module in modules for kernel in kernel_names(module)}


def module_of(kernel: str) -> str:
    """Return the module that contains a kernel.

    Raises:
        KeyError: no module has it.
    """
    return _modules_by_kernel()[kernel]


def kernel_family(kernel: str) -> str:
    """Return a kernel's name without variant and types: a key of `REGISTER_BUDGETS`."""
    families = [family for family in REGISTER_BUDGETS if kernel.startswith(f"{family}_")]
    # `adamw_prepare_f32` begins with `adamw_` too.
    return max(families, key=len)


@cache
def kernel_arguments(kernel: str) -> tuple[KernelArgument, ...]:
    """Return a kernel's arguments in order, read from its text: nothing declares them twice.

    Raises:
        KeyError: there is no such kernel.
    """
    text = _read_file(_FILES[module_of(kernel).split("_")[0]])
    words = kernel.split("_")
    family = kernel_family(kernel)
    # The files spell the name as `NAME(norm_fwd_ln)(...) {`, `PLAIN(act_fwd)(...) {` and so on.
    macro = {"plain": "PLAIN", "gated": "GATED"}.get(words[-2], "NAME")
    if family.startswith("norm"):
        family += f"_{words[2]}"
    declaration = re.search(rf"\b{macro}\({family}\)\(\s*([^{{]*?)\) {{", text)
    assert declaration, f"{kernel}: no such kernel in its file"
    parameters = declaration[1]
    if parameters.endswith("ARGUMENTS"):  # a list that several kernels share, defined as a macro
        shared_list = re.search(rf"#define {parameters}((?:.*\\\n)*.*\n)", text)
        assert shared_list, f"{kernel}: no {parameters} in its file"
        parameters = shared_list[1].replace("\\\n", " ")
    return _parse_parameters(parameters)


def _parse_parameters(parameters: str) -> tuple[KernelArgument, ...]:
    """Read C++ parameters; in `const R *x, i64 n` a type holds for one name alone."""
    scalar_kinds: dict[str, ArgumentKind] = {"int": "i32", "i64": "i64", "real": "real"}
    arguments = []
    for parameter in parameters.split(","):
        *type_words, name = parameter.replace("*", " * ").split()
        kind: ArgumentKind = "ptr"
        if "*" not in type_words:
            kind = scalar_kinds[type_words[-1]]
        arguments.append(KernelArgument(name, kind))
    return tuple(arguments)


def type_suffix(dtype: object) -> str:
    """Return the kernels' name of a storage type: `bf16` for `torch.bfloat16` or `"bfloat16"`.

    Raises:
        ValueError: no kernel stores this type.
    """
    suffixes = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}
    name = str(dtype).removeprefix("torch.")
    if name not in suffixes:
        raise ValueError(f"no kernel for {dtype}; there are {', '.join(suffixes)}")
    return suffixes[name]
