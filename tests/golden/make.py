"""Makes ./store anew: trains golden.yaml with everything that can be asked for, and keeps what a
report reads.

    python tests/golden/make.py

Fifty-odd trainings of a second each. Run ids depend on the platform, so a store made elsewhere has
other names and other noise; tests/test_report_golden.py computes what it expects from whatever is
there. Left out are checkpoints, logs, the corpus, what is rebuilt (the journal, the report) and, of
versions, what names the machine; JSON is written without spaces.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
STUDY = ("study.json", "resolved.json", "choices.json", "verdict.json", "asked.json", "speed.json")
ASIS = ("protocol.yaml", "runs.jsonl")
RUN = ("config.json", "env.json", "result.json")
MACHINE = ("host", "system")


def main() -> None:
    """Train, then replace ./store."""
    with tempfile.TemporaryDirectory() as made:
        asked = [
            "--controls",
            "--confirm",
            "--equal",
            "flops,time",
            "--slots",
            "1",
            "--wandb",
            "off",
        ]
        command = [
            sys.executable,
            str(HERE.parents[1] / "cli.py"),
            "ablate",
            str(HERE / "golden.yaml"),
            "--runs",
            made,
        ]
        subprocess.run([*command, *asked], check=True)
        shutil.rmtree(HERE / "store", ignore_errors=True)
        keep(Path(made), HERE / "store")


def keep(made: Path, store: Path) -> None:
    """Copy what a report reads of the one study that was made."""
    study = next((made / "studies").iterdir())
    files = [study / name for name in (*STUDY, *ASIS)]
    for run in sorted((made / "runs").glob("*/*/")):
        files += [run / name for name in (*RUN, "metrics.jsonl")]
    for source in [made / "store.json", *sorted(made.glob("data/*/meta.json")), *files]:
        target = store / source.relative_to(made)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(compact(source), encoding="utf-8")


def compact(path: Path) -> str:
    """The file's text; of JSON without spaces, and of what was installed without the machine."""
    if path.suffix != ".json":
        return path.read_text(encoding="utf-8")
    told = json.loads(path.read_text(encoding="utf-8"))
    for versions in (told if path.name == "env.json" else {}, told.get("versions") or {}):
        for key in MACHINE:
            versions.pop(key, None)
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
