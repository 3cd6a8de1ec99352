// Small line charts. Each has its newest value in words, a text equivalent, and a table of its points.

import { html, redraw, setText, svg, table } from "/dom.js";
import { clock, compact, count, milliseconds, rate, seconds } from "/words.js";

const RATE_S = 30; // seconds over which a rate is taken
const WIDTH = 320, HEIGHT = 96, ROWS_MAX = 12;
const GAP_S = 15; // seconds without a point after which a line begins anew: the app did not answer meanwhile

const CHARTS = [
  { id: "age", title: "Age of answers", say: seconds, help: "Seconds by which the oldest table is behind its source.", of: (history) => [{ values: history.age_s, name: "age" }] },
  { id: "epochs", title: "Epochs a minute", say: (value) => (value === null ? "–" : compact(Math.round(value))), help: "Epochs that every view has come to reflect.", of: (history) => [{ values: perMinute(history.at, history.epoch), name: "epochs" }] },
  { id: "lag", title: "Epochs behind the lake", say: count, help: "Epochs in the lake that some view does not reflect yet.", of: (history) => [{ values: history.published.map((epoch, place) => epoch - history.epoch[place]), name: "epochs" }] },
  { id: "rows", title: "Rows into the lake", say: (value) => (value ? rate(value) : "0 rows/s"), help: "All tables together, mean of a minute.", of: (history) => [{ values: history.rows_per_s, name: "rows" }] },
  { id: "lookups", title: "Lookup latency", say: milliseconds, help: "At the workers: half of the lookups, and 99 of 100, are answered within this time.", of: (history, lookups) => [{ values: lookups.p50, name: "half" }, { values: lookups.p99, name: "99 of 100" }], at: (history, lookups) => lookups.at },
];

/** The rate over the last RATE_S seconds, a minute. */
export function perMinute(at, epochs) {
  let from = 0;
  return epochs.map((epoch, place) => {
    while (at[place] - at[from] > RATE_S) from += 1;
    const span = at[place] - at[from];
    return span > 0 ? (60 * (epoch - epochs[from])) / span : null;
  });
}

function nice(top) {
  if (!(top > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(top));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= top);
}

function path(at, values, top) {
  const start = at[0], span = Math.max(1e-9, at.at(-1) - start);
  let text = "", pen = false;
  values.forEach((value, place) => {
    if (value === null || value === undefined) { pen = false; return; }
    if (place && at[place] - at[place - 1] > GAP_S) pen = false;
    const x = ((at[place] - start) / span) * WIDTH, y = HEIGHT - 4 - (value / top) * (HEIGHT - 14);
    text += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = true;
  });
  return text;
}

function figure(chart) {
  const now = html("strong", { class: "now" });
  const drawing = html("div", { class: "plot" }), points = html("details", {}, html("summary", {}, "Points", html("span", { class: "visually-hidden", text: ` of ${chart.title}` })));
  const rows = html("div", {});
  points.append(rows);
  const node = html("figure", { class: "chart", "data-chart": chart.id, "aria-labelledby": `chart-${chart.id}` },
    html("figcaption", {}, html("span", { id: `chart-${chart.id}`, text: chart.title }), now), drawing, html("p", { class: "help", text: chart.help }), points);
  return { node, now, drawing, points, rows };
}

export class Charts {
  constructor(node) {
    this.parts = new Map(CHARTS.map((chart) => [chart.id, figure(chart)]));
    this.empty = html("p", { class: "empty", text: "The charts begin when the app starts. Two points are needed." });
    node.append(this.empty, ...[...this.parts.values()].map((part) => part.node));
  }

  show(history, lookups) {
    const enough = history.at.length > 1;
    this.empty.hidden = enough;
    for (const chart of CHARTS) {
      const part = this.parts.get(chart.id), at = chart.at ? chart.at(history, lookups) : history.at;
      part.node.hidden = !enough || (chart.id === "lookups" && at.length < 2);
      if (!part.node.hidden) this.draw(chart, part, at, chart.of(history, lookups));
    }
  }

  draw(chart, part, at, lines) {
    const known = lines.flatMap((line) => line.values).filter((value) => value !== null && value !== undefined);
    const top = nice(Math.max(0, ...known)), newest = lines.map((line) => line.values.at(-1) ?? null);
    setText(part.now, newest.map((value) => chart.say(value)).join(" / "));
    const said = known.length ? `Now ${newest.map((value) => chart.say(value)).join(" and ")}; at most ${chart.say(Math.max(...known))} since ${clock(at[0])}.` : "No points yet.";
    redraw(part.drawing, [at.at(-1), lines], () => [
      svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${chart.title}. ${said}` },
        svg("path", { class: "grid", d: `M0 10H${WIDTH}M0 ${(HEIGHT + 6) / 2}H${WIDTH}M0 ${HEIGHT - 4}H${WIDTH}` }),
        lines.map((line, place) => {
          const drawn = path(at, line.values, top);
          return [
            place === 0 && lines.length === 1 && drawn.lastIndexOf("M") === 0 && line.values.at(-1) !== null && line.values[0] !== null
              ? svg("path", { class: "area", d: `${drawn}L${WIDTH} ${HEIGHT - 4}L0 ${HEIGHT - 4}Z` }) : null,
            svg("path", { class: `line line-${place}`, d: drawn }),
          ];
        })),
      html("span", { class: "top-mark", "aria-hidden": "true", text: chart.say(top) }),
      html("span", { class: "from-mark", "aria-hidden": "true", text: clock(at[0]) }),
      html("span", { class: "to-mark", "aria-hidden": "true", text: "now" }),
    ]);
    if (!part.points.open) return;
    const last = at.map((each, place) => place).slice(-ROWS_MAX);
    part.rows.replaceChildren(table(`${chart.title}, the last points`, [["Time", false], ...lines.map((line) => [line.name, true])],
      last.map((place) => [clock(at[place]), ...lines.map((line) => chart.say(line.values[place] ?? null))])));
  }
}
