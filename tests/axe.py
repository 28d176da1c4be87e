"""Accessibility checks of a page by axe-core, the engine that most tools use."""

from importlib.resources import files

from playwright.sync_api import Frame, Page

SIZES = (390, 768, 1280)
"""Widths of a phone, a tablet and a laptop, in CSS pixels."""
_SERIOUS = """async () => {
  // The shades beside a table are gradients, on which axe-core judges no color.
  document.querySelectorAll(".scroll").forEach(each => { each.style.backgroundImage = "none"; });
  const {violations} = await axe.run(document, {resultTypes: ["violations"]});
  return violations.filter(each => ["serious", "critical"].includes(each.impact))
    .map(each => `${each.id}: ${each.nodes.map(node => node.target.flat().join(" ")).slice(0, 3).join(", ")}`);
}"""


def serious(page: Page | Frame) -> list[str]:
    """Return the serious violations of a page: the rule, and the first elements that break it."""
    # The pages forbid inline scripts, so axe-core is evaluated and not inserted.
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
    found: list[str] = page.evaluate(_SERIOUS)
    return found
