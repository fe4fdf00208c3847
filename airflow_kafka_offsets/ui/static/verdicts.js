// How serious a verdict or a headroom is.

/** Verdicts of records that are lost, or that will be unless somebody does something. */
const BAD = new Set(["records lost", "expiring", "topic gone", "topic recreated", "not read"]);
const GOOD = new Set(["in step", "no drift"]);
const SOON = 3_600;
const TODAY = 86_400;

/** Return `good`, `warn` or `bad` for a verdict, and `quiet` where there is none. */
export function tone(verdict) {
  if (!verdict) return "quiet";
  if (GOOD.has(verdict)) return "good";
  return BAD.has(verdict) ? "bad" : "warn";
}

/** Return what is bad about a partition, whose verdict is `null` without both a group and a checkpoint; else `null`. */
export function alarm(row) {
  if (BAD.has(row.verdict)) return row.verdict;
  if (row.headroom_is === "lost") return "records lost";
  return typeof row.headroom === "number" && row.headroom < SOON && row.headroom_is !== "none" ? "expiring within an hour" : null;
}

/** Describe how long retention leaves the oldest unread record: `[text, tone, hint]`. */
export function headroom(totals, duration) {
  if (totals.headroom_is === "lost") return ["records lost", "bad", "retention deleted records that were not read"];
  if (totals.headroom_is === "none") return ["no limit", "good", "nothing that is unread will be deleted"];
  if (typeof totals.headroom !== "number") {
    return ["unknown", "quiet", "it is not known when retention deletes unread records"];
  }
  if (totals.headroom_is !== "time") {
    return [`at most ${duration(totals.headroom)}`, totals.headroom < SOON ? "bad" : "warn",
      "until retention deletes records that are not read; of some it is not known"];
  }
  const kind = totals.headroom < SOON ? "bad" : totals.headroom < TODAY ? "warn" : "good";
  return [duration(totals.headroom), kind, "until retention deletes records that are not read"];
}
