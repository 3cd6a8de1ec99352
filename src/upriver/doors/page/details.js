// What a table, a view or a worker is, in a dialog.

import { html, table } from "/dom.js";
import { call } from "/feed.js";
import { bytes, count, plural, rate, seconds, standing } from "/words.js";

const facts = (pairs) => html("dl", { class: "facts-list" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
  .map(([name, value]) => [html("dt", { text: name }), html("dd", {}, value)]));

const code = (title, text) => [html("h3", { text: title }), html("pre", { tabindex: "0", role: "region", "aria-label": title }, html("code", { text }))];

function ofTable(each, picture) {
  const readers = picture.views.filter((view) => view.tables.includes(each.name)).map((view) => view.name);
  return [
    facts([
      ["Source", standing(each)], ["Age", seconds(each.age_s)], ["Why not fresher", each.level === "good" ? null : each.cause], ["Error", each.error],
      ["Next attempt", each.retry_in_s === null || each.retry_in_s === undefined ? null : `in ${seconds(each.retry_in_s)}`], ["Attempts", count(each.attempts)],
      ["This attempt", (each.attempt_for_s ?? null) === null ? null : `for ${seconds(each.attempt_for_s)}${each.doing ? `: ${each.doing}` : ""}`],
      ["Last failure", !each.last_error ? null : `${seconds(each.last_error_age_s)} ago: ${each.last_error}`],
      ["Rows so far", count(each.rows)], ["Rate", rate(each.rows_per_s)], ["Last epoch", count(each.epoch)], ["Read by", readers.join(", ") || "no view"],
    ]),
  ];
}

function ofView(view) {
  const told = html("div", { "aria-busy": "true" }, html("p", { class: "help", text: "Asking the app how the view is kept." }));
  call("GET", `/v1/views/${encodeURIComponent(view.name)}`).then(
    (found) => told.replaceChildren(...[
      code("SQL", found.sql.trim()), html("h3", { text: "Columns" }),
      table("Columns", [["Column", false], ["Type", false]], found.columns.map((column) => [column.name + (found.key.includes(column.name) ? " (key)" : ""), column.type])),
      code("Explained", found.explain),
    ].flat()),
    (error) => told.replaceChildren(html("p", { class: "said wrong", text: error.message })),
  ).finally(() => told.removeAttribute("aria-busy"));
  return [
    facts([
      ["State", standing(view)], ["Error", view.error], ["Reads", view.tables.join(", ")], ["Key", view.key.map((column) => `${column.name} ${column.type}`).join(", ") || "none: one key for all rows"],
      ["Keeps", view.state === "failed" ? "nothing: it answers no lookup" : view.is_partial ? `the keys that are looked up: ${plural(view.cached_keys ?? 0, "key")} now` : "every key"], ...(view.state === "failed" ? [] : [["Rows", count(view.rows)], ["Memory", bytes(view.bytes)], ["Age", seconds(view.age_s)]]),
    ]),
    view.regions.length ? [html("h3", { text: "Regions" }), table("Regions", [["Region", false], ["Stage", true], ["By", false], ["Keeps", false], ["Sends to", false]],
      view.regions.map((region) => [region.name, count(region.stage), region.key.join(", ") || "–", region.state, region.sends.join(", ") || "the view"]))] : null,
    told,
  ];
}

function ofWorker(worker, picture) {
  return [facts([
    ["State", worker.address === null ? "not up" : worker.held_up ? "held up" : "up"], ["Held up by", worker.held_up], ["Address", worker.address], ["Vnodes", `${count(worker.vnodes)} of ${count(picture.vnodes.owners.length)}`],
    ["Last finished epoch", `${count(worker.epoch)} of ${count(picture.published)}`], ["Memory", bytes(worker.bytes)], ["Restarts", count(worker.restarts)], ["Last failure", worker.last_failure],
  ])];
}

/** Open the dialog. lookUp(view): closes it and goes to the lookup box. */
export function openDetails(dialog, kind, name, picture, lookUp) {
  const found = kind === "worker" ? picture.workers.find((each) => each.worker === name) : picture[`${kind}s`].find((each) => each.name === name);
  if (!found) return;
  const body = kind === "table" ? ofTable(found, picture) : kind === "view" ? ofView(found) : ofWorker(found, picture);
  dialog.dataset.level = found.level;
  dialog.replaceChildren(
    html("div", { class: "details-head" },
      html("h2", { id: "details-title" }, html("small", { text: { table: "Table", view: "View", worker: "Worker" }[kind] }), ` ${name}`),
      kind === "view" ? html("button", { type: "button", class: "quiet", onclick: () => { dialog.close(); lookUp(name); }, text: "Look up a key" }) : "",
      html("button", { type: "button", class: "quiet", onclick: () => dialog.close(), text: "Close" })),
    ...[body].flat(Infinity).filter(Boolean));
  if (!dialog.open) dialog.showModal();
}
