// Numbers, ages and states in words.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (number) => (number === null || number === undefined ? "–" : whole.format(number));
export const compact = (number) => (number === null || number === undefined ? "–" : number < 10000 ? whole.format(number) : short.format(number));
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** Seconds: "0.4 s", "12 s", "3 min", "2 h", "5 d". */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return value < 0.05 ? "0 s" : `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} d`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? `${value.toFixed(1)} ms` : value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function rate(rowsPerSecond) {
  return rowsPerSecond ? `${rowsPerSecond < 10 ? rowsPerSecond.toFixed(1) : compact(Math.round(rowsPerSecond))} rows/s` : "no rows now";
}

/** What a level means of a table or a view; never by colour alone. */
export function standing(node) {
  if (node.state === "failed") return "failed";
  if (node.state === "failing") return "failing";
  if (node.state === "stalled") return "stalled";
  if (node.lacks) return "warming up";
  if (node.state === "finished") return "finished";
  if (node.level === "note") return "warming up";
  if (node.level === "warning") return node.tables ? (node.error ? "a key failed" : "stale") : "behind";
  return "up to date";
}

export const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** A time in the future or past: "14:02:11". */
export const timeOf = (text) => (text ? clock(Date.parse(text) / 1000) : "–");

/** "0–3, 7, 9–12" */
export function ranges(numbers) {
  const parts = [];
  let start = null, last = null;
  for (const number of [...numbers, null]) {
    if (start !== null && number !== last + 1) {
      parts.push(start === last ? `${start}` : `${start}–${last}`);
      start = null;
    }
    if (start === null) start = number;
    last = number;
  }
  return parts.join(", ") || "none";
}
