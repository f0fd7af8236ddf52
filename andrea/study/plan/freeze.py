"""Writes a plan as a study folder, once: from then on the question and all that it became hold."""

import shutil
from datetime import UTC, datetime

import yaml

from andrea.errors import StudyError
from andrea.records.study import ResolvedArm, ResolvedStudy, StudyInfo
from andrea.store.digest import digest
from andrea.store.files import locked, write_atomic
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.plan import frozen
from andrea.study.plan.plan import ArmPlan, Plan
from andrea.study.question.sweep import Sweep


def freeze(plan: Plan, store: RunStore) -> StudyFolder:
    """Write the study's folder, or find the one of the same question: then that one holds.

    Raises:
        StudyError: the folder cannot be written.
    """
    folder = StudyFolder(store.root / "studies" / plan.folder_name)
    try:
        with locked(folder.path / "freeze.lock", make_folder=True):
            # study.json is written last: a folder with it is whole, one without is written again.
            if not (folder.path / "study.json").exists():
                _write(plan, folder)
    except OSError as error:
        raise StudyError(
            f"cannot write the study to {folder.path}: {error.strerror or error}"
        ) from error
    return folder


def _write(plan: Plan, folder: StudyFolder) -> None:
    now = datetime.now(UTC)
    write_atomic(folder.path / "protocol.yaml", _question_as_yaml(plan))
    if plan.variants:
        shutil.copy2(plan.variants, folder.path / plan.variants.name)
    folder.save_resolved(_resolved(plan, now))
    info = StudyInfo(
        kind=plan.kind,
        name=plan.name,
        digest=plan.digest,
        key=digest({"name": plan.name, "digest": plan.digest}),
        created=now.isoformat(),
    )
    folder.write("study.json", info.to_json())


def _question_as_yaml(plan: Plan) -> str:
    question = {"kind": plan.kind, "name": plan.name, **plan.spec.model_dump(mode="json")}
    if isinstance(plan.spec, Sweep):
        from andrea.study.optuna_journal import sampling

        question["sampling"] = sampling(plan.spec)
    return yaml.safe_dump(question, sort_keys=False, allow_unicode=True, width=100)


def _resolved(plan: Plan, now: datetime) -> ResolvedStudy:
    from andrea.training.identity import run_environment

    fingerprint = plan.prepared.fingerprint
    device = next(iter(plan.arms.values())).config.train.device
    return ResolvedStudy(
        fingerprint=fingerprint,
        data_folder=f"data/{fingerprint}",
        arms={name: _resolved_arm(arm) for name, arm in plan.arms.items()},
        baseline=plan.baseline,
        differences=plan.differences,
        platform=frozen.platform_of(device),
        # Whole seconds, as in results: a run that ends in the second of the freeze is not older.
        frozen_at=now.isoformat(timespec="seconds"),
        exploratory=False,
        variants=plan.variants.name if plan.variants else None,
        versions=run_environment(device).to_json(),
    )


def _resolved_arm(arm: ArmPlan) -> ResolvedArm:
    return ResolvedArm(
        label=arm.label,
        config=arm.config.model_dump(mode="json"),
        asked=arm.unresolved.model_dump(mode="json"),
        parameters=arm.parameters,
        flops_per_token=arm.flops_per_token,
        deviation={**arm.deviation},
        solved=arm.solved,
    )
