// The plots of one pipeline: its history, and the readings while the page is open.

import { duration, h, shortDuration } from "./dom.js";
import { plot, span } from "./plots.js";

const MARKED = new Set(["failover", "reset", "restore", "seek", "truncate"]);
/** Seconds between the lines of an axis of durations. */
const STEPS = [0.001, 0.01, 0.1, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 86_400, 604_800];
const MOST_POLLS = 2_000;

/** Sum up a column; if a value is missing, the sum is unknown. */
const sum = (column) => (column?.length && !column.includes(null) ? column.reduce((all, each) => all + each, 0) : null);

/** Return the partitions whose sums are drawn: the current ones if they are in the history, else those of most moves. */
function setToDraw(polls, past) {
  const counts = new Map();
  for (const { over } of past) if (over) counts.set(over, (counts.get(over) ?? 0) + 1);
  const now = polls.at(-1)?.over ?? null;
  if (!counts.size || counts.has(now)) return now;
  return [...counts].reduce((a, b) => (b[1] >= a[1] ? b : a))[0];
}

/** Create the plots; `poll` keeps a reading, `update` draws the history and the kept readings. */
export function plots() {
  const together = { key: `plots-${Math.random()}`, enlarged: false };
  const position = plot({ title: "Offsets, sum of the partitions", together });
  const lag = plot({ title: "Lag in records", together });
  const records = plot({ title: "Records per batch", together });
  const durations = plot({ title: "Duration of a batch", together, write: duration, short: shortDuration, steps: STEPS });
  const left = h("p", { class: "quiet" });
  const element = h("div", {},
    h("div", { class: "plots" }, ...[position, lag, records, durations].map((each) => each.element)), left);
  let polls = [];

  function poll(now) {
    if (!now.read_at || now.read_at === polls.at(-1)?.at) return;
    const { partitions, totals } = now;
    polls = [...polls, {
      at: now.read_at, over: totals?.over ?? null, log_end: sum(partitions?.log_end), offset: sum(partitions?.committed),
      checkpoint: sum(partitions?.checkpoint),
      lag: partitions?.lag?.includes(null) ? null : totals?.lag ?? null,
    }].slice(-MOST_POLLS);
  }

  /**
   * @param history `null` while it is being read.
   * @param failed whether it could not be read.
   * @param checkpoint the pipeline's checkpoint, `null` without one.
   */
  function update(history, moves, failed, checkpoint) {
    const batches = (history?.batches ?? []).filter((batch) => !batch.pending && batch.at);
    const moved = moves.filter((move) => !move.plan_only);
    const marked = moved.filter((move) => MARKED.has(move.kind));
    const over = setToDraw(polls, [...moved, ...batches]);
    const past = [...moved, ...polls];
    const drawn = (each) => (each.over ?? null) === over;
    const whole = past.filter(drawn);
    const ended = batches.filter(drawn);
    const points = (rows, column) => rows.map((row) => [row.at, row[column]]);
    const others = [...past, ...batches].filter((each) => typeof (each.offset ?? each.checkpoint) === "number" && !drawn(each)).length;
    left.textContent = others
      ? `Left out of the sums: ${others} ${others === 1 ? "value" : "values"} of other partitions.` : "";
    const range = span([...moved, ...polls, ...batches].map((each) => each.at));
    const nothing = failed ? "Not known: the history could not be read." : history ? "There is no history yet." : null;
    const noBatches = !checkpoint ? "The pipeline names no checkpoint." : history?.batches_known === false ? "Not known: the checkpoint could not be read." : nothing;
    position.update([
      { label: "Log end", colour: "--quiet", points: points(whole, "log_end") },
      { label: "Committed", colour: "--accent", points: points(whole, "offset") },
      { label: "Checkpoint", colour: "--second", points: [...points(ended, "offset"), ...points(whole, "checkpoint")] },
    ], marked, range, nothing);
    lag.update([{ label: "Lag", colour: "--accent", zero: true, points: points(whole, "lag") }], marked, range, nothing);
    records.update([{ label: "Records", colour: "--accent", bars: true, points: points(batches, "records") }], marked, range, noBatches);
    durations.update([{ label: "Duration", colour: "--second", bars: true, points: points(batches, "duration") }], marked, range, noBatches);
  }
  return { element, poll, update };
}
