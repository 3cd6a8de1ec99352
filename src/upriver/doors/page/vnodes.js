// The map of vnodes: a lane for each worker with its vnodes. A vnode that changes its owner moves to the other lane.

import { html, redraw, setText, svg, table } from "/dom.js";
import { count, plural, ranges } from "/words.js";

const COLOURS = 8; // colours of workers; more workers take them again
const MOVED_MS = 8000; // for how long a vnode that has moved is marked
const GAP = 2, LANE_GAP = 12, LABEL = 84;

/** The vnodes of each worker, in order. */
export function lanes(owners, workers) {
  const found = new Map(workers.map((worker) => [worker, []]));
  owners.forEach((worker, vnode) => {
    if (!found.has(worker)) found.set(worker, []);
    found.get(worker).push(vnode);
  });
  return [...found].sort(([one], [other]) => one - other);
}

export class VnodeMap {
  constructor(node, lead) {
    this.lead = lead;
    this.cells = [];
    this.owners = [];
    this.movedAt = new Map();
    this.drawing = svg("svg", { class: "vnode-map", role: "img" });
    this.labels = svg("g", {});
    this.ground = svg("g", {});
    this.drawing.append(this.labels, this.ground);
    this.words = html("details", {}, html("summary", {}, "As a table", html("span", { class: "visually-hidden", text: ": vnodes by worker" })));
    this.rows = html("div", {});
    this.words.append(this.rows);
    this.holder = html("div", { class: "vnode-holder" }, this.drawing);
    node.append(this.holder, this.words);
    new ResizeObserver(() => this.picture && this.place()).observe(this.holder);
  }

  show(picture) {
    this.picture = picture;
    const { owners, version } = picture.vnodes;
    if (owners.length !== this.cells.length) {
      this.cells = owners.map(() => svg("rect", { class: "vnode", rx: "1.5" }));
      this.ground.replaceChildren(...this.cells);
      this.owners = [];
    }
    const now = Date.now();
    owners.forEach((worker, vnode) => {
      if (this.owners[vnode] !== undefined && this.owners[vnode] !== worker) this.movedAt.set(vnode, now);
    });
    // While a rescale is on, owners change and the version does not.
    const drawn = JSON.stringify([owners, picture.workers.map((worker) => worker.worker)]), changed = this.drawn !== drawn;
    [this.owners, this.drawn] = [owners, drawn];
    const rescale = picture.rescale;
    setText(this.lead, rescale
      ? `${count(rescale.vnodes_moved)} of ${plural(rescale.vnodes_moving, "vnode")} have moved to another worker.`
      : `Keys are hashed to ${plural(owners.length, "vnode")}. ${version ? `The map has changed ${plural(version, "time")}.` : "Each belongs to one worker."}`);
    if (changed) this.place();
    for (const [vnode, at] of this.movedAt) {
      const isOld = now - at > MOVED_MS;
      this.cells[vnode]?.classList.toggle("moved", !isOld);
      if (isOld) this.movedAt.delete(vnode);
    }
  }

  place() {
    const width = this.holder.clientWidth;
    if (!width) return;
    const found = lanes(this.owners, this.picture.workers.map((worker) => worker.worker));
    const most = Math.max(1, ...found.map(([, vnodes]) => vnodes.length));
    const room = width - LABEL, rowsMax = most > 120 ? 6 : most > 40 ? 3 : 2;
    const size = Math.max(5, Math.min(18, Math.floor(room / Math.ceil(most / rowsMax)) - GAP));
    const across = Math.max(1, Math.floor(room / (size + GAP)));
    let top = 0;
    const labels = [];
    for (const [worker, vnodes] of found) {
      const rows = Math.max(1, Math.ceil(vnodes.length / across)), height = Math.max(rows * (size + GAP), 20);
      labels.push({ worker, y: top, height, vnodes: vnodes.length });
      vnodes.forEach((vnode, place) => {
        const cell = this.cells[vnode];
        cell.setAttribute("width", size);
        cell.setAttribute("height", size);
        cell.dataset.colour = worker % COLOURS;
        cell.style.transform = `translate(${LABEL + (place % across) * (size + GAP)}px, ${top + Math.floor(place / across) * (size + GAP)}px)`;
      });
      top += height + LANE_GAP;
    }
    const height = Math.max(20, top - LANE_GAP);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.drawing.setAttribute("width", width);
    this.drawing.setAttribute("height", height);
    this.drawing.setAttribute("aria-label", `Vnodes by worker: ${labels.map((lane) => `worker ${lane.worker} has ${lane.vnodes}`).join(", ")}.`);
    redraw(this.labels, labels, () => labels.map((lane) => [
      svg("text", { x: 0, y: lane.y + 12, class: "lane-name", text: `Worker ${lane.worker}` }),
      svg("text", { x: LABEL - 12, y: lane.y + 12, class: "lane-count", text: String(lane.vnodes) }),
    ]));
    redraw(this.rows, found, () => table("Vnodes of each worker", [["Worker", false], ["Vnodes", true], ["Which", false]],
      found.map(([worker, vnodes]) => [`Worker ${worker}`, count(vnodes.length), ranges(vnodes)])));
  }
}
