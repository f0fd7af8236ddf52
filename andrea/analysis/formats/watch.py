"""Build reports again whenever their studies have moved, until there is nothing more to come."""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from andrea.analysis.formats.build import ReportJob, require_study
from andrea.analysis.formats.render import stop_reloading
from andrea.errors import AndreaError, UserError, reason
from andrea.store.studies import StudyFolder, list_studies

POLL = 2.0
"""Seconds between two looks."""
REFRESH = 10
"""Seconds after which a watched page loads itself again."""
_READ_ENDINGS = (".json", ".jsonl", ".yaml")
"""Endings of a study's own files that a report reads."""
_REST = 3
"""A build is followed by a rest of this many times what it took: watching leaves the cores to the
study.
"""


@dataclass
class Watched:
    """One report that is being watched."""

    job: ReportJob
    name: str
    formats: Sequence[str] | None = None
    """None: the page while runs are missing, everything once they are there."""
    written: list[Path] = field(default_factory=list)
    """Files of the last build that went well."""
    seen: Hashable = None
    fault: str = ""
    """Why the last build failed; empty where it did not."""
    runs: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)

    def study_folders(self) -> list[StudyFolder]:
        """Return the studies that it is about, as there are now.

        Raises:
            Vanished: one is gone.
        """
        if self.job.run is not None:
            return []
        if self.job.studies is None:
            return list_studies(self.job.store)
        for folder in self.job.studies:
            require_study(folder)
        return list(self.job.studies)

    def is_complete(self) -> bool:
        """Return whether nothing more is to come."""
        if self.job.run is not None:
            return self.runs == self.done != set()
        return all(folder.complete for folder in self.study_folders())

    def current_state(self) -> Hashable:
        """Return a value that changes whenever a build would show something else: times and sizes
        of files, none read but the plan.
        """
        parts: list[Hashable] = [_file_state(self.job.script)]
        for folder in self.study_folders():
            for path in sorted(folder.path.glob("*.*")):
                if path.suffix in _READ_ENDINGS:
                    parts.append(_file_state(path))
            self.runs |= {spec.run_id for spec in folder.load_runs()}
        store = self.job.store
        if self.job.run is not None:
            prefix = self.job.run.strip().lower()  # as `run_view.resolve_run_id` takes it
            paths = (store.root / "runs" / prefix[:2]).glob(f"{prefix}*")
            self.runs |= {path.name.partition(".")[0] for path in paths}
        for run_id in sorted(self.runs - self.done):
            if (store.folder(run_id) / "result.json").exists():
                self.done.add(run_id)
                continue
            current = store.current(run_id)
            logged = _file_state(current / "metrics.jsonl") if current else None
            parts.append((run_id, logged, store.lease(run_id) is None))
        return (len(self.done), *parts)


def watch_reports(
    watched: Sequence[Watched], say: Callable[[str], None], complain: Callable[[str], None]
) -> None:
    """Build every report, and again whenever something has changed, until all are complete or
    Ctrl-C.

    A build that fails is said once and tried again; only a request that is wrong from the start
    ends the watch. When it ends, however it ends, the pages no longer load themselves again.

    Args:
        watched: the reports; `written` tells afterwards what lies there.
        say: gets a line for every build.
        complain: gets a line for every build that failed, where it differs from the last.

    Raises:
        UserError: at the first build.
        Vanished: a study is gone.
    """
    try:
        while True:
            begun = time.monotonic()
            complete = [_rebuild_if_changed(one, say, complain) for one in watched]
            if all(complete):
                return
            time.sleep(max(POLL, _REST * (time.monotonic() - begun)))
    finally:
        for one in watched:
            for page in one.written[:1]:
                if page.suffix == ".html" and page.exists():
                    stop_reloading(page)


def _rebuild_if_changed(
    one: Watched, say: Callable[[str], None], complain: Callable[[str], None]
) -> bool:
    """Build the report where it has moved; return whether it is complete and built as it is."""
    state: Hashable = one.current_state()
    complete = one.is_complete()
    # A study may have ended since the last build looked at its files: the last build is another one
    # all the same.
    state = state, complete
    if state == one.seen:
        return complete
    begun = time.monotonic()
    try:
        formats = one.formats if complete or one.formats is not None else ["html"]
        one.written = one.job.make(formats, refresh=0 if complete else REFRESH)
    except Exception as error:
        if isinstance(error, UserError) and one.seen is None:
            raise
        one.study_folders()  # where a study is gone, that is the reason
        fault = str(error) if isinstance(error, AndreaError) else reason(error)
        if fault != one.fault:
            complain(f"{one.name}: not built, will try again: {fault}")
        one.fault = fault
        return False
    took = time.monotonic() - begun
    one.seen, one.fault = state, ""
    progress = f"{len(one.done)} of {len(one.runs)} runs done" + (", complete" if complete else "")
    now = time.strftime("%H:%M:%S")
    say(f"{now}  {one.name}: {progress}; built in {took:.1f} s: {one.written[0]}")
    return complete


def _file_state(path: Path) -> Hashable:
    try:
        status = path.stat()
    except OSError:
        return path.name, None
    return path.name, status.st_mtime_ns, status.st_size
