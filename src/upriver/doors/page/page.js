// The page: follows the app, and hands each picture to its parts.

import { Charts } from "/charts.js";
import { openDetails } from "/details.js";
import { byId, html, redraw, setText } from "/dom.js";
import { call, follow } from "/feed.js";
import { LookupBox } from "/lookup.js";
import { buckets, metricsText, percentile } from "/metrics.js";
import { RescalePanel } from "/rescale.js";
import { River } from "/river.js";
import { Troubles } from "/troubles.js";
import { VnodeMap } from "/vnodes.js";
import { count, plural, standing } from "/words.js";

const METRICS_MS = 5000;
const LATENCIES_MAX = 120;
const SAY_MS_MIN = 5000; // a screen reader hears at most one thing in so long

let picture = null, role = "reader";

// The one live region: what it says is said once, and never often.
let saidAt = 0, sayNext = null, saying = null;
function announce(text) {
  sayNext = text;
  if (saying) return;
  saying = setTimeout(() => {
    saying = null;
    saidAt = Date.now();
    setText(byId("announcer"), sayNext);
  }, Math.max(0, saidAt + SAY_MS_MIN - Date.now()));
}

function theme() {
  const select = byId("theme");
  let chosen = "auto";
  try { chosen = localStorage.getItem("upriver-theme") ?? "auto"; } catch { /* no storage: the choice lasts for this page */ }
  const apply = (value) => {
    if (value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
  };
  select.value = ["auto", "light", "dark"].includes(chosen) ? chosen : "auto";
  apply(select.value);
  select.addEventListener("change", () => {
    apply(select.value);
    try { localStorage.setItem("upriver-theme", select.value); } catch { /* as above */ }
  });
}

const charts = new Charts(byId("charts"));
const lookup = new LookupBox(byId("lookup"));
const open = (kind, name) => openDetails(byId("details"), kind, name, picture, (view) => lookup.choose(view));
const troubles = new Troubles(byId("troubles"), open);
const river = new River(byId("drawing"), byId("tables"), open);
const vnodes = new VnodeMap(byId("vnodes"), byId("vnodes-lead"));
const rescale = new RescalePanel(byId("rescale"), announce);
const lookups = { at: [], p50: [], p99: [] };

const TABLES_NAMED_MAX = 4;

/** The sentence above the drawing: which tables need attention, and how many views are stale. */
function overview() {
  const { tables, views, summary } = picture, isBad = (each) => each.level === "warning" || each.level === "bad";
  const troubled = tables.filter(isBad), stale = views.filter(isBad).length;
  if (!troubled.length) return summary.level === "good" ? `${summary.text} Rows flow from sources through tables into views, which the workers keep.` : summary.text;
  const names = troubled.slice(0, TABLES_NAMED_MAX).map((each) => `${each.name} (${standing(each)})`), more = troubled.length - names.length;
  const which = more > 0 ? `${names.join(", ")} and ${plural(more, "other")}` : names.join(", ");
  return `${troubled.length} of ${plural(tables.length, "table")} ${troubled.length === 1 ? "needs" : "need"} attention: ${which}. ${stale} of ${plural(views.length, "view")} ${stale === 1 ? "is" : "are"} stale or failed.`;
}

const share = ({ vnodes_moved: moved, vnodes_moving: all }) => (all ? Math.floor((100 * moved) / all) : 0);

const lastMinutes = (at) => {
  const minutes = Math.max(1, Math.round((at.at(-1) - at[0]) / 60));
  return minutes === 1 ? "The last minute." : `The last ${minutes} minutes.`;
};

let heardLevel = null;
function showTop() {
  const { level, text } = picture.summary, short = { good: "All is well", note: "Getting ready", warning: "Needs attention", bad: "Something has failed" }[level];
  if (!byId("lost").hidden) byId("lost").hidden = true;
  document.body.dataset.state = "live";
  byId("pill").dataset.level = level;
  setText(byId("pill-text"), short);
  setText(byId("river-lead"), overview());
  const behind = picture.published - picture.epoch;
  setText(byId("epoch"), `Epoch ${count(picture.epoch)}${behind > 0 ? `, ${count(behind)} behind the lake` : ""}`);
  const rescale = picture.rescale, moving = byId("moving");
  moving.hidden = !rescale;
  if (rescale) setText(moving, `Rescaling from ${rescale.from ?? "?"} to ${rescale.to ?? "?"} workers: ${share(rescale)} %`);
  document.title = level === "good" ? "Upriver" : `${short} – Upriver`;
  const heard = `${level} ${picture.troubles.map((each) => `${each.kind} ${each.name}`).join()}`;
  if (heardLevel !== null && heard !== heardLevel) announce(text);
  heardLevel = heard;
  setText(byId("charts-lead"), picture.history.at.length ? lastMinutes(picture.history.at) : "");
}

function showPicture(next) {
  picture = next;
  showTop();
  troubles.show(picture.troubles);
  river.show(picture);
  vnodes.show(picture);
  rescale.show(picture, role);
  lookup.show(picture);
  charts.show(picture.history, lookups);
}

function showLost(why) {
  const banner = byId("lost");
  document.body.dataset.state = "lost";
  byId("pill").dataset.level = "bad";
  setText(byId("pill-text"), "Not connected");
  document.title = "Not connected – Upriver";
  const text = why === "session" ? "Your session has ended." : `Connection lost, trying again.${picture ? " What you see is from before." : ""} If the app was stopped, start it again.`;
  if (banner.hidden || banner.dataset.why !== why) banner.replaceChildren(text, ...(why === "session" ? [" ", html("a", { href: "/login", text: "Log in again" })] : []));
  banner.dataset.why = why;
  banner.hidden = false;
}

async function watchLookups() {
  let before = null;
  for (;;) {
    const text = document.hidden ? undefined : await metricsText();
    if (text === null) return; // this app has no metrics
    if (text) {
      const now = buckets(text);
      if (before && now.size) {
        lookups.at.push(Date.now() / 1000);
        lookups.p50.push(percentile(before, now, 0.5));
        lookups.p99.push(percentile(before, now, 0.99));
        for (const list of Object.values(lookups)) if (list.length > LATENCIES_MAX) list.shift();
      }
      before = now;
    }
    await new Promise((resolve) => setTimeout(resolve, METRICS_MS));
  }
}

theme();
byId("filter").addEventListener("input", (event) => {
  river.filter = event.target.value.trim().toLowerCase();
  if (picture) river.show(picture);
});
byId("as-table").addEventListener("click", (event) => {
  const isTable = event.currentTarget.getAttribute("aria-pressed") !== "true";
  event.currentTarget.setAttribute("aria-pressed", String(isTable));
  river.asTable(isTable);
});
byId("details").addEventListener("click", (event) => { if (event.target === event.currentTarget) event.currentTarget.close(); });
call("GET", "/v1/session").then((session) => { role = session.role; if (picture) rescale.show(picture, role); }, () => {});
follow(showPicture, showLost);
watchLookups();
