// The river: tables with their sources, views, workers, and the edges between them; or the same as tables.

import { byId, html, redraw, setName, setText, svg, table } from "/dom.js";
import { bytes, compact, count, plural, rate, seconds, standing } from "/words.js";

const UNGROUPED_MAX = 12; // views that are drawn one by one; more are grouped by the tables that they read
const CHIPS_MAX = 4; // regions that a view's box names
const FAST = 1000, STEADY = 50; // rows a second from which edges flow fast, or steadily

/** Keep a list's elements by key: those that stay keep the focus, and are only updated. */
function keyed(parent, items, keyOf, create, update) {
  const kept = (parent.kept ??= new Map()), wanted = new Set(items.map(keyOf));
  for (const [key, node] of kept) if (!wanted.has(key)) { node.remove(); kept.delete(key); }
  items.forEach((item, place) => {
    const key = keyOf(item);
    if (!kept.has(key)) kept.set(key, create(item));
    const node = kept.get(key);
    if (parent.children[place] !== node) parent.insertBefore(node, parent.children[place] ?? null);
    update(node, item);
  });
}

function box(kind, name, open) {
  const parts = { name: html("span", { class: "name" }), state: html("span", { class: "state" }), facts: html("span", { class: "facts" }), more: html("span", { class: "chips" }), reads: html("span", { class: "visually-hidden" }) };
  const button = html("button", { type: "button", class: `node ${kind}`, "data-node": `${kind}:${name}`, onclick: () => open(kind, name) },
    html("span", { class: "node-head" }, html("span", { class: "dot", "aria-hidden": "true" }), parts.name, parts.state), parts.facts, parts.more, parts.reads);
  const item = html("li", {}, button);
  return Object.assign(item, { button, parts });
}

function show(item, level, name, state, facts) {
  item.button.dataset.level = level;
  setName(item.parts.name, name);
  setText(item.parts.state, state);
  setText(item.parts.facts, facts);
}

const tableFacts = (each) => {
  const age = each.age_s ?? each.epoch_age_s;
  const old = each.state === "finished" ? "whole" : age === null || age === undefined ? "no rows yet" : `${seconds(age)} old`;
  return [old, each.state === "failed" || each.state === "finished" ? `${compact(each.rows)} rows` : rate(each.rows_per_s)].join(" · ");
};

const inMemory = (keys) => (keys ? `${compact(keys)} ${keys === 1 ? "key" : "keys"} in memory` : "no key looked up yet");

const viewFacts = (view) => {
  if (view.state === "failed") return "answers no lookup";
  const age = view.age_s === null ? null : `${seconds(view.age_s)} old`;
  const size = view.is_partial ? inMemory(view.cached_keys ?? 0) : plural(view.rows ?? 0, "row").replace(/^[\d,]+/, compact(view.rows ?? 0));
  return [size, age].filter(Boolean).join(" · ");
};

const workerFacts = (worker) => [plural(worker.vnodes, "vnode"), worker.bytes === null ? null : bytes(worker.bytes)].filter(Boolean).join(" · ");
const workerState = (worker) => (worker.address === null ? "not up" : worker.held_up ? "held up" : "");
const stateOf = (node) => (node.level === "good" && node.state !== "finished" ? "" : standing(node));

function chips(view) {
  const shown = view.regions.slice(0, CHIPS_MAX);
  const said = shown.map((region) => html("span", { class: "chip", "data-kept": region.state, text: region.key.length ? `by ${region.key.join(", ")}` : "unkeyed" }));
  const rest = view.regions.length - shown.length;
  return [...said, rest > 0 ? html("span", { class: "chip", text: `${rest} more` }) : null, view.is_partial ? html("span", { class: "chip kind", text: "partial" }) : null];
}

/** Views by the set of tables that they read. */
export function grouped(views) {
  const groups = new Map();
  for (const view of views) {
    const name = view.tables.join(" + ") || "no table";
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(view);
  }
  return [...groups].map(([name, members]) => ({ name, members, tables: members[0].tables, level: worst(members) }));
}

/** An order of views in which few edges cross: by the middle of their tables, then by name. */
function besideTables(tables) {
  const places = new Map(tables.map((each, place) => [each.name, place]));
  const middle = (view) => view.tables.reduce((sum, name) => sum + (places.get(name) ?? 0), 0) / Math.max(1, view.tables.length);
  return (one, other) => middle(one) - middle(other) || (one.name < other.name ? -1 : 1);
}

const LEVELS = ["good", "note", "warning", "bad"];
const worst = (nodes) => LEVELS[Math.max(0, ...nodes.map((node) => LEVELS.indexOf(node.level)))];

export class River {
  constructor(node, tablesNode, open) {
    this.open = open;
    this.tablesNode = tablesNode;
    this.expanded = new Map();
    this.filter = "";
    this.edges = svg("svg", { class: "edges", "aria-hidden": "true", focusable: "false" });
    const lane = (name, title, note) => {
      const list = html("ul", { class: "nodes" }), empty = html("p", { class: "empty", hidden: true });
      const section = html("section", { class: `lane lane-${name}`, "aria-label": title }, html("h3", {}, title, html("small", { text: note })), list, empty);
      return { section, list, empty };
    };
    this.tables = lane("tables", "Sources and tables", "their age, and rows a second");
    this.views = lane("views", "Views", "and the keys by which their rows are kept");
    this.workers = lane("workers", "Workers", "each keeps its share of all keys");
    this.stage = html("div", { class: "stage" }, this.edges, this.tables.section, this.views.section, this.workers.section);
    node.append(this.stage);
    new ResizeObserver(() => this.drawEdges()).observe(this.stage);
    for (const kind of ["pointerover", "focusin"]) this.stage.addEventListener(kind, (event) => this.light(event.target.closest("[data-node]")));
    for (const kind of ["pointerleave", "focusout"]) this.stage.addEventListener(kind, () => this.light(null));
  }

  show(picture) {
    this.picture = picture;
    const matches = (text) => text.toLowerCase().includes(this.filter);
    const views = picture.views.filter((view) => !this.filter || matches(view.name) || view.tables.some(matches));
    views.sort(besideTables(picture.tables));
    const read = new Set(views.flatMap((view) => view.tables));
    const tables = picture.tables.filter((each) => !this.filter || matches(each.name) || read.has(each.name));
    this.shown = { tables, views, isGrouped: views.length > UNGROUPED_MAX };
    keyed(this.tables.list, tables, (each) => each.name, (each) => box("table", each.name, this.open), (item, each) => {
      show(item, each.level, each.name, stateOf(each), tableFacts(each));
    });
    this.showViews(views);
    keyed(this.workers.list, picture.workers, (each) => each.worker, (each) => box("worker", each.worker, this.open), (item, each) => {
      show(item, each.level, `Worker ${each.worker}`, workerState(each), workerFacts(each));
    });
    this.say(this.tables.empty, tables.length ? "" : this.filter ? "No table of that name." : "No tables yet: app.table(...) declares one.");
    this.say(this.views.empty, views.length ? "" : this.filter ? "No view of that name." : "No views yet: app.view(name, sql, key=...) declares one.");
    this.say(this.workers.empty, picture.workers.length ? "" : "No worker is up yet.");
    this.drawEdges();
    if (!this.tablesNode.hidden) this.showTables();
  }

  say(node, text) {
    node.hidden = !text;
    setText(node, text);
  }

  showViews(views) {
    const makeView = (each) => box("view", each.name, this.open);
    const update = (isCompact) => (item, each) => {
      show(item, each.level, each.name, stateOf(each), isCompact ? "" : viewFacts(each));
      setText(item.parts.reads, each.tables.length ? `reads ${each.tables.join(", ")}` : "");
      redraw(item.parts.more, isCompact ? [] : [each.regions, each.is_partial], () => (isCompact ? [] : chips(each)));
    };
    const items = this.shown.isGrouped ? grouped(views).map((group) => ({ ...group, isGroup: true })) : views;
    keyed(this.views.list, items, (each) => (each.isGroup ? `group ${each.name}` : `view ${each.name}`),
      (each) => (each.isGroup ? this.makeGroup(each) : makeView(each)),
      (item, each) => (each.isGroup ? this.updateGroup(item, each, makeView, update(true)) : update(false)(item, each)));
  }

  makeGroup(group) {
    const parts = { name: html("span", { class: "name" }), state: html("span", { class: "state" }), facts: html("span", { class: "facts" }) };
    const list = html("ul", { class: "members" });
    const button = html("button", {
      type: "button", class: "node group", "data-node": `group:${group.name}`, "aria-expanded": "false",
      onclick: () => { this.expanded.set(group.name, button.getAttribute("aria-expanded") !== "true"); this.show(this.picture); },
    }, html("span", { class: "node-head" }, html("span", { class: "dot", "aria-hidden": "true" }), parts.name, parts.state), parts.facts);
    return Object.assign(html("li", { class: "cluster" }, button, list), { button, parts, list });
  }

  updateGroup(item, group, makeView, updateView) {
    const isOpen = this.expanded.get(group.name) ?? Boolean(this.filter);
    const troubled = group.members.filter((view) => view.state === "failed" || view.error);
    const shown = isOpen ? group.members : troubled;
    item.button.dataset.level = group.level;
    setName(item.parts.name, group.name);
    item.button.setAttribute("aria-expanded", String(isOpen));
    setText(item.parts.state, group.level === "good" ? "" : troubled.length ? `${troubled.length} failed` : standing(group.members.find((view) => view.level === group.level)));
    setText(item.parts.facts, `${plural(group.members.length, "view")} of ${group.tables.length > 1 ? "these tables" : "this table"} · ${isOpen ? "hide" : "show"} ${group.members.length === 1 ? "it" : "them"}`);
    keyed(item.list, shown, (each) => each.name, makeView, updateView);
    item.list.hidden = !shown.length;
  }

  node(kind, name) {
    return this.stage.querySelector(`[data-node="${CSS.escape(`${kind}:${name}`)}"]`);
  }

  drawEdges() {
    if (!this.picture || this.stage.hidden || !this.stage.offsetWidth) return;
    const isWide = getComputedStyle(this.stage).getPropertyValue("--edges").trim() === "on";
    const frame = this.stage.getBoundingClientRect();
    const port = (node, side) => {
      const place = node.getBoundingClientRect();
      return [place[side] - frame.left, place.top + Math.min(place.height / 2, 40) - frame.top];
    };
    const edges = isWide ? this.edgesOf(port) : [];
    redraw(this.edges, [Math.round(frame.width), Math.round(frame.height), edges], () => {
      this.edges.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
      return edges.map((edge) => [
        svg("path", { class: "edge", d: edge.d, "data-level": edge.level, "data-ends": edge.ends.join("\n") }),
        edge.flow ? svg("path", { class: `flow ${edge.flow}`, d: edge.d, "data-ends": edge.ends.join("\n") }) : null,
      ]);
    });
    if (this.lit) this.light(this.lit);
  }

  edgesOf(port) {
    const { tables, views, isGrouped } = this.shown, found = [];
    const byName = new Map(tables.map((each) => [each.name, each]));
    const targets = isGrouped ? grouped(views).map((group) => ["group", group]) : views.map((view) => ["view", view]);
    const rightmost = [];
    for (const [kind, target] of targets) {
      const node = this.node(kind, target.name);
      if (!node) continue;
      rightmost.push([port(node, "right"), `${kind}:${target.name}`, target]);
      for (const name of target.tables) {
        const from = byName.get(name), start = from && this.node("table", name);
        if (!start) continue;
        const speed = from.level === "good" || from.level === "note" ? from.rows_per_s ?? 0 : 0;
        const flow = speed >= FAST ? "fast" : speed >= STEADY ? "steady" : speed > 0 ? "slow" : null;
        found.push({ d: curve(port(start, "right"), port(node, "left")), level: from.level, flow, ends: [`table:${name}`, `${kind}:${target.name}`] });
      }
    }
    const workers = this.picture.workers.map((worker) => [this.node("worker", worker.worker), worker]).filter(([node]) => node);
    if (!rightmost.length || !workers.length) return found;
    const right = Math.max(...rightmost.map(([[x]]) => x)), left = port(workers[0][0], "left")[0];
    const ends = workers.map(([node]) => port(node, "left"));
    const hub = [right + (left - right) / 2, ends.reduce((sum, [, y]) => sum + y, 0) / ends.length];
    for (const [from, name, target] of rightmost) found.push({ d: curve(from, hub), level: target.state === "failed" ? "bad" : "plain", flow: null, ends: [name] });
    workers.forEach(([, worker], place) => found.push({ d: curve(hub, ends[place]), level: worker.level === "good" ? "plain" : worker.level, flow: null, ends: [`worker:${worker.worker}`] }));
    return found;
  }

  /** Show what a node is connected with; the rest steps back. */
  light(node) {
    this.lit = node;
    const name = node?.dataset.node ?? null, related = new Set([name]);
    for (const edge of this.edges.querySelectorAll(".edge")) {
      const ends = edge.dataset.ends.split("\n");
      if (ends.includes(name)) ends.forEach((end) => related.add(end));
    }
    const isOn = name !== null && !name.startsWith("worker:");
    this.stage.classList.toggle("is-lit", isOn);
    for (const each of this.stage.querySelectorAll("[data-node]")) each.classList.toggle("on", isOn && related.has(each.dataset.node));
    for (const each of this.edges.children) each.classList.toggle("on", isOn && each.dataset.ends.split("\n").includes(name));
  }

  showTables() {
    const { tables, views } = this.shown, opener = (kind, name, text = name) =>
      html("button", { type: "button", class: "link", "data-focus": `${kind} ${name}`, onclick: () => this.open(kind, name), text: String(text) });
    const rows = {
      tables: tables.map((each) => [each.name, standing(each), seconds(each.age_s), rate(each.rows_per_s), count(each.rows), each.error ?? ""]),
      views: views.map((view) => [view.name, standing(view), view.tables.join(", "), view.key.map((column) => column.name).join(", "), view.is_partial ? "partial" : "full", view.state === "failed" ? "–" : count(view.rows), seconds(view.age_s)]),
      workers: this.picture.workers.map((worker) => [worker.worker, workerState(worker) || "up", count(worker.vnodes), count(worker.epoch), bytes(worker.bytes), count(worker.restarts)]),
    };
    redraw(this.tablesNode, rows, () => [
      html("h3", { text: "Sources and tables" }),
      table("Sources and tables", [["Table", false], ["State", false], ["Age", true], ["Rate", true], ["Rows", true], ["Error", false]], rows.tables.map(([name, ...rest]) => [opener("table", name), ...rest])),
      html("h3", { text: "Views" }),
      table("Views", [["View", false], ["State", false], ["Reads", false], ["Key", false], ["Keeps", false], ["Rows", true], ["Age", true]], rows.views.map(([name, ...rest]) => [opener("view", name), ...rest])),
      html("h3", { text: "Workers" }),
      table("Workers", [["Worker", false], ["State", false], ["Vnodes", true], ["Epoch", true], ["Memory", true], ["Restarts", true]], rows.workers.map(([name, ...rest]) => [opener("worker", name, `Worker ${name}`), ...rest])),
    ]);
  }

  asTable(isTable) {
    this.stage.hidden = isTable;
    byId("drawing").hidden = isTable;
    this.tablesNode.hidden = !isTable;
    if (this.picture) this.show(this.picture);
  }
}

function curve([fromX, fromY], [toX, toY]) {
  const bend = Math.max(24, (toX - fromX) / 2), round = (number) => Math.round(number * 10) / 10;
  return `M${round(fromX)} ${round(fromY)}C${round(fromX + bend)} ${round(fromY)} ${round(toX - bend)} ${round(toY)} ${round(toX)} ${round(toY)}`;
}
