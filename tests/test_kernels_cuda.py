"""The CUDA backend before a driver that is not there: what is asked of it, and when. (Speed and
truth need a GPU.)
"""

import contextlib
import enum
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from andrea.errors import UserError
from andrea.kernels import backend, launch_plans, nvrtc, source
from andrea.kernels import cuda as gpu


class Status(enum.IntEnum):
    SUCCESS = 0
    REFUSED = 1


class Driver:
    """Records requests; has a current device, streams, and whether one is being captured."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.current, self.capturing, self.streams = 0, False, {0: "stream of 0", 1: "stream of 1"}

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        yield
        self.current = before

    def set_attribute(self, attribute: Any, value: int, kernel: Any, device: int) -> tuple[Status]:
        self.said.append(("shared", kernel, value, device))
        return (Status.SUCCESS,)

    def exchange(self, mode: str) -> tuple[Status, str]:
        self.said.append(("mode", mode))
        return Status.SUCCESS, "global"

    def launch(self, stream: str, config: Any, kernel: Any, *values: Any) -> None:
        self.said.append(("launch", self.current, stream, vars(config), kernel.handle, values))

    def cubin(self, module: str, arch: str) -> Any:
        self.said.append(("compile", module, arch, self.current))
        own = {i: SimpleNamespace(shared_size_bytes=256) for i in (0, 1)}
        return SimpleNamespace(get_kernel=lambda name: SimpleNamespace(handle=name, attributes=own))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A machine with two H200."""
    found = Driver()
    core, bindings, low = (
        ModuleType("cuda.core"),
        ModuleType("cuda.bindings"),
        ModuleType("cuda.bindings.driver"),
    )
    core.__dict__.update(LaunchConfig=SimpleNamespace, launch=found.launch)
    low.__dict__.update(
        CUfunction_attribute=SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic"
        ),
        CUdevice_attribute=SimpleNamespace(
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN="optin"
        ),
        CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed"),
        cuKernelSetAttribute=found.set_attribute,
        cuDeviceGetAttribute=lambda name, index: (Status.SUCCESS, 232448),
        cuThreadExchangeStreamCaptureMode=found.exchange,
    )
    bindings.driver = low  # type: ignore[attr-defined]
    modules = {
        "cuda": ModuleType("cuda"),
        "cuda.core": core,
        "cuda.bindings": bindings,
        "cuda.bindings.driver": low,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    properties = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "device", found.device)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: found.streams[device.index])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: found.capturing)
    monkeypatch.setattr(nvrtc, "compile_module", found.cubin)
    return found


def on(index: int) -> gpu.CudaBackend:
    return gpu.CudaBackend(torch.device("cuda", index))


ARGUMENTS = (torch.zeros(3), None, np.int64(3))


def test_arguments_are_addresses_null_pointers_and_typed_numbers(driver: Driver) -> None:
    on(0).launch("ce_bf16", 7, 256, 1024, ARGUMENTS)
    *_, (_, _, _, config, kernel, values) = driver.said
    assert config == {"grid": 7, "block": 256, "shmem_size": 1024} and kernel == "ce_bf16"
    assert values == (ARGUMENTS[0].data_ptr(), 0, 3) and isinstance(values[2], np.int64)  # type: ignore[union-attr]


def test_a_tensor_on_cuda_1_while_0_is_current(driver: Driver) -> None:
    on(1).launch("ce_bf16", 1, 32, 0, ARGUMENTS)
    assert ("compile", "ce_bf16", "sm_90", 1) in driver.said
    assert driver.said[-1][:3] == ("launch", 1, "stream of 1") and driver.current == 0


def test_the_stream_is_the_one_that_torch_uses_at_that_moment(driver: Driver) -> None:
    serving = on(0)
    for name in ("stream of a graph", "side stream"):
        driver.streams[0] = name
        serving.launch("ce_bf16", 1, 32, 0, ARGUMENTS)
        assert driver.said[-1][2] == name


def test_a_cold_module_inside_a_capture_is_loaded_aside(driver: Driver) -> None:
    serving, driver.capturing = on(0), True
    serving.launch("ce_bf16", 1, 32, 0, ARGUMENTS)
    kinds = [entry[0] for entry in driver.said]
    assert kinds == ["mode", "compile", "shared", "shared", "mode", "launch"]
    assert [entry[1] for entry in driver.said if entry[0] == "mode"] == ["relaxed", "global"]
    driver.said.clear()
    serving.launch("ce_scale_bf16", 1, 32, 0, ARGUMENTS)
    assert [entry[0] for entry in driver.said] == ["launch"]


def test_modules_that_are_loaded_before_are_only_launched(driver: Driver) -> None:
    serving = on(0)
    serving.load_modules(["adamw_f32"])
    driver.said.clear()
    driver.capturing = True
    for name in source.kernel_names("adamw_f32"):
        serving.launch(name, 1, 256, 0, ARGUMENTS)
    assert {entry[0] for entry in driver.said} == {"launch"}


def test_every_device_loads_its_own(driver: Driver) -> None:
    for serving in (on(0), on(1)):
        serving.launch("ce_bf16", 1, 32, 0, ARGUMENTS)
        serving.launch("ce_bf16", 1, 32, 0, ARGUMENTS)
    assert [entry[3] for entry in driver.said if entry[0] == "compile"] == [0, 1]


def test_a_kernel_may_use_all_shared_memory_that_a_block_can_have(driver: Driver) -> None:
    serving = on(0)
    serving.load_modules(["norm_f32_bf16"])
    granted = {kernel: value for kind, kernel, value, _ in driver.said[1:] if kind == "shared"}
    assert set(granted) == set(source.kernel_names("norm_f32_bf16")) and set(granted.values()) == {
        232448 - 256
    }
    assert serving.limits == launch_plans.DeviceLimits(232448 - 1024, 132)


def test_a_driver_that_refuses_is_quoted(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    low = sys.modules["cuda.bindings"].driver
    monkeypatch.setattr(low, "cuKernelSetAttribute", lambda *_: (Status.REFUSED,))
    with pytest.raises(
        RuntimeError, match="ce_bf16: the driver refuses 232192 bytes of shared memory: REFUSED"
    ):
        on(0).load_modules(["ce_bf16"])


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch sees a device; whether kernels can be compiled is asked anew."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    nvrtc.missing_requirement.cache_clear()
    yield
    nvrtc.missing_requirement.cache_clear()


def test_cuda_core_missing_is_said_in_one_line(
    with_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = nvrtc.importlib.util.find_spec
    monkeypatch.setattr(
        nvrtc.importlib.util,
        "find_spec",
        lambda name: None if name.startswith("cuda") else find(name),
    )
    device = torch.device("cuda", 0)
    assert (
        backend.missing_requirement(device)
        == "the CUDA kernels need cuda-core: pip install 'andrea[gpu]'"
    )
    with pytest.raises(UserError, match=r"need cuda-core: .*; set train\.kernels=torch"):
        backend.backend_of(device)


def test_nvrtc_missing_is_said_in_one_line(with_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> tuple[int, int]:
        raise RuntimeError('Failure finding "libnvrtc.so.13"\nat length')

    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(nvrtc, "nvrtc_version", absent)
    line = backend.missing_requirement(torch.device("cuda", 0))
    assert (
        line == 'the CUDA kernels need NVRTC (Failure finding "libnvrtc.so.13"): pip install '
        "'andrea[gpu]'"
    )


def test_an_old_device_is_said_in_one_line(with_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    assert (
        backend.missing_requirement(torch.device("cuda", 0))
        == "the CUDA kernels need compute capability 8.0, Tesla T4 has 7.5"
    )


def test_no_device_is_said_in_one_line() -> None:
    assert (
        backend.missing_requirement(torch.device("cuda", 0))
        == "the CUDA kernels need a CUDA device, and this torch sees none"
    )
    assert (
        backend.missing_requirement(torch.device("cpu"))
        == "the CUDA kernels do not run on device cpu"
    )
