"""From a request to a plan: validate everything, prepare the data, choose what was left `auto`.

Nothing is written but the cache of prepared data.
"""

import atexit
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from andrea.catalogue import load_user_variants
from andrea.config import RunConfig, build, refuse_twice
from andrea.data.config import DataConfig
from andrea.data.prepared import Prepared
from andrea.errors import UserError
from andrea.records.extras import Extras
from andrea.store.digest import digest
from andrea.store.runs import RunStore
from andrea.study.plan import frozen
from andrea.study.plan.plan import ArmPlan, Plan, Request
from andrea.study.question.ablation import Ablation
from andrea.study.question.matching import SizedModel, match_arms
from andrea.study.question.sweep import Sweep
from andrea.study.stages.controls import positive_control_tokens

Progress = Callable[[str], None]
SETTING_OF_OPTION = {
    "tokens": "train.tokens",
    "device": "train.device",
    "trials": "protocol.trials",
    "seeds": "protocol.seeds",
}
"""Options of the command line that set a setting; a sweep has trials and seeds of its own."""


def make_plan(
    request: Request, store: RunStore | None = None, progress: Progress | None = None
) -> Plan:
    """Validate a request and resolve it.

    Args:
        store: where data are cached and existing runs are looked for; without one, data are
            prepared for this process.
        progress: gets a line before each step that takes a while.

    Raises:
        UserError: unknown or refused settings (all of them), a variant that cannot be built and
            run, bad budgets, an unfit text, two arms with the same configuration, arms that cannot
            be matched as the question asks.
        StudyError: the disk refused the prepared data.
    """
    report = progress or (lambda line: None)
    spec = _override(request)
    name = _check_name(spec.name if request.name is None else request.name)
    asked = _asked_configs(spec)
    _rehearse(asked)
    arms: dict[str, ArmPlan] = {}

    def settle_arms(prepared: Prepared) -> None:
        # Called before the data get a place in the cache, so that a text that is refused gets none.
        arms.update(_settle_arms(spec, asked, prepared))

    data = next(iter(asked.values())).data
    prepared = _prepare(data, store, report, settle_arms)
    fewest = min(prepared.meta.tokens[part] for part in ("tune", "verdict"))
    if fewest < data.eval_tokens:
        report(
            f"data.eval_tokens {data.eval_tokens:,}: only {fewest:,} tokens are there to be judged "
            "on"
        )
    user_variants = load_user_variants(spec.path) if spec.path else None
    variants_digest = user_variants.digest if user_variants else None
    plan = Plan(
        name=name,
        digest=_digest(spec, asked, prepared.fingerprint, variants_digest),
        kind="ablation" if isinstance(spec, Ablation) else "sweep",
        spec=spec,
        arms=arms,
        baseline=spec.baseline if isinstance(spec, Ablation) else None,
        prepared=prepared,
        variants=user_variants.path if user_variants else None,
        store=store,
    )
    return replace(plan, extras=_extras(request, plan))


def _settle_arms(
    spec: Ablation | Sweep, asked: Mapping[str, RunConfig], prepared: Prepared
) -> dict[str, ArmPlan]:
    """Return the arms with nothing left to choose.

    Raises:
        UserError: too little text for the batches, arms that cannot be matched, or two arms with
            the same configuration.
    """
    from andrea.data.batches import require_batches

    configs: dict[str, RunConfig] = {}
    for arm, config in asked.items():
        require_batches(prepared, config.train.batch_size, config.model.context)
        # The baseline comes first: its kernels compute all arms.
        configs[arm] = frozen.settle(_with_kernels_of(configs, config), prepared.folder)
    sizes = _match(spec, configs) if isinstance(spec, Ablation) else {}
    arms = {}
    for arm, config in asked.items():
        label = spec.label(arm) if isinstance(spec, Ablation) else arm
        arms[arm] = _plan_arm(label, config, configs[arm], sizes.get(arm))
    _require_different(arms, prepared.fingerprint)
    return arms


def _extras(request: Request, plan: Plan) -> Extras:
    """Return what this command or an earlier one asks beside the question of the same study.

    Raises:
        UserError: there is no half of a single batch to control with.
    """
    extras = request.extras
    if plan.folder and plan.kind == "ablation":
        extras |= plan.folder.load_extras()
    if extras.controls:
        positive_control_tokens(plan.arms[str(plan.baseline)].config, 0.5)
    return extras


def _override(request: Request) -> Ablation | Sweep:
    """Return the question with the settings and options of the command line."""
    spec, settings = request.spec, dict(request.overrides)
    for option, key in SETTING_OF_OPTION.items():
        value = getattr(request, option)
        applies = key.startswith("train.") or isinstance(spec, Ablation)
        if applies and value not in (None, "auto"):
            refuse_twice(f"--{option}", key, settings)
            settings[key] = value
    try:
        changed = spec.override(settings, request.preset) if settings or request.preset else spec
    except UserError as error:
        raise UserError(_name_options(request, str(error))) from error
    return _override_sweep(request, changed) if isinstance(changed, Sweep) else changed


def _override_sweep(request: Request, sweep: Sweep) -> Sweep:
    """Return the sweep with the options that are fields of its own."""
    options = {key: getattr(request, key) for key in ("trials", "seeds")}
    options = {key: value for key, value in options.items() if value is not None}
    if not options:
        return sweep
    where = " ".join(f"--{key}" for key in options)
    changed = build(Sweep, sweep.model_dump() | options, where=where)
    faults = [fault.message for fault in changed.grid_faults()]
    if faults:
        raise UserError(f"{where}: " + "; ".join(faults))
    return changed.with_path(sweep.path)


def _name_options(request: Request, message: str) -> str:
    """Return a message about settings with the names of the options that set them: `--seeds`, not
    `protocol.seeds`.
    """
    for option, setting in SETTING_OF_OPTION.items():
        if getattr(request, option) not in (None, "auto"):
            message = message.replace(f"{setting}: ", f"--{option}: ")
    return message.removeprefix("--set ") if message.startswith("--set --") else message


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,79}", name):
        raise UserError(
            f"--study {name!r}: a study's name is a folder's name; use up to 80 letters, digits "
            "and . _ + -, starting with a letter or digit"
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
    arm_of_run: dict[str, str] = {}
    for name, arm in arms.items():
        _, run_id = frozen.identify(arm.config, fingerprint, {})
        other = arm_of_run.setdefault(run_id, name)
        if other != name:
            raise UserError(
                f"arms {other} and {name} train the same model; change one, or leave it out"
            )


def _prepare(
    data: DataConfig, store: RunStore | None, report: Progress, check: Callable[[Prepared], None]
) -> Prepared:
    from andrea.data.prepare import prepare

    if store is not None:
        root = store.root
    else:
        root = Path(tempfile.mkdtemp(prefix="andrea-"))
        atexit.register(shutil.rmtree, root, ignore_errors=True)
    steps: set[str] = set()

    def report_once(step: str, share: float) -> None:
        if step not in steps:
            steps.add(step)
            report(f"preparing {data.source}: {step}")

    return prepare(data, root, report_once, check)


def _with_kernels_of(settled: Mapping[str, RunConfig], asked: RunConfig) -> RunConfig:
    """Return the config with the kernels that were measured for the first arm: no arm differs by
    its rounding.
    """
    if not settled or asked.train.kernels != "auto":
        return asked
    kernels = next(iter(settled.values())).train.kernels
    return asked.model_copy(update={"train": asked.train.model_copy(update={"kernels": kernels})})


def _match(spec: Ablation, configs: Mapping[str, RunConfig]) -> dict[str, SizedModel]:
    """Return the arms' models as they are compared; a size that was solved for is rehearsed too."""
    from andrea.training.memory import require_memory
    from andrea.training.rehearsal import rehearse

    models = {arm: config.model for arm, config in configs.items()}
    chosen = {name: arm.set for name, arm in spec.arms.items()}
    sizes = match_arms(models, spec.baseline, spec.match, chosen)
    for arm, sized in sizes.items():
        if sized.solved is not None:
            setting = f"{sized.solved.setting} {sized.solved.became}"
            where = f"arm {arm} with {setting} (solved for by match)"
            require_memory(configs[arm].model_copy(update={"model": sized.model}), f"{where}: ")
            rehearse(sized.model, where)
    return sizes


def _plan_arm(label: str, asked: RunConfig, config: RunConfig, sized: SizedModel | None) -> ArmPlan:
    from andrea.model.accounting import count_parameters, flops_per_token

    model = sized.model if sized else config.model
    return ArmPlan(
        label=label,
        unresolved=asked,
        config=config.model_copy(update={"model": model}),
        parameters=count_parameters(model)._asdict(),
        flops_per_token=flops_per_token(model).total,
        deviation=sized.deviation if sized else {},
        solved=sized.solved if sized else None,
    )


def _digest(
    spec: Ablation | Sweep, asked: Mapping[str, RunConfig], fingerprint: str, variants: str | None
) -> str:
    """Return the digest of the question: `auto` unresolved, defaults written out, the text by its
    content, not by its path.
    """
    # A claim made elsewhere decides no run and no verdict.
    excluded = {"preset", "model", "data", "train", "arms", "factors", "claimed"}
    content: dict[str, Any] = spec.model_dump(mode="json", exclude=excluded)
    content |= {"data": fingerprint, "variants": variants}
    configs = {
        arm: config.model_dump(mode="json", exclude={"seed": True, "data": {"source", "eval_part"}})
        for arm, config in asked.items()
    }
    if isinstance(spec, Sweep):
        [config] = configs.values()
        return digest({"kind": "sweep", **content, "config": config})
    arms = {}
    for arm, config in configs.items():
        del config["train"]["lr"]  # it is tuned
        arms[arm] = {"label": spec.label(arm), **config}
        if spec.arms[arm].center is not None:
            arms[arm]["center"] = spec.arms[arm].center
    if spec.levels:
        content["levels"] = spec.levels
    return digest({"kind": "ablation", **content, "arms": arms})
