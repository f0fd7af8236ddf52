"""Whether arms are comparable in size, before anything is trained."""

from collections.abc import Mapping

from andrea.errors import UserError

Counts = Mapping[str, int]
"""Parameters by group."""


def differences(arms: Mapping[str, Counts], baseline: str) -> dict[str, dict[str, int]]:
    """Parameters by which every arm differs from the baseline, by group; groups that agree are left out."""
    base = arms[baseline]
    return {
        arm: {group: n - base.get(group, 0) for group, n in counts.items() if n != base.get(group, 0)}
        for arm, counts in arms.items()
        if arm != baseline
    }


def require_match(arms: Mapping[str, Counts], baseline: str, tolerance: float) -> None:
    """Refuse arms that differ from the baseline by more than the tolerance in their number of parameters.

    Raises:
        UserError: with the counts of every arm that does.
    """
    base = sum(arms[baseline].values())
    off = []
    for arm, groups in differences(arms, baseline).items():
        total = sum(arms[arm].values())
        if abs(total - base) > tolerance * base:
            where = ", ".join(f"{group} {n:+,}" for group, n in groups.items())
            off.append(f"{arm} has {total:,} ({total / base - 1:+.1%}: {where})")
    if off:
        raise UserError(
            f"match.on params, tolerance {tolerance:.2%}: baseline {baseline} has {base:,} parameters, "
            f"{'; '.join(off)}; change the arms (model.mlp_ratio, say), or set match.on=none where size is the question"
        )
