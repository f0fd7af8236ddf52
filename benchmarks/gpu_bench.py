"""Bandwidth of every kernel beside plain torch, torch.compile and Liger, as JSON.

python benchmarks/gpu_bench.py OUT.json
"""

import json
import sys
from pathlib import Path

import torch

from andrea.kernels.bench import run_benchmarks


def main() -> None:
    out, rows = Path(sys.argv[1]), []
    for row in run_benchmarks(torch.device("cuda", 0)):
        rows.append(row.to_json())
        ways = {way: f"{ms:.3f} ms, {row.share_of_copy(way):.0%}" for way, ms in row.ms.items()}
        print(row.op, ways)
        # After each, so that a run that is cut short leaves what it had.
        out.write_text(json.dumps({"copy_gbps": row.copy_gbps, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
