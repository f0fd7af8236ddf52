#!/usr/bin/env bash
# Everything about the CUDA kernels that only a GPU can show, in at most six minutes, without a network.
#
#     benchmarks/gpu.sh WHEELS OUT
#
# WHEELS: a folder of wheels for what that machine's Python lacks besides torch (benchmarks/gpu_wheels.sh fetches them).
# OUT: a folder for check.json, training.json, bench.json, sanitizer.json and gpu.json, which is all of them together.
# What ran out of time or does not run there is "n/a" in gpu.json. Shown by: python benchmarks/gpu_report.py OUT/gpu.json
set -uo pipefail
cd "$(dirname "$0")/.."
wheels=$1 out=$2
python=${PYTHON:-python3}
mkdir -p "$out"
site=$(mktemp -d)
deadline=$((SECONDS + ${BUDGET:-340}))

"$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$wheels"/*.whl || exit 1
export PYTHONPATH="$PWD:$site" PYTHONUNBUFFERED=1 ANDREA_CACHE="$site/cache" TORCHINDUCTOR_CACHE_DIR="$site/inductor"

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
reserve=0 # seconds that a step leaves to those after it

step() { # step NAME SECONDS COMMAND...: within its time and the whole's, less the reserve
    local name=$1 most=$2 left=$((deadline - SECONDS - reserve)) begin=$SECONDS
    shift 2
    ((left < most)) && most=$left
    if ((most < 5)); then
        echo "$name: no time left"
        return
    fi
    timeout --kill-after=5 "$most" "$@"
    echo "$name: status $?, $((SECONDS - begin)) s"
}

# All modules at once, into the cache that the steps below read.
arch=$("$python" -c 'import torch; print("sm_%d%d" % torch.cuda.get_device_capability())') || exit 1
compile='import sys; from andrea.kernels import nvrtc; nvrtc.compile_module(sys.argv[1], sys.argv[2])'
modules() { "$python" -c 'from andrea.kernels import source; print("\n".join(source.module_names()))'; }
begin=$SECONDS
modules | timeout 60 xargs -P "$(nproc)" -I {} "$python" -c "$compile" {} "$arch"
echo "compile: status $?, $((SECONDS - begin)) s"

step check 75 "$python" benchmarks/gpu_check.py "$out/check.json"
# Bench before training, which takes what is left: 60 s are for the sanitizer, half of them for its second tool.
[ -n "$sanitizer" ] && reserve=60
step bench 75 "$python" benchmarks/gpu_bench.py "$out/bench.json"
step training 170 "$python" benchmarks/gpu_train.py "$out/training.json"
for tool in memcheck racecheck; do
    reserve=0
    [ "$tool" = memcheck ] && reserve=30
    if [ -n "$sanitizer" ]; then
        step "$tool" 60 "$sanitizer" --tool "$tool" --error-exitcode 9 --log-file "$out/$tool.log" \
            "$python" benchmarks/gpu_check.py "$out/$tool.json" --small
    else
        echo "$tool: n/a, compute-sanitizer is not here"
    fi
done
"$python" benchmarks/gpu_report.py --collect "$out"
