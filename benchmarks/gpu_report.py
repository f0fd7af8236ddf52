"""Put the parts of a GPU run together, and show them as the tables of docs/performance.md.

python benchmarks/gpu_report.py --collect FOLDER     writes FOLDER/gpu.json
python benchmarks/gpu_report.py FOLDER/gpu.json      prints Markdown
"""

import json
import sys
from pathlib import Path
from typing import Any

PARTS = ("check", "training", "bench", "memcheck", "racecheck")


def collect(folder: Path) -> dict[str, Any]:
    """All parts; what is missing is "n/a"."""
    import torch

    found: dict[str, Any] = {part: _read(folder / f"{part}.json") for part in PARTS}
    for tool in ("memcheck", "racecheck"):
        log = folder / f"{tool}.log"
        if log.exists():
            lines = [line.strip("= ") for line in log.read_text(errors="replace").splitlines()]
            said = [line for line in lines if "SUMMARY" in line]
            found[tool] = said[-1] if said else "n/a (cut short)"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {"device": device, "torch": torch.__version__, "cuda": torch.version.cuda, **found}


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return "n/a"


def markdown(run: dict[str, Any]) -> str:
    """Tables."""
    lines = [f"{run['device']}, torch {run['torch']}, CUDA {run['cuda']}.", ""]
    if run["check"] != "n/a":
        wrong = [f"{row['op']} {row['dtype']}" for row in run["check"]["rows"] if row["failed"]]
        lines += [
            f"Check: {run['check']['comparisons']:,} comparisons, wrong: "
            f"{', '.join(wrong) or 'none'}."
        ]
        lines += [
            f"{name.replace('_', ' ')}: {said}." for name, said in run["check"]["driver"].items()
        ]
    lines += [f"compute-sanitizer {tool}: {run[tool]}." for tool in ("memcheck", "racecheck")] + [
        ""
    ]
    if run["training"] != "n/a":
        lines += [
            "| model | kernels | tokens/s | slowest and fastest round | MFU |",
            "|---|---|---:|---:|---:|",
        ]
        for row in run["training"]["rows"]:
            for route, one in row["routes"].items():
                mfu = "n/a" if one["mfu"] is None else f"{one['mfu']:.1%}"
                spread = f"{one['slowest']:,.0f} – {one['fastest']:,.0f}"
                lines.append(
                    f"| {row['preset']} | {route} | {one['tokens_per_s']:,.0f} | {spread} | {mfu} |"
                )
        lines.append("")
    if run["bench"] != "n/a":
        lines += [f"A copy moves {run['bench']['copy_gbps']:,.0f} GB/s.", ""]
        lines += ["| op | type | by | ms | GB/s | of a copy |", "|---|---|---|---:|---:|---:|"]
        for row in run["bench"]["rows"]:
            for way, one in row["ways"].items():
                numbers = f"{one['ms']:.3f} | {one['gbps']:,.0f} | {one['share']:.0%}"
                lines.append(f"| {row['op']} | {row['dtype']} | {way} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1] == "--collect":
        folder = Path(sys.argv[2])
        (folder / "gpu.json").write_text(json.dumps(collect(folder), indent=1) + "\n")
    else:
        print(markdown(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
