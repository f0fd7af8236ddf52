"""Makes a study's report with a report script: `build(study) -> Report` in a Python file."""

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from andrea.analysis.load import Study, load
from andrea.analysis.render import write
from andrea.analysis.report import Report
from andrea.errors import AndreaError, StudyError, UserError, nearest
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder

FORMATS = ("html", "md", "csv", "parquet")


def make_report(
    store: RunStore, folder: StudyFolder, formats: Sequence[str] | None, reports: Path, out: Path | None = None
) -> list[Path]:
    """Write the report of a study, finished or not.

    Args:
        store: where its runs are.
        folder: the study.
        formats: of html, md, csv, parquet; None means all.
        reports: the script, `reports/comparison.py` or the user's own; templates/ beside it come first.
        out: folder to write to; by default `report` in the study's.

    Returns:
        The files that were written, the page first.

    Raises:
        UserError: an unknown format, an output that is a file, a script without `build`.
        StudyError: the script failed or the disk did; the study itself is as it was.
    """
    asked = _known(FORMATS if formats is None else formats)
    target = out or folder.path / "report"
    if target.exists() and not target.is_dir():
        raise UserError(f"{target}: is a file; name a folder for the report")
    build = load_script(reports)
    study = load(folder, store)
    report = _guarded(build, study, reports)
    try:
        return write(report, reports.parent, target, asked)
    except OSError as error:
        raise StudyError(f"{target}: the report cannot be written ({error.strerror or error})") from error


def load_script(script: Path) -> Callable[[Study], Any]:
    """The `build` function of a report script.

    Raises:
        UserError: the file is missing, does not run, or has no `build`.
    """
    if not script.is_file():
        raise UserError(f"{script}: no such report script; name a Python file that defines build(study)")
    module = ModuleType(f"andrea_report_{script.stem}")
    module.__file__ = str(script)
    sys.modules[module.__name__] = module  # dataclasses in the script look themselves up there
    try:
        # Not imported: that would leave a __pycache__ among the user's reports.
        exec(compile(script.read_bytes(), str(script), "exec"), module.__dict__)
    except AndreaError:
        raise
    except Exception as error:
        raise UserError(f"{_place(script, error)}: this report script does not run ({_said(error)})") from error
    build = getattr(module, "build", None)
    if not callable(build):
        raise UserError(f"{script}: a report script defines build(study) and returns a Report; there is no build")
    made: Callable[[Study], Any] = build
    return made


def _guarded(build: Callable[[Study], Any], study: Study, script: Path) -> Report:
    try:
        report = build(study)
    except AndreaError:
        raise
    except Exception as error:
        raise StudyError(
            f"{_place(script, error)}: the report failed ({_said(error)}); the study is untouched"
        ) from error
    if not isinstance(report, Report):
        raise UserError(f"{script}: build(study) returned {type(report).__name__}, not a Report")
    return report


def _place(script: Path, error: Exception) -> str:
    """File and line in the script where it went wrong, so that its author can mend it."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or script}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == script]
    return f"{script}:{lines[-1]}" if lines else str(script)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _known(formats: Sequence[str]) -> list[str]:
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"--format: unknown {name!r}; {nearest(name, FORMATS)}")
    if not formats:
        raise UserError(f"--format: names none; there are {', '.join(FORMATS)}")
    return list(dict.fromkeys(formats))
