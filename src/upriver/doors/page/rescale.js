// The rescale: its progress for every viewer; beginning and aborting it for operators. The server refuses readers anyway.

import { html, redraw, setText, table } from "/dom.js";
import { call } from "/feed.js";
import { bytes, count, plural, seconds } from "/words.js";

const STRATEGIES = [
  ["icadd", "icadd: in small steps"],
  ["lazy", "lazy: refill partial keys"],
  ["redistribute", "redistribute: by distributors"],
  ["learner", "learner: learn, then switch"],
  ["restart", "restart: compute anew"],
];
const WORKERS_MAX = 1024;
const GOING_ON = ["queued", "starting", "moving"];

/** The keys of each region, over all workers. */
function regions(workers) {
  const found = new Map();
  for (const each of workers) {
    const sum = found.get(each.view) ?? { moved: 0, left: 0 };
    sum.moved += each.keys_moved;
    sum.left += each.keys_left;
    found.set(each.view, sum);
  }
  if (!found.size) return null;
  return table("Keys of each region", [["Region", false], ["Keys moved", true], ["Keys left", true]],
    [...found].map(([region, sum]) => [region, count(sum.moved), count(sum.left)]));
}

export class RescalePanel {
  constructor(node, announce) {
    this.announce = announce;
    this.role = "reader";
    this.quarter = 0;
    this.ticket = null; // of the rescale that this page has begun, or aborted, until it is over
    this.progress = html("div", {});
    this.controls = html("div", {});
    this.said = html("p", { class: "said", role: "status" });
    this.history = html("div", {});
    node.append(this.progress, this.controls, this.said, this.history);
  }

  show(picture, role) {
    this.role = role;
    const on = picture.rescale;
    this.tellEnd(on);
    this.showProgress(on, picture);
    this.showControls(on !== null, picture);
    redraw(this.history, picture.rescales, () => (picture.rescales.length ? [
      html("h3", { text: "The last ones" }),
      table("The last rescales", [["Workers", false], ["Outcome", false], ["Keys moved", true], ["Moved", true], ["Took", true]],
        [...picture.rescales].reverse().map((each) => [`${each.from ?? "?"} to ${each.to ?? "?"}`, each.outcome ?? each.state, count(each.moved_keys), bytes(each.moved_bytes), seconds(each.seconds)])),
    ] : []));
  }

  showProgress(on, picture) {
    redraw(this.progress, [on, picture.rescales_waiting], () => {
      if (!on) return html("p", { class: "calm", text: `${plural(picture.workers.length, "worker")}. No rescale is under way.` });
      const share = on.vnodes_moving ? on.vnodes_moved / on.vnodes_moving : 0;
      return [
        html("p", { class: "rescale-now" }, html("strong", { text: `From ${on.from} to ${plural(on.to, "worker")}` }), ` by ${on.strategy}: ${on.state}${on.waits_for ? `, waits for ${on.waits_for}` : ""}`),
        html("progress", { max: 1, value: share, "aria-label": "Vnodes that have moved" }),
        html("p", { class: "calm", text: `${count(on.vnodes_moved)} of ${plural(on.vnodes_moving, "vnode")} · ${count(on.keys_moved)} keys moved, ${count(on.keys_left)} left · ${bytes(on.bytes_moved)} · ${seconds(on.seconds)} so far${on.seconds_left === null ? "" : `, about ${seconds(on.seconds_left)} left`}` }),
        regions(on.workers),
        picture.rescales_waiting ? html("p", { class: "calm", text: `${plural(picture.rescales_waiting, "more rescale")} waiting.` }) : null,
      ];
    });
    this.tell(on);
  }

  /** What was said when the rescale began, or was aborted, gives way to how it ended. */
  async tellEnd(under) {
    const ticket = this.ticket;
    if (ticket === null || under?.ticket === ticket) return;
    try {
      const told = await call("GET", `/v1/rescale?ticket=${ticket}`);
      if (ticket !== this.ticket || GOING_ON.includes(told.state)) return;
      this.said.classList.toggle("wrong", Boolean(told.error));
      setText(this.said, `The rescale to ${plural(told.to, "worker")} is ${told.state}${told.error ? `: ${told.error}` : "."}`);
    } catch {
      setText(this.said, ""); // the app was started anew, or does not answer
    }
    if (ticket === this.ticket) this.ticket = null;
  }

  /** Say each quarter, and no more. */
  tell(on) {
    if (!on) {
      if (this.wasOn) this.announce("The rescale has ended.");
      [this.wasOn, this.quarter] = [false, 0];
      return;
    }
    const quarter = on.vnodes_moving ? Math.floor((4 * on.vnodes_moved) / on.vnodes_moving) : 0;
    if (!this.wasOn) this.announce(`A rescale to ${plural(on.to, "worker")} has begun.`);
    else if (quarter > this.quarter && quarter < 4) this.announce(`Rescale: ${25 * quarter} percent of the vnodes have moved.`);
    [this.wasOn, this.quarter] = [true, quarter];
  }

  showControls(isOn, picture) {
    redraw(this.controls, [this.role, isOn], () => {
      if (this.role !== "operator") return html("p", { class: "help", text: "Log in with the operator's token to rescale the app." });
      if (isOn) return html("button", { type: "button", class: "danger", "data-focus": "act", onclick: () => this.act("DELETE", undefined, "The rescale is to end: vnodes on their way arrive, the others stay."), text: "Abort the rescale" });
      const workers = html("input", { type: "number", id: "rescale-workers", min: 1, max: Math.min(WORKERS_MAX, picture.vnodes.owners.length), step: 1, required: true, value: picture.workers.length, inputmode: "numeric" });
      const strategy = html("select", { id: "rescale-strategy" }, STRATEGIES.map(([value, text]) => html("option", { value, text })));
      return html("form", { class: "fields", onsubmit: (event) => {
        event.preventDefault();
        this.act("POST", { workers: Number(workers.value), strategy: strategy.value }, "The rescale has begun.");
      } },
      html("p", { class: "field" }, html("label", { for: "rescale-workers", text: "Workers" }), workers),
      html("p", { class: "field wide" }, html("label", { for: "rescale-strategy", text: "Strategy" }), strategy),
      html("button", { type: "submit", "data-focus": "act", text: "Rescale" }));
    });
  }

  async act(method, body, done) {
    setText(this.said, "");
    this.said.classList.remove("wrong");
    try {
      const progress = await call(method, "/v1/rescale", body);
      this.ticket = progress.ticket;
      setText(this.said, done);
    } catch (error) {
      this.said.classList.add("wrong");
      setText(this.said, error.message);
    }
  }
}
