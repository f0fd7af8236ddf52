"""Where runs are when nobody says where."""

import os
from pathlib import Path

DEFAULT_RUNS = Path("andrea-runs")


def usual_runs() -> Path:
    """The folder that a command without `--runs` uses."""
    return Path(os.environ.get("ANDREA_RUNS") or DEFAULT_RUNS)


def runs_option(root: Path) -> list[str]:
    """The option that a printed command needs to find the runs folder `root` from here; none for
    the usual one.
    """
    return [] if root.resolve() == usual_runs().resolve() else ["--runs", os.path.normpath(root)]
