"""metrics.jsonl of one attempt: appended record by record, truncated to a checkpoint's offset on a
resume.
"""

import json
import os
from pathlib import Path

from andrea.records.run import MetricRecord

VOLATILE = (
    "seconds",
    "wall_seconds",
    "tokens_per_s",
    "peak_memory_bytes",
    "attempts",
    "finished_at",
)
"""Fields of records and results that a repeat or a resume may change; all others are equal bit for
bit.
"""


class MetricsFile:
    """An open metrics file.

    Args:
        path: created where it does not exist.
        offset: bytes to keep; anything that a killed attempt wrote beyond them is cut off.

    Raises:
        ValueError: the file is shorter than the offset, so it does not belong to that checkpoint.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        size = path.stat().st_size if path.exists() else 0
        if size < offset:
            raise ValueError(f"{path.name} has {size} bytes, the checkpoint wants {offset}")
        self.offset = offset
        self._file = path.open("ab")
        self._file.truncate(offset)

    def append(self, record: MetricRecord) -> None:
        """Write one record and flush, so that a reader sees whole lines and a kill tears at most
        the last one.
        """
        line = (json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False) + "\n").encode()
        self._file.write(line)
        self._file.flush()
        self.offset += len(line)

    def sync(self) -> None:
        """Write everything to the disk, before a checkpoint refers to it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
