// How serious the words are that the server says.

/** Verdicts of records that are lost, or that will be unless somebody does something. */
export const BAD = new Set(["records lost", "expiring", "topic gone", "topic recreated"]);
const GOOD = new Set(["in step", "no drift"]);
const SOON = 3_600;
const TODAY = 86_400;

/** Return `good`, `warn` or `bad` for a verdict, and `quiet` where there is none. */
export function tone(verdict) {
  if (!verdict) return "quiet";
  if (GOOD.has(verdict)) return "good";
  return BAD.has(verdict) ? "bad" : "warn";
}

/** Say how long retention leaves the oldest unread record: `[text, tone, hint]` of the totals. */
export function headroom(totals, duration) {
  if (totals.headroom_is === "lost") return ["records lost", "bad", "retention deleted records that were not read"];
  if (totals.headroom_is === "none") return ["no limit", "good", "nothing that is unread will be deleted"];
  if (totals.headroom_is !== "time" || totals.headroom === null) {
    return ["unknown", "quiet", "when retention deletes unread records cannot be said"];
  }
  const kind = totals.headroom < SOON ? "bad" : totals.headroom < TODAY ? "warn" : "good";
  return [duration(totals.headroom), kind, "until retention deletes records that are not read"];
}
