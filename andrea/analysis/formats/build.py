"""Make a report with a script: `build(study)`, `build_many(studies)` or `build_run(run)`, which
return a Report.
"""

import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from andrea.analysis.formats.pdf import require_weasyprint
from andrea.analysis.formats.render import write_report
from andrea.analysis.load import load, load_all, load_run
from andrea.analysis.report import Report
from andrea.errors import AndreaError, StudyError, UserError, nearest
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder

FORMATS = ("html", "md", "csv", "parquet", "json", "tex")
"""What is written where nobody names formats: all that need no extra."""
EVERY_FORMAT = (*FORMATS, "pdf")
TAKES = {"build": "study", "build_many": "studies", "build_run": "run"}
"""The function that a script defines → what it is called with."""


@dataclass(frozen=True)
class Script:
    """A report script, loaded."""

    path: Path
    takes: str
    """study, studies or run."""
    build: Callable[[Any], Any]


@dataclass(frozen=True)
class ReportJob:
    """A report to make, once or again and again."""

    store: RunStore
    script: Path
    studies: tuple[StudyFolder, ...] | None = None
    """The studies that it is about; None for all of the store."""
    run: str | None = None
    """The run that it is about, by its id or the beginning of it."""
    out: Path | None = None
    """Folder to write to; by default the study's `report`, else one in the store's `reports`."""

    def make(self, formats: Sequence[str] | None = None, refresh: int = 0) -> list[Path]:
        """Write the report, of what is there.

        Args:
            formats: of `EVERY_FORMAT`; None means `FORMATS`.
            refresh: seconds after which the page loads itself again; 0 for never.

        Returns:
            The files that were written, the page first.

        Raises:
            UserError: an unknown format, an output that is a file, a script that defines none of
                `TAKES`, or one that wants something else than was named.
            StudyError: the script failed or the disk did; the runs are as they were.
        """
        formats = checked_formats(formats)
        if self.out is not None:
            _require_folder(self.out)
        script = load_script(self.script)
        subject, target = self._script_input(script)
        _require_folder(target)
        report = _run_script(script, subject)
        try:
            return write_report(report, self.script.parent, target, formats, refresh)
        except OSError as error:
            raise StudyError(
                f"{target}: the report cannot be written ({error.strerror or error})"
            ) from error
        except UserError as error:
            raise UserError(f"{script.path}: {error}") from error
        except AndreaError:
            raise
        except Exception as error:
            raise StudyError(
                f"{_error_location(script.path, error)}: the report cannot be rendered "
                f"({_error_text(error)})"
            ) from error

    def _script_input(self, script: Script) -> tuple[Any, Path]:
        """Return what the script is called with, and the folder of its report."""
        place = self.store.root / "reports"
        if script.takes == "run":
            if self.run is None:
                raise UserError(
                    f"{script.path}: reports on one run; name it: andrea report --kind "
                    f"{script.path.stem} ID"
                )
            view = load_run(self.store, self.run)
            return view, self.out or place / f"run-{view.run_id[:12]}"
        if script.takes == "studies":
            if self.studies is None:
                studies = load_all(self.store)
            else:
                studies = [load(folder, self.store) for folder in self.studies]
            return studies, self.out or place / script.path.stem
        if not self.studies or len(self.studies) > 1:
            raise UserError(
                f"{script.path}: reports on one study; name one (`andrea status` lists them)"
            )
        (folder,) = self.studies
        require_study(folder)
        default_kind = script.path.stem in ("comparison", "sweep")
        name = "report" if default_kind else f"report-{script.path.stem}"
        return load(folder, self.store), self.out or folder.path / name


def make_report(
    store: RunStore,
    folder: StudyFolder,
    formats: Sequence[str] | None,
    script: Path,
    out: Path | None = None,
) -> list[Path]:
    """Write the report of one study; see `ReportJob.make`."""
    return ReportJob(store, script, (folder,), out=out).make(formats)


class Vanished(StudyError):
    """A study that was there is not there any more."""


def require_study(folder: StudyFolder) -> None:
    """Make sure that a study that was found still is: its report would make a folder of it again.

    Raises:
        Vanished: it is gone.
    """
    if not folder.path.is_dir():
        raise Vanished(f"{folder.path}: the study is gone; there is nothing to report on")


def load_script(script: Path) -> Script:
    """Return a report script, loaded.

    Raises:
        UserError: the file is missing, does not run, or defines not exactly one of `TAKES`.
    """
    if not script.is_file():
        raise UserError(
            f"{script}: no such report script; name a Python file that defines build(study)"
        )
    module = ModuleType(f"andrea_report_{script.stem}")
    module.__file__ = str(script)
    sys.modules[module.__name__] = module  # dataclasses in the script look themselves up there
    try:
        # Not imported: that would leave a __pycache__ among the user's reports.
        exec(compile(script.read_bytes(), str(script), "exec"), module.__dict__)
    except AndreaError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{_error_location(script, error)}: this report script does not run "
            f"({_error_text(error)})"
        ) from error
    defined = [name for name in TAKES if callable(getattr(module, name, None))]
    if len(defined) != 1:
        there = " and ".join(defined) or "no build"
        raise UserError(
            f"{script}: a report script defines build(study) and returns a Report (or "
            "build_many(studies), or "
            f"build_run(run)); there is {there}"
        )
    return Script(script, TAKES[defined[0]], getattr(module, defined[0]))


def _run_script(script: Script, subject: Any) -> Report:
    try:
        report = script.build(subject)
    except UserError as error:
        raise UserError(f"{_error_location(script.path, error)}: {error}") from error
    except AndreaError:
        raise
    except (Exception, SystemExit) as error:
        raise StudyError(
            f"{_error_location(script.path, error)}: the report failed ({_error_text(error)}); the "
            f"{script.takes} "
            f"{'are' if script.takes == 'studies' else 'is'} untouched"
        ) from error
    if not isinstance(report, Report):
        raise UserError(
            f"{script.path}: build({script.takes}) returned {type(report).__name__}, not a Report"
        )
    return report


def _error_location(script: Path, error: BaseException) -> str:
    """Return the file and the line in the script or a template at which it went wrong, so that its
    author can mend it.
    """
    if isinstance(error, SyntaxError):
        return f"{error.filename or script}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename) == script or frame.filename.endswith(".j2"):
            return f"{frame.filename}:{frame.lineno}"
    return str(script)


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _require_folder(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise UserError(f"{target}: is a file; name a folder for the report")


def checked_formats(formats: Sequence[str] | None) -> list[str]:
    """Return the formats to write, each once.

    Raises:
        UserError: one that there is not, none at all, or pdf without weasyprint.
    """
    if formats is None:
        return list(FORMATS)
    for name in formats:
        if name not in EVERY_FORMAT:
            raise UserError(f"--format: unknown {name!r}; {nearest(name, EVERY_FORMAT)}")
    if not formats:
        raise UserError(f"--format: names none; there are {', '.join(EVERY_FORMAT)}")
    if "pdf" in formats:
        require_weasyprint()
    return list(dict.fromkeys(formats))
