// What needs attention: a card for each trouble, worst first. Cards stay and only their words change, so that a reader's
// selection and focus stay too.

import { html, setText } from "/dom.js";
import { plural } from "/words.js";

const OPEN_MAX = 3; // cards that are shown at once; the others are behind a summary
const VIEWS_NAMED_MAX = 8;
const WHY_MAX = 600; // characters of an error; the details have all of it

const ROWS = [["why", "Why"], ["views", "Stale by it"], ["then", "Next"], ["hint", "What to do"]];

/** Several tables that warm up are one card. */
function merged(troubles) {
  const isWarming = (trouble) => trouble.level === "note" && trouble.kind === "table", warming = troubles.filter(isWarming);
  if (warming.length < 2) return troubles;
  const views = [...new Set(warming.flatMap((trouble) => trouble.views))];
  const one = {
    ...warming[0], kind: "tables", name: "", views,
    what: `${plural(warming.length, "table")} are warming up: their views do not have all rows from before the start yet.`,
    why: warming.map((trouble) => `${trouble.name}: ${trouble.why}`).join("; "),
  };
  return [...troubles.filter((trouble) => !isWarming(trouble)), one];
}

function named(views) {
  const rest = views.length - VIEWS_NAMED_MAX;
  return rest > 0 ? `${views.slice(0, VIEWS_NAMED_MAX).join(", ")} and ${plural(rest, "other view")}` : views.join(", ");
}

const cut = (text) => (text.length > WHY_MAX ? `${text.slice(0, WHY_MAX)} …` : text);

export class Troubles {
  constructor(node, open) {
    this.node = node;
    this.open = open;
    this.cards = new Map();
    this.first = html("div", { class: "troubles" });
    this.others = html("div", { class: "troubles" });
    this.summary = html("summary", {});
    this.rest = html("details", { class: "more-troubles", hidden: true }, this.summary, this.others);
    node.append(html("h2", { class: "visually-hidden", text: "What needs attention" }), this.first, this.rest);
  }

  show(troubles) {
    const shown = merged(troubles), keys = shown.map((each) => `${each.kind} ${each.name} ${each.level}`);
    this.node.hidden = !shown.length;
    for (const [key, card] of this.cards) if (!keys.includes(key)) { card.node.remove(); this.cards.delete(key); }
    shown.forEach((trouble, place) => {
      if (!this.cards.has(keys[place])) this.cards.set(keys[place], this.card(trouble));
      const card = this.cards.get(keys[place]), isFirst = place < OPEN_MAX;
      const parent = isFirst ? this.first : this.others, at = parent.children[isFirst ? place : place - OPEN_MAX] ?? null;
      if (at !== card.node) parent.insertBefore(card.node, at);
      this.fill(card, trouble);
    });
    const more = shown.length - OPEN_MAX;
    this.rest.hidden = more <= 0;
    if (more > 0) setText(this.summary, `${plural(more, "more thing needs", "more things need")} attention`);
  }

  card(trouble) {
    const title = html("span", {}), rows = ROWS.map(([name, label]) => {
      const text = html("span", {}), key = html("span", { class: "key", text: label });
      return { name, key, text, node: html("p", { class: name }, key, text) };
    });
    const target = trouble.kind === "worker" ? Number(trouble.name) : trouble.name;
    const more = ["table", "view", "worker"].includes(trouble.kind) ? html("button", {
      type: "button", class: "link", onclick: () => this.open(trouble.kind, target), text: `More about ${trouble.kind} ${trouble.name}`,
    }) : "";
    const node = html("article", { class: "trouble", "data-level": trouble.level },
      html("h3", {}, html("span", { class: "dot", "aria-hidden": "true" }), title), rows.map((row) => row.node), more);
    return { node, title, rows };
  }

  fill(card, trouble) {
    setText(card.title, trouble.what);
    for (const row of card.rows) {
      const text = row.name === "views" ? named(trouble.views) : row.name === "why" ? cut(trouble.why ?? "") : trouble[row.name] ?? "";
      row.node.hidden = !text;
      setText(row.text, text);
      if (row.name === "views") setText(row.key, trouble.level === "note" ? "Waiting for it" : "Stale by it");
    }
  }
}
