"""Colours and type of figures: CSS variables on the page, plain colours in files that stand
alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

# Okabe and Ito's colours for the colour-blind, each with 3:1 contrast: darkened on white, lightened
# on black.
LIGHT: Mapping[str, str] = {
    "arm-1": "#0072b2",
    "arm-2": "#d55e00",
    "arm-3": "#008f69",
    "arm-4": "#b5509b",
    "arm-5": "#a67600",
    "arm-6": "#6a51a3",
    "arm-7": "#3c8dbc",
    "arm-8": "#8c564b",
    "ink": "#1b1f24",
    "muted": "#5b6570",
    "grid": "#e4e8ec",
    "paper": "#ffffff",
    "band": "#7a8794",
}
"""Values of the variables on a light page; the first arm is the baseline."""
DARK: Mapping[str, str] = {
    "arm-1": "#5ab4ec",
    "arm-2": "#ff8f4a",
    "arm-3": "#2fc799",
    "arm-4": "#e493cd",
    "arm-5": "#dcb53a",
    "arm-6": "#b3a1ee",
    "arm-7": "#9fd3f5",
    "arm-8": "#cda093",
    "ink": "#e8ebee",
    "muted": "#a3adb8",
    "grid": "#2b333b",
    "paper": "#12161a",
    "band": "#8793a0",
}
"""Values of the variables on a dark page."""

COLORS = 8
"""Arms with a colour of their own; the ninth starts again, dashed."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def css_color(name: str) -> str:
    """Return a colour of the page: SVG resolves it where it is shown, so one drawing serves light,
    dark and print.
    """
    return f"var(--{name})"


def resolve_colors(text: str) -> str:
    """Return a specification or an SVG with every variable replaced by its light value, for files
    that stand alone.
    """
    for name, value in LIGHT.items():
        text = text.replace(css_color(name), value)
    return text


def arm_colors(arms: Sequence[str]) -> dict[str, str]:
    """Return a colour for every arm, by order, so that an arm keeps its colour in every figure."""
    return {arm: css_color(f"arm-{i % COLORS + 1}") for i, arm in enumerate(arms)}


def arm_dashes(arms: Sequence[str]) -> dict[str, list[int]]:
    """Return solid lines for the first eight arms, dashes beyond, where colours repeat."""
    return {arm: [] if i < COLORS else [6, 3] for i, arm in enumerate(arms)}


def vega_config() -> dict[str, Any]:
    """Return the Vega-Lite configuration: the page's ground, quiet axes, no legend (the page has
    its own, of buttons).
    """
    axis = {
        "labelColor": css_color("muted"),
        "titleColor": css_color("ink"),
        "gridColor": css_color("grid"),
        "domainColor": css_color("muted"),
        "tickColor": css_color("muted"),
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelFont": FONT,
        "titleFont": FONT,
    }
    return {
        "background": css_color("paper"),
        "font": FONT,
        "view": {"stroke": None},
        "axis": axis,
        "legend": {
            "labelColor": css_color("ink"),
            "titleColor": css_color("ink"),
            "labelFont": FONT,
            "symbolStrokeWidth": 2,
        },
        "text": {"color": css_color("ink"), "font": FONT, "fontSize": 12},
        "rule": {"color": css_color("muted")},
    }


def page_stylesheet() -> str:
    """Return the variables as CSS: light, dark where the reader's system asks for it, light again
    on paper.
    """
    light = " ".join(f"--{name}: {value};" for name, value in LIGHT.items())
    dark = " ".join(f"--{name}: {value};" for name, value in DARK.items())
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f"@media print {{ :root {{ color-scheme: light; {light} }} }}\n"
    )
