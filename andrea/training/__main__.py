"""`python -m andrea.training JOB.json`: train one job in a process of its own. Exit status as of
the andrea command.
"""

import sys
from pathlib import Path

from andrea.config import build
from andrea.errors import AndreaError, UserError, reason
from andrea.store.files import read_mapping
from andrea.training.job import Job


def main(arguments: list[str]) -> int:
    """Run the job in a file: 0, the run is done; 1, it failed or is being trained elsewhere; 2, no
    job.
    """
    try:
        if len(arguments) != 1:
            raise UserError("usage: python -m andrea.training JOB.json")
        path = Path(arguments[0])
        described = read_mapping(path)
        if described is None:
            raise UserError(f"{path}: {'not a job in JSON' if path.exists() else 'no such file'}")
        job = build(Job, described, str(path))
        result = job.run()
    except AndreaError as error:
        print(f"andrea: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        print(f"andrea: {reason(error)}", file=sys.stderr)
        return 1
    if result is None:
        print(f"andrea: run {job.run_id[:12]} is being trained by another process", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
