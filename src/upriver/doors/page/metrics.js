// Lookup latency from /metrics: percentiles between two readings of Prometheus' histogram.

const LINE = /^upriver_lookup_duration_seconds_bucket\{.*?le="([^"]+)".*?\}\s+(\S+)/;

/** Counts by upper bound in seconds, over all views. */
export function buckets(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (!match) continue;
    const bound = match[1] === "+Inf" ? Infinity : Number(match[1]);
    found.set(bound, (found.get(bound) ?? 0) + Number(match[2]));
  }
  return found;
}

/** The percentile in milliseconds of what was counted between two readings; null without lookups. */
export function percentile(before, now, share) {
  const bounds = [...now.keys()].sort((one, other) => one - other);
  const counts = bounds.map((bound) => now.get(bound) - (before.get(bound) ?? 0));
  const total = counts.at(-1) ?? 0;
  if (!(total > 0)) return null;
  const rank = share * total;
  const at = counts.findIndex((reached) => reached >= rank);
  const low = at ? bounds[at - 1] : 0, below = at ? counts[at - 1] : 0;
  const high = Number.isFinite(bounds[at]) ? bounds[at] : low;
  return 1000 * (low + (high - low) * ((rank - below) / Math.max(1, counts[at] - below)));
}

/** The text of /metrics; null if the app has none. */
export async function metricsText() {
  try {
    const answer = await fetch("/metrics", { credentials: "same-origin", headers: { accept: "text/plain" } });
    return answer.ok ? await answer.text() : null;
  } catch {
    return null;
  }
}
