"""Numbers and verdicts as text, for reports and the terminal. Loads neither pandas nor altair."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

NOTHING = "–"
"""In place of a number that is not there."""


def absent(value: Any) -> bool:
    """Return whether a value is None, NaN, or pandas' NA."""
    # By their names, since pandas is not loaded here.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and math.isnan(value)


def plain(value: Any) -> str:
    """Any value as it is."""
    return NOTHING if absent(value) else str(value)


def number(value: Any, digits: int = 4) -> str:
    """A number with `digits` decimals and a true minus sign."""
    return NOTHING if absent(value) else _decimals(float(value), f",.{digits}f")


def loss(value: Any) -> str:
    """A loss in nats, four decimals."""
    return number(value)


def nats(value: Any) -> str:
    """A loss with its unit."""
    return f"{loss(value)} nats"


def signed(value: Any) -> str:
    """A difference in nats, four decimals, its sign always shown."""
    return NOTHING if absent(value) else _decimals(float(value), "+,.4f")


def small(value: Any) -> str:
    """A small quantity in nats: four decimals, or two significant digits below that."""
    if absent(value) or float(value) == 0 or abs(float(value)) >= 1e-3:
        return number(value)
    return _minus(f"{float(value):.{1 - math.floor(math.log10(abs(float(value))))}f}")


def interval(low: Any, high: Any) -> str:
    """An interval of differences: `[−0.0123, +0.0456]`."""
    return between(low, high, signed)


def span(low: Any, high: Any) -> str:
    """An interval of plain values: `[2.5012, 2.5456]`."""
    return between(low, high, loss)


def between(low: Any, high: Any, show: Callable[[Any], str]) -> str:
    """An interval whose ends are written by `show`."""
    return NOTHING if absent(low) or absent(high) else f"[{show(low)}, {show(high)}]"


def setting(value: Any) -> str:
    """The value of a setting: floats to four significant digits, anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def rate(value: Any) -> str:
    """A learning rate to three significant digits, never in a form that YAML reads as text."""
    if absent(value):
        return NOTHING
    text = f"{float(value):.3g}"
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent)}" if e else text


def short(value: Any) -> str:
    """A number to three significant digits, without an exponent."""
    return NOTHING if absent(value) else _three_digits(float(value))


def probability(value: Any) -> str:
    """A p-value to two significant digits."""
    if absent(value):
        return NOTHING
    return "< 0.0001" if float(value) < 1e-4 else f"{float(value):.2g}"


def count(value: Any) -> str:
    """A whole number with thousands separated."""
    return NOTHING if absent(value) else _decimals(float(f"{float(value):.0f}") or 0.0, ",.0f")


def big(value: Any) -> str:
    """A large quantity to three digits: 512, 1.23 M, 4.50 G."""
    if absent(value):
        return NOTHING
    size = float(value)
    if not math.isfinite(size):
        return _minus(f"{size:g}")
    for power, letter in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        # What rounds up to the unit is in it: 1.00 M, not 1000 k.
        if abs(size) >= 0.9995 * 10**power:
            return f"{_three_digits(size / 10**power)} {letter}"
    return _minus(f"{size:.0f}") if size.is_integer() else _three_digits(size)


def memory(value: Any) -> str:
    """Bytes in MiB."""
    return NOTHING if absent(value) else f"{count(float(value) / 2**20)} MiB"


def seconds(value: Any) -> str:
    """A duration: 0.4 s, 8 s, 24 s, 5 min 3 s, 2 h 10 min, 3 d 4 h."""
    if absent(value):
        return NOTHING
    if float(value) < 10:
        return f"{max(0.0, float(value)):.1f} s".replace(".0 ", " ")
    if not math.isfinite(float(value)):
        return f"{float(value):g} s"
    whole = round(float(value))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def percent(value: Any) -> str:
    """A share as a percentage with at most one decimal."""
    return NOTHING if absent(value) else _minus(f"{100 * float(value):.3g}\N{NO-BREAK SPACE}%")


def share(value: Any) -> str:
    """A signed share with one decimal: `+12.3 %`."""
    return NOTHING if absent(value) else _minus(f"{100 * float(value):+.1f}\N{NO-BREAK SPACE}%")


def ratio(value: Any) -> str:
    """A ratio with three decimals."""
    return number(value, 3)


def relative(value: Any) -> str:
    """A relative difference: `+0.8 %`, or `equal`."""
    if absent(value):
        return NOTHING
    return "equal" if float(value) == 0 else _minus(f"{100 * float(value):+.2f}\N{NO-BREAK SPACE}%")


def shape(model: Mapping[str, Any]) -> str:
    """A model's blocks, width and heads: `6 blocks, d 48, 4 heads`."""
    return f"{model.get('n_layer')} blocks, d {model.get('d_model')}, {model.get('n_head')} heads"


def bare(label: str) -> bool:
    """Return whether a label is a number alone, which says nothing without its factor: `8/3`."""
    return re.fullmatch(r"[-+]?[\d.]+(/[\d.]+)?", label) is not None


def plural(n: int, one: str, many: str = "") -> str:
    """`1 run`, `2 runs`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def listing(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def selection_note(drawn: int, total: int, things: str, files: str = "the files have") -> str:
    """Return a caption's remark that a figure draws only some; empty where it draws all."""
    if drawn == total:
        return ""
    return f" Drawn are {drawn} of {total} {things}, picked, not averaged; {files} all."


def judged(verdict: str, cause: str) -> str:
    """A verdict with its qualifier: `inconclusive (rate at edge)`."""
    return f"{verdict} ({cause})" if cause else verdict


_OPEN = ("inconclusive", "invalid")
"""Verdicts that decide nothing, so that no other one contradicts them."""


def confirmed(first: str, again: str) -> str:
    """Return the agreement of a confirmation with the first verdict.

    *agrees*: the words are the same. *disagrees*: both blocks of seeds decide, and differ. *not
    confirmed*: the second block does not decide. *inconclusive at first*, *inconclusive again*: the
    first did not.
    """
    if first in _OPEN:
        return f"{first} {'again' if first == again else 'at first'}"
    if first == again:
        return "agrees"
    return "not confirmed" if {first, again} & {*_OPEN, "unstable"} else "disagrees"


def one_reason(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Return the reason why all rows are invalid, if it is the same for all; else nothing."""
    if any(row["verdict"] != "invalid" for row in rows):
        return ""
    reasons = {str(row["reason"]) for row in rows}
    return reasons.pop() if len(reasons) == 1 else ""


_WITH_EXPONENT = 1e15
"""From this size on a number is written with an exponent: further digits were not measured."""


def _decimals(value: float, form: str) -> str:
    """Return the number in a format; 0 has no minus, but a number below 0 that rounds to it has."""
    if abs(value) >= _WITH_EXPONENT:
        return _minus(f"{value:{'+' * form.startswith('+')}.4g}")
    return _minus(f"{value + 0.0:{form}}")


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _three_digits(size: float) -> str:
    if size == 0 or not math.isfinite(size):
        return f"{size:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(size)) + 1e-9))
    return _minus(f"{size:.{decimals}f}")
