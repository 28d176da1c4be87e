"""The colors of the badges, in light and dark mode, on every background on which a page shows them."""

import re
from pathlib import Path

import pytest

from pipeline.runs.decision import BADGES
from pipeline.watch.states import STATE_NAMES
from tests.contrast import MIN_CONTRAST, contrast

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins" / "training_monitor" / "static" / "monitor.css"
REPORT = ROOT / "pipeline" / "report"
GROUNDS = {"page", "subtle", "wash", "card"}


def themes(css: str) -> list[dict[str, tuple[int, ...]]]:
    """Return the colors of each block of variables, by name."""
    blocks = re.findall(r":root[.a-z]* \{([^}]*--page[^}]*)\}", css)
    return [{name: rgb(value) for name, value in re.findall(r"--([a-z]+): #([0-9a-f]+);", each)} for each in blocks]


def rgb(value: str) -> tuple[int, ...]:
    digits = value if len(value) == 6 else "".join(2 * digit for digit in value)
    return tuple(bytes.fromhex(digits))


@pytest.mark.parametrize(("variables", "rules"), [(PLUGIN, PLUGIN), (REPORT / "base.html.j2", REPORT / "page.html.j2")])
def test_a_badge_has_contrast_in_each_theme(variables: Path, rules: Path):
    colors = dict(re.findall(r"\.badge\.([a-z_]+) \{ color: var\(--([a-z]+)\)", rules.read_text()))
    assert colors.keys() >= BADGES.keys()
    found = themes(variables.read_text())
    assert len(found) == (2 if variables == PLUGIN else 3)  # the report also has one for print
    for theme in found:
        for color in colors.values():
            for ground in GROUNDS & theme.keys():
                assert contrast(theme[color], theme[ground]) >= MIN_CONTRAST, (color, ground)


def test_no_badge_of_a_promotion_has_the_class_of_a_state():
    assert not BADGES.keys() & STATE_NAMES.keys()
