"""Bandwidth of every kernel beside plain torch, torch.compile and Liger, as JSON.

python benchmarks/gpu_bench.py OUT.json
"""

import json
import sys
from pathlib import Path

import torch

from andrea.kernels.bench import bench


def main() -> None:
    out, rows, copied = Path(sys.argv[1]), [], 0.0
    for result in bench(torch.device("cuda", 0)):
        rows.append(result.to_dict())
        copied = result.copy_gbps
        print(
            result.op,
            {way: f"{ms:.3f} ms, {result.share(way):.0%}" for way, ms in result.ms.items()},
        )
        # After each, so that a run that is cut short leaves what it had.
        out.write_text(json.dumps({"copy_gbps": copied, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
