// The box to look keys up: a field for each column of the view's key, and the rows with their epoch and age.

import { html, redraw, setText, table } from "/dom.js";
import { call } from "/feed.js";
import { count, milliseconds, plural, seconds, timeOf } from "/words.js";

const ROWS_SHOWN_MAX = 200;
const HINTS = { DATE: "2026-01-31", TIMESTAMP: "2026-01-31T12:00:00Z", TIMESTAMP_NTZ: "2026-01-31T12:00:00", BINARY: "X'00FF'", "INTERVAL DAY TO SECOND": "PT90.5S", BOOLEAN: "true" };
const isWhole = (type) => /^(TINYINT|SMALLINT|INT|BIGINT)$/.test(type);
const isNumber = (type) => isWhole(type) || /^(FLOAT|DOUBLE|DECIMAL)/.test(type);

/** The text of a field as the API takes a value of that type. */
export function valueOf(type, text) {
  if (type === "BOOLEAN") return text.trim().toLowerCase() === "true";
  if (isNumber(type) && !type.startsWith("DECIMAL") && text.trim() !== "") {
    const number = Number(text);
    if (Number.isSafeInteger(number) || (!isWhole(type) && Number.isFinite(number))) return number;
  }
  return type === "STRING" ? text : text.trim();
}

/** A cell of the answer as text. */
export const shown = (value) => (value === null || value === undefined ? "NULL" : typeof value === "object" ? JSON.stringify(value) : String(value));

export class LookupBox {
  constructor(node) {
    this.views = [];
    this.select = html("select", { id: "lookup-view", onchange: () => this.showFields() });
    this.fields = html("div", { class: "key-fields" });
    this.button = html("button", { type: "submit", text: "Look up" });
    this.said = html("p", { class: "said", role: "status" });
    this.rows = html("div", {});
    this.empty = html("p", { class: "empty", text: "There are no views to look up in yet." });
    this.form = html("form", { class: "fields", onsubmit: (event) => { event.preventDefault(); this.lookUp(); } },
      html("p", { class: "field wide" }, html("label", { for: "lookup-view", text: "View" }), this.select), this.fields, this.button);
    node.append(this.empty, this.form, this.said, this.rows);
  }

  show(picture) {
    this.views = picture.views;
    this.empty.hidden = this.views.length > 0;
    this.form.hidden = !this.views.length;
    const before = this.select.value;
    if (redraw(this.select, this.views.map((view) => view.name), () => this.views.map((view) => html("option", { value: view.name, text: view.name })))) {
      if (this.views.some((view) => view.name === before)) this.select.value = before;
    }
    this.showFields();
  }

  choose(name) {
    this.select.value = name;
    this.showFields();
    (this.fields.querySelector("input") ?? this.button).focus();
  }

  view() {
    return this.views.find((view) => view.name === this.select.value);
  }

  showFields() {
    const view = this.view();
    redraw(this.fields, [view?.name, view?.key], () => {
      this.inputs = (view?.key ?? []).map((column, place) => {
        const id = `key-${place}`;
        const input = html("input", { id, type: "text", autocomplete: "off", spellcheck: "false", inputmode: isWhole(column.type) ? "numeric" : isNumber(column.type) ? "decimal" : "text", placeholder: HINTS[column.type] ?? "", "data-focus": id });
        const isNull = html("input", { type: "checkbox", id: `${id}-null`, "data-focus": `${id}-null`, onchange: () => { input.disabled = isNull.checked; } });
        const node = html("div", { class: "field" },
          html("label", { for: id }, column.name, html("small", { text: ` ${column.type}` })), input,
          html("label", { class: "null" }, isNull, html("span", { text: "NULL" }), html("span", { class: "visually-hidden", text: ` as ${column.name}` })));
        return { column, input, isNull, node };
      });
      return this.inputs.length ? this.inputs.map((each) => each.node) : html("p", { class: "help", text: "This view has a single key: all its rows." });
    });
  }

  async lookUp() {
    const view = this.view();
    if (!view) return;
    const key = this.inputs.map(({ column, input, isNull }) => (isNull.checked ? null : valueOf(column.type, input.value)));
    this.button.disabled = true;
    this.said.classList.remove("wrong");
    const began = performance.now();
    try {
      const found = await call("POST", `/v1/views/${encodeURIComponent(view.name)}/lookup`, { keys: [key] });
      this.showRows(view, found, performance.now() - began);
    } catch (error) {
      this.said.classList.add("wrong");
      setText(this.said, error.message);
      this.rows.replaceChildren();
    }
    this.button.disabled = false;
  }

  showRows(view, found, took) {
    const rows = found.rows.slice(0, ROWS_SHOWN_MAX), more = found.rows.length - rows.length;
    const age = found.age_s === null || found.age_s === undefined ? "" : `, at most ${seconds(found.age_s)} old`;
    const sources = found.sources && found.sources !== "running" ? ` Its sources: ${found.sources}.` : "";
    setText(this.said, `${plural(found.rows.length, "row")} of ${view.name}, as of epoch ${count(found.epoch)} (committed at ${timeOf(found.committed_at)})${age}. Took ${milliseconds(took)}.${sources}`);
    if (!rows.length) {
      this.rows.replaceChildren(html("p", { class: "empty", text: "The view has no rows of this key." }));
      return;
    }
    const names = Object.keys(rows[0]);
    this.rows.replaceChildren(table(`Rows of ${view.name}`, names.map((name) => [name, typeof rows[0][name] === "number"]), rows.map((row) => names.map((name) => shown(row[name])))));
    if (more > 0) this.rows.append(html("p", { class: "help", text: `${count(more)} more rows are not shown.` }));
  }
}
