"""Follows the metrics of runs at work by reading what was appended to their files."""

from pathlib import Path

from andrea.records.run import MetricRecord
from andrea.store.files import parse_record
from andrea.store.runs import RunStore


class Tail:
    """New records of one run since the last look; a torn last line waits for its rest."""

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._path: Path | None = None
        self._offset = 0

    def read(self) -> list[MetricRecord]:
        """Return the records appended since the last call, oldest first."""
        folder = self._store.current(self._run_id)
        if folder is None:
            return []
        path = folder / "metrics.jsonl"
        if path != self._path:
            # The finished run's folder is its attempt renamed: the same file, read on where we
            # were.
            renamed = self._path is not None and folder.name == self._run_id
            self._path, self._offset = path, self._offset if renamed else 0
        try:
            with path.open("rb") as file:
                # A resume truncates to its checkpoint.
                self._offset = min(self._offset, file.seek(0, 2))
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        records = (MetricRecord.from_json(parse_record(line), path) for line in whole.splitlines())
        return [record for record in records if record is not None]
