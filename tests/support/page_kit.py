"""What holds of the page in every state: how tests measure it in a browser."""

from collections import Counter
from itertools import pairwise
from typing import Any

CONTRAST_MIN = 4.5
"""WCAG AA, for text."""
OUTLINE_PX_MIN = 2.0
"""Pixels of the ring around what has the focus."""
TABS_MAX = 200
"""Steps of the Tab key within which all controls have had the focus."""
LOOKS_MAX = 3
"""Looks at a control that is out of view although the Tab key came to it."""
NAMED_ROLES = frozenset(
    (
        *("button", "link", "textbox", "searchbox", "combobox", "spinbutton", "checkbox", "DisclosureTriangle"),
        *("image", "progressbar", "region", "dialog", "table", "figure", "heading"),
    )
)
"""Roles of Chromium's accessibility tree whose nodes need a name."""
UNIQUE_ROLES = frozenset(("button", "link", "searchbox", "combobox", "spinbutton", "DisclosureTriangle", "region"))
"""Roles whose names tell nodes apart, as a screen reader lists them."""

WORST_CONTRAST = """() => {
  const linear = (part) => { part /= 255; return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; };
  const parts = (colour) => { const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const over = (front, back, alpha) => [0, 1, 2].map((place) => alpha * front[place] + (1 - alpha) * back[place]);
  const ground = (node) => {
    if (!node) return [255, 255, 255];
    const [red, green, blue, alpha] = parts(getComputedStyle(node).backgroundColor);
    return alpha === 1 ? [red, green, blue] : over([red, green, blue], ground(node.parentElement), alpha);
  };
  const opacity = (node) => (node ? Number(getComputedStyle(node).opacity) * opacity(node.parentElement) : 1);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || !node.checkVisibility() || node.closest("option, noscript, :disabled")) continue;
    const style = getComputedStyle(node), colour = parts(node.closest("svg") ? style.fill : style.color);
    const back = ground(node), front = over(colour, back, colour[3] * opacity(node));
    const [one, other] = [light(front), light(back)];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    found.push([contrast, `${node.tagName}.${node.className?.baseVal ?? node.className}: ${text}`]);
  }
  return found.sort((one, other) => one[0] - other[0])[0];
}"""
HEADINGS = """() => [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter((node) => node.checkVisibility())
  .map((node) => Number(node.tagName[1]))"""
REPEATED_IDS = """() => [...document.querySelectorAll("[id]")].map((node) => node.id)
  .filter((id, place, all) => all.indexOf(id) !== place)"""
CLIPPED = """() => [...document.querySelectorAll("body *")].filter((node) => {
  if (!node.checkVisibility() || node.closest("svg, input, .visually-hidden, .skip")) return false;
  const style = getComputedStyle(node), isScroller = ["auto", "scroll"].includes(style.overflowX);
  return style.display !== "inline" && !isScroller && node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 0;
}).map((node) => node.outerHTML.slice(0, 160))"""
OVERLAPS = """() => {
  const kinds = "button, input, select, summary, h1, h2, h3, .trouble, .pill, .epoch, .chip, .lead, figure";
  const shown = [...document.querySelectorAll(kinds)].filter((node) => node.checkVisibility()
    && !node.closest(".visually-hidden, .skip") && !node.matches(".visually-hidden") && !node.closest("dialog"));
  const places = shown.map((node) => node.getBoundingClientRect()), found = [];
  for (let one = 0; one < shown.length; one += 1) for (let other = one + 1; other < shown.length; other += 1) {
    if (shown[one].contains(shown[other])) continue;
    if (Boolean(shown[one].closest("header")) !== Boolean(shown[other].closest("header"))) continue;
    const [a, b] = [places[one], places[other]];
    if (a.left + 1 < b.right && b.left + 1 < a.right && a.top + 1 < b.bottom && b.top + 1 < a.bottom) {
      found.push([shown[one].outerHTML.slice(0, 90), shown[other].outerHTML.slice(0, 90)]);
    }
  }
  return found;
}"""
FOCUSED = """() => {
  const node = document.activeElement, style = getComputedStyle(node);
  if (node === document.body) return null;
  window.stops ??= new Map();
  if (!window.stops.has(node)) window.stops.set(node, window.stops.size);
  const ring = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
  const place = node.getBoundingClientRect(), isInView = place.bottom > 0 && place.top < innerHeight;
  return { stop: window.stops.get(node), ring, isInView, html: node.outerHTML.slice(0, 120) };
}"""
TABBABLE = """() => {
  window.stops = new Map();
  document.activeElement.blur();
  const root = document.querySelector("dialog[open]") ?? document;
  return [...root.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
    .filter((node) => node.checkVisibility() && !node.disabled).length;
}"""
SPOKEN = """() => {
  window.spoken = [];
  const hear = (changes) => changes.forEach((change) => window.spoken.push(change.target.textContent));
  const watch = new MutationObserver(hear);
  for (const node of document.querySelectorAll("[role=status], [role=alert], [aria-live]")) {
    watch.observe(node, { childList: true, characterData: true, subtree: true, attributes: true });
  }
}"""
ANIMATIONS = "() => document.getAnimations().length"
LIVE_INSIDE = """() => [...document.querySelectorAll("[role=status], [role=alert], [aria-live]")]
  .filter((node) => node.querySelector("button, table, [role=status], [role=alert]")).map((node) => node.outerHTML)"""


def accessible(page: Any) -> list[tuple[str, str]]:
    """Role and name of each node of Chromium's accessibility tree, as a screen reader has it."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    shown = [node for node in nodes if not node["ignored"]]
    return [(node["role"]["value"], node.get("name", {}).get("value", "").strip()) for node in shown]


def check_spoken(page: Any) -> None:
    """Names for all controls, names that differ, and headings in order."""
    nodes = accessible(page)
    unnamed = [role for role, name in nodes if role in NAMED_ROLES and not name]
    assert not unnamed, unnamed
    counts = Counter((role, name) for role, name in nodes if role in UNIQUE_ROLES)
    alike = [node for node, count in counts.items() if count > 1]
    assert not alike, alike
    levels = page.evaluate(HEADINGS)
    assert levels.count(1) == 1, levels
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    for faults in (REPEATED_IDS, LIVE_INSIDE):
        found = page.evaluate(faults)
        assert not found, found


def check_seen(page: Any) -> None:
    """Text that can be read, and nothing that is cut off, on top of another thing, or wider than the window."""
    contrast, text = page.evaluate(WORST_CONTRAST)
    assert contrast >= CONTRAST_MIN, (contrast, text)
    width, room = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= room, (width, room)
    for faults in (CLIPPED, OVERLAPS):
        found = page.evaluate(faults)
        assert not found, found


def check_keyboard(page: Any) -> None:
    """The Tab key comes to each control, which then has a ring and is in view."""
    wanted, seen = page.evaluate(TABBABLE), set()
    for _ in range(TABS_MAX):
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUSED)
        if at is None:
            continue
        if at["stop"] in seen:
            break
        seen.add(at["stop"])
        assert at["ring"] >= OUTLINE_PX_MIN, at["html"]
        assert at["isInView"] or comes_into_view(page, at["stop"]), at["html"]
    assert len(seen) >= wanted, (len(seen), wanted)


def comes_into_view(page: Any, stop: int) -> bool:
    """Whether a control is in view when the Tab key comes to it again: news that made the page longer in the moment of
    the first look may have pushed it out."""
    for _ in range(LOOKS_MAX):
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUSED)
        if at is not None and at["stop"] == stop and at["isInView"]:
            return True
    return False
