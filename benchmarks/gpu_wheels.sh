#!/usr/bin/env bash
# Fetch the wheels that benchmarks/gpu.sh carries to a machine with Python 3.12, torch for CUDA and its NVRTC, and nothing
# of ours. Behind WHEELS more packages may be named: nvidia-cuda-nvrtc (56 MB) where torch came without it, liger-kernel.
#
#     benchmarks/gpu_wheels.sh WHEELS [PACKAGE...]
set -euo pipefail
packages=(cuda-core cuda-bindings cuda-pathfinder pydantic pydantic-core annotated-types typing-inspection
    typing-extensions "${@:2}")
platforms=(--platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_24_x86_64
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux2010_x86_64)
pins=()
for package in "${packages[@]}"; do
    version=$(python3 -c "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))" "$package" 2>/dev/null || true)
    pins+=("$package${version:+==$version}")
done
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" \
    -d "$1" "${pins[@]}"
ls -lh "$1"
