"""Trainings that checkpoint as often as they may. As a script, their controller: `study_real.py
ROOT STUDY SLOTS`.
"""

import sys
from pathlib import Path

from andrea.execution.local import LocalExecutor
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.controller import run_study


def run(root, cfg, data_folder, run_id, identity):
    from andrea.training.job import run_job

    return run_job(root, cfg, data_folder, run_id, identity, checkpoint_every_s=0.0)


if __name__ == "__main__":
    store = RunStore(Path(sys.argv[1]))
    executor = LocalExecutor(int(sys.argv[3]), run="study_real:run")
    sys.exit(0 if run_study(StudyFolder(Path(sys.argv[2])), store, executor).complete else 1)
