"""From a request to a study folder: validate everything, prepare the data, resolve `auto`, write
the protocol once.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from andrea.config import RunConfig, build, refuse_twice
from andrea.data.config import DataConfig
from andrea.data.prepared import Prepared
from andrea.errors import StudyError, UserError
from andrea.records.extras import Extras
from andrea.store.digest import digest
from andrea.store.files import locked, write_atomic, write_json
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.study.plan import frozen
from andrea.study.plan.plan import ArmPlan, Plan, Request
from andrea.study.question.ablation import Ablation
from andrea.study.question.matching import Sized, matched
from andrea.study.question.sweep import Sweep
from andrea.study.stages.controls import positive_control_tokens

Progress = Callable[[str], None]
OPTIONS = {
    "tokens": "train.tokens",
    "device": "train.device",
    "trials": "protocol.trials",
    "seeds": "protocol.seeds",
}
"""Options of the command line that are settings like any other; a sweep has trials and seeds of its
own.
"""


def plan(request: Request, store: RunStore | None = None, progress: Progress | None = None) -> Plan:
    """Validate a request and resolve it. Fills the cache of prepared data, writes no study.

    Args:
        store: where data are cached and existing runs are looked for; without one, data are
            prepared for this process.
        progress: is told what takes a while.

    Raises:
        UserError: unknown or refused settings (all of them), a variant that cannot be built and
            run, bad budgets, a text that does not do, two arms that are one, arms that cannot be
            matched as the question asks.
        StudyError: the disk refused the prepared data.
    """
    spec = _overridden(request)
    name = _name(spec.name if request.name is None else request.name)
    asked = _asked_configs(spec)
    _rehearse(asked)
    arms: dict[str, ArmPlan] = {}

    def settle(prepared: Prepared) -> None:
        """All that can be refused only now: a text that is refused gets no place in the cache."""
        configs: dict[str, RunConfig] = {}
        for arm, config in asked.items():  # the baseline first: its route is everybody's
            configs[arm] = _settled(_on_route_of(configs, config), prepared)
        sizes = _matched(spec, configs) if isinstance(spec, Ablation) else {}
        arms.update(
            {
                arm: _arm(_label(spec, arm), asked[arm], configs[arm], sizes.get(arm))
                for arm in asked
            }
        )
        _require_different(arms, prepared.fingerprint)

    data, say = next(iter(asked.values())).data, progress or (lambda line: None)
    prepared = _prepare(data, store, say, settle)
    fewest = min(prepared.meta.tokens[part] for part in ("tune", "verdict"))
    if fewest < data.eval_tokens:
        say(
            f"data.eval_tokens {data.eval_tokens:,}: only {fewest:,} tokens are there to be judged "
            "on"
        )
    baseline = spec.baseline if isinstance(spec, Ablation) else None
    variants = _variants(spec)
    kind = "ablation" if isinstance(spec, Ablation) else "sweep"
    named = _digest(spec, asked, prepared.fingerprint, variants[1] if variants else None)
    found = Plan(
        name, named, kind, spec, arms, baseline, prepared, variants[0] if variants else None, store
    )
    return replace(found, asked=_beside(request, found))


def _beside(request: Request, plan: Plan) -> Extras:
    """What is asked beside the question by this command, or was by an earlier one on the same
    study.

    Raises:
        UserError: there is no half of a single batch to control with.
    """
    folder = plan.store and StudyFolder(plan.store.root / "studies" / plan.folder_name)
    known = folder.load_extras() if folder and plan.kind == "ablation" else Extras()
    if (request.beside | known).controls:
        positive_control_tokens(plan.arms[str(plan.baseline)].config, 0.5)
    return request.beside | known


def _overridden(request: Request) -> Ablation | Sweep:
    """The spec with the command line laid over it; the options are settings like any other."""
    spec, settings = request.spec, dict(request.overrides)
    for option, key in OPTIONS.items():
        asked = getattr(request, option)
        if asked not in (None, "auto") and (key.startswith("train.") or isinstance(spec, Ablation)):
            refuse_twice(f"--{option}", key, settings)
            settings[key] = asked
    try:
        changed = spec.override(settings, request.preset) if settings or request.preset else spec
    except UserError as error:
        raise UserError(_by_option(request, str(error))) from error
    if isinstance(changed, Sweep):
        own = {
            key: getattr(request, key)
            for key in ("trials", "seeds")
            if getattr(request, key) is not None
        }
        if own:
            options = " ".join(f"--{key}" for key in own)
            path = changed.path
            changed = build(Sweep, changed.model_dump() | own, where=options)
            changed = changed.at(path) if path else changed
            if faults := [message for _, message in changed.grid_faults()]:
                raise UserError(f"{options}: " + "; ".join(faults))
    return changed


def _by_option(request: Request, message: str) -> str:
    """Faults of settings that an option has set, under the option's name: `--seeds`, not
    `protocol.seeds`.
    """
    for option, path in OPTIONS.items():
        if getattr(request, option) not in (None, "auto"):
            message = message.replace(f"{path}: ", f"--{option}: ")
    return message.removeprefix("--set ") if message.startswith("--set --") else message


def _name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,79}", name):
        raise UserError(
            f"--study {name!r}: a study's name is a folder's name; use up to 80 letters, digits "
            "and . _ + -, "
            "starting with a letter or digit"
        )
    return name


def _asked_configs(spec: Ablation | Sweep) -> dict[str, RunConfig]:
    if isinstance(spec, Sweep):
        return {spec.name or "sweep": spec.config()}
    order = sorted(spec.arms, key=lambda arm: arm != spec.baseline)
    return {arm: spec.arm_config(arm) for arm in order}


def _rehearse(asked: Mapping[str, RunConfig]) -> None:
    """Build and run every model once, without numbers, before anything is read or written."""
    from andrea.training.memory import require_memory
    from andrea.training.rehearsal import rehearse

    for arm, config in asked.items():
        # One block first: it shows a fault of a user's own variant before its counts are relied on.
        rehearse(config.model.model_copy(update={"n_layer": 1}), f"arm {arm}")
        require_memory(config, f"arm {arm}: ")
        rehearse(config.model, f"arm {arm}")


def _require_different(arms: Mapping[str, ArmPlan], fingerprint: str) -> None:
    """Refuse arms whose settings differ in writing alone: they would be one run, compared with
    itself.
    """
    seen: dict[str, str] = {}
    for name, arm in arms.items():
        _, run_id = frozen.identify(arm.config, fingerprint, {})
        if run_id in seen:
            raise UserError(
                f"arms {seen[run_id]} and {name} train the same model; change one, or leave it out"
            )
        seen[run_id] = name


def _label(spec: Ablation | Sweep, arm: str) -> str:
    return spec.label(arm) if isinstance(spec, Ablation) else arm


def _prepare(
    data: DataConfig, store: RunStore | None, progress: Progress, check: Callable[[Prepared], None]
) -> Prepared:
    from andrea.data.prepare import prepare

    if store is not None:
        root = store.root
    else:
        import atexit

        root = Path(tempfile.mkdtemp(prefix="andrea-"))
        atexit.register(shutil.rmtree, root, ignore_errors=True)
    said: set[str] = set()

    def note(what: str, share: float) -> None:
        if what not in said:
            said.add(what)
            progress(f"preparing {data.source}: {what}")

    return prepare(data, root, note, check)


def _settled(asked: RunConfig, prepared: Prepared) -> RunConfig:
    from andrea.data.batches import require_batches

    require_batches(prepared, asked.train.batch_size, asked.model.context)
    return frozen.settle(asked, prepared.folder)


def _on_route_of(settled: Mapping[str, RunConfig], asked: RunConfig) -> RunConfig:
    """Kernels that were measured for one arm compute the others too: no arm differs by its
    rounding.
    """
    if not settled or asked.train.kernels != "auto":
        return asked
    kernels = next(iter(settled.values())).train.kernels
    return asked.model_copy(update={"train": asked.train.model_copy(update={"kernels": kernels})})


def _matched(spec: Ablation, configs: Mapping[str, RunConfig]) -> dict[str, Sized]:
    """The arms' models as they are compared; what is solved for is rehearsed like what was
    asked.
    """
    from andrea.training.memory import require_memory
    from andrea.training.rehearsal import rehearse

    models = {arm: config.model for arm, config in configs.items()}
    sizes = matched(
        models, spec.baseline, spec.match, {arm: spec.arms[arm].set for arm in spec.arms}
    )
    for arm, sized in sizes.items():
        if sized.solved is not None:
            where = (
                f"arm {arm} with {sized.solved.setting} {sized.solved.became} (solved for by match)"
            )
            require_memory(configs[arm].model_copy(update={"model": sized.model}), f"{where}: ")
            rehearse(sized.model, where)
    return sizes


def _arm(label: str, asked: RunConfig, config: RunConfig, sized: Sized | None) -> ArmPlan:
    from andrea.model.accounting import count_parameters, flops_per_token

    model = sized.model if sized else config.model
    config = config.model_copy(update={"model": model})
    counts, flops = count_parameters(model)._asdict(), flops_per_token(model).total
    deviation, solved = (sized.deviation, sized.solved) if sized else ({}, None)
    return ArmPlan(label, asked, config, counts, flops, deviation, solved)


def _variants(spec: Ablation | Sweep) -> tuple[Path, str] | None:
    from andrea.catalogue import load_user_variants

    found = load_user_variants(spec.path) if spec.path else None
    return (found.path, found.digest) if found else None


def _digest(
    spec: Ablation | Sweep, asked: Mapping[str, RunConfig], fingerprint: str, variants: str | None
) -> str:
    """Digest of what is asked: `auto` unresolved, defaults written out, the text by its content,
    not by its path.
    """
    # What is claimed elsewhere decides no run and no verdict.
    own = spec.model_dump(
        mode="json", exclude={"preset", "model", "data", "train", "arms", "claimed"}
    )
    configs = [
        config.model_dump(mode="json", exclude={"seed": True, "data": {"source", "eval_part"}})
        for config in asked.values()
    ]
    told: dict[str, Any] = {**own, "data": fingerprint, "variants": variants}
    if isinstance(spec, Sweep):
        return digest({"kind": "sweep", **told, "config": configs[0]})
    for config in configs:
        del config["train"]["lr"]  # it is tuned
    arms = {
        arm: {"label": spec.label(arm), **config}
        for arm, config in zip(asked, configs, strict=True)
    }
    for arm, center in spec.centers.items():
        arms[arm]["center"] = center
    told = {key: value for key, value in told.items() if key != "factors"} | (
        {"levels": spec.levels} if spec.levels else {}
    )
    return digest({"kind": "ablation", **told, "arms": arms})


def freeze(plan: Plan, store: RunStore) -> StudyFolder:
    """Write the study's folder, or find the one that asks the same: then what it resolved to holds.

    Raises:
        StudyError: the folder cannot be written.
    """
    folder = StudyFolder(store.root / "studies" / plan.folder_name)
    try:
        with locked(folder.path / "freeze.lock", make_folder=True):
            # study.json is written last: a folder with it is whole, one without is written again.
            if not (folder.path / "study.json").exists():
                _write(plan, folder.path)
    except OSError as error:
        raise StudyError(
            f"cannot write the study to {folder.path}: {error.strerror or error}"
        ) from error
    return folder


def _write(plan: Plan, path: Path) -> None:
    from andrea.training.identity import run_environment

    now = datetime.now(UTC)
    asked = {"kind": plan.kind, "name": plan.name, **plan.spec.model_dump(mode="json")}
    if isinstance(plan.spec, Sweep):
        from andrea.study.optuna_journal import sampling

        asked["sampling"] = sampling(plan.spec)
    text = yaml.safe_dump(asked, sort_keys=False, allow_unicode=True, width=100)
    write_atomic(path / "protocol.yaml", text)
    if plan.variants:
        shutil.copy2(plan.variants, path / plan.variants.name)
    device = next(iter(plan.arms.values())).config.train.device
    resolved = {
        "fingerprint": plan.prepared.fingerprint,
        "data_folder": f"data/{plan.prepared.fingerprint}",
        "arms": {
            name: {
                "label": arm.label,
                "config": arm.config.model_dump(mode="json"),
                "asked": arm.asked.model_dump(mode="json"),
                "parameters": arm.parameters,
                "flops_per_token": arm.flops_per_token,
                "deviation": arm.deviation,
                "solved": asdict(arm.solved) if arm.solved else None,
            }
            for name, arm in plan.arms.items()
        },
        "baseline": plan.baseline,
        "differences": plan.differences,
        "platform": frozen.platform_of(device),
        # Whole seconds, as in results: what ends in the second of the freeze is not older than it.
        "frozen_at": now.isoformat(timespec="seconds"),
        "exploratory": False,
        "variants": plan.variants.name if plan.variants else None,
        "versions": run_environment(device).to_json(),
    }
    write_json(path / "resolved.json", resolved)
    key = digest({"name": plan.name, "digest": plan.digest})
    about = {
        "kind": plan.kind,
        "name": plan.name,
        "digest": plan.digest,
        "key": key,
        "created": now.isoformat(),
    }
    write_json(path / "study.json", about)
