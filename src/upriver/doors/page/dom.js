// Elements without innerHTML: every text is a text node, so names of views and errors can hold any characters.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

/** An HTML element: attributes by name, listeners as `onclick`, text as `text`. */
export const html = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Change a text only if it differs, so that selections and screen readers stay calm. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Show a name, which may break after a dot, a dash or an underscore. What is copied stays the name. */
export function setName(node, name) {
  if (node.textContent === String(name)) return;
  node.replaceChildren(...String(name).split(/(?<=[._/-])/).flatMap((part, place) => (place ? [document.createElement("wbr"), part] : [part])));
}

/** Rebuild a node only if what it shows has changed; the focus returns to the element of the same `data-focus`. */
export function redraw(node, shown, build) {
  const text = JSON.stringify(shown);
  if (node.drawnOf === text) return false;
  const focus = node.contains(document.activeElement) ? document.activeElement.getAttribute("data-focus") : null;
  node.drawnOf = text;
  node.replaceChildren(...[build()].flat(Infinity).filter(Boolean));
  if (focus) [...node.querySelectorAll("[data-focus]")].find((each) => each.getAttribute("data-focus") === focus)?.focus();
  return true;
}

/** A table with a header row. columns: [title, is it a number]; rows: lists of texts or nodes. */
export function table(caption, columns, rows) {
  return html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    html("table", {},
      html("caption", { class: "visually-hidden", text: caption }),
      html("thead", {}, html("tr", {}, columns.map(([title, isNumber]) => html("th", { scope: "col", class: isNumber && "number", text: title })))),
      html("tbody", {}, rows.map((row) => html("tr", {}, row.map((cell, place) =>
        html(place ? "td" : "th", { scope: place ? null : "row", class: columns[place][1] && "number" }, cell ?? "–")))))));
}
