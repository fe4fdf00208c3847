// The severity of a verdict or a headroom, and the status of a pipeline in the list.

import { count, duration, h, plural } from "./dom.js";

const WITHIN_AN_HOUR = "expiring within an hour";
/** Verdicts of records that are lost, or that will be lost without action. */
const BAD = new Set(["records lost", "expiring", WITHIN_AN_HOUR, "topic gone", "topic recreated", "not read", "incomplete", "unknown"]);
const GOOD = new Set(["in step", "no drift", "complete", "exact"]);
const SOON = 3_600;
const TODAY = 86_400;

const RUNBOOK = "https://airflow-kafka-offsets.github.io/airflow-kafka-offsets/runbook/";
/** Verdict -> section of the runbook; all other verdicts use the section on drift. */
const SECTIONS = {
  "records lost": "records-were-deleted",
  expiring: "headroom-is-short",
  "expiring soon": "headroom-is-short",
  [WITHIN_AN_HOUR]: "headroom-is-short",
  "group behind": "lag-grows",
  "no commit": "lag-grows",
  "topic gone": "another-cluster",
  "topic recreated": "another-cluster",
  "move unfinished": "a-move-stopped-half-way",
};

/** Return a link to the runbook section for a verdict. */
export const runbook = (verdict) => h("a", {
  class: "runbook", href: `${RUNBOOK}#${SECTIONS[verdict] ?? "drift"}`, target: "_blank", rel: "noopener noreferrer",
}, "Runbook");

/** Return `good`, `warn` or `bad` for a verdict, and `quiet` without a verdict. */
export function tone(verdict) {
  if (!verdict) return "quiet";
  if (GOOD.has(verdict)) return "good";
  return BAD.has(verdict) ? "bad" : "warn";
}

/** Return what is bad about a partition, else `null`. A verdict is `null` without both a group and a checkpoint. */
export function alarm(row) {
  if (BAD.has(row.verdict)) return row.verdict;
  return endangered(row);
}

/** Return what retention does to unread records, `null` if it deletes no unread record within an hour. */
function endangered({ headroom, headroom_state: kind }) {
  if (kind === "lost") return "records lost";
  return typeof headroom === "number" && headroom < SOON && kind !== "none" ? WITHIN_AN_HOUR : null;
}

/** Return the server's remedy for a verdict or an alarm. */
export const remedy = (remedies, text) => remedies?.[text === WITHIN_AN_HOUR ? "expiring" : text] ?? null;

/** Describe how long retention leaves the oldest unread record: `[text, tone, hint]`. */
export function headroom(totals) {
  if (totals.headroom_state === "lost") return ["records lost", "bad", "retention deleted unread records"];
  if (totals.headroom_state === "none") return ["no limit", "good", "no unread record will be deleted"];
  if (typeof totals.headroom !== "number") {
    return ["unknown", "quiet", "it is not known when retention deletes unread records"];
  }
  const kind = totals.headroom < SOON ? "bad" : totals.headroom < TODAY ? "warn" : "good";
  return totals.headroom_state === "time" ? [duration(totals.headroom), kind, "until retention deletes unread records"]
    : [`at most ${duration(totals.headroom)}`, kind === "good" ? "quiet" : kind, "until retention deletes unread records, perhaps earlier"];
}

/** Kinds of pipelines, the worst first, with their text in the headline and their tone. */
export const KINDS = {
  losing: [(number) => `${count(number)} ${number === 1 ? "loses" : "lose"} records`, "bad"],
  unknown: [(number) => `${count(number)} not known`, "bad"],
  late: [(number) => `${count(number)} late`, "warn"],
  alone: [(number) => `${count(number)} not compared`, "quiet"],
  good: [(number) => `${count(number)} in step`, "good"],
  waiting: [(number) => `${count(number)} loading`, "quiet"],
};

/**
 * Judge a pipeline: `{kind, text, todo}`, where `todo` is the remedy, or the reason why nothing is known.
 *
 * @param now the last reading, `null` before the first reading.
 * @param refused why Airflow has not answered, `null` if it has answered.
 */
export function judge(now, refused) {
  if (!now && !refused) return { kind: "waiting", text: "", todo: "" };
  const failure = refused ?? now.error?.message ?? null;
  if (failure) return { kind: "unknown", text: "not known", todo: failure };
  const { totals, drift, remedies, problems } = now;
  const verdict = drift && !GOOD.has(drift.verdict) ? drift.verdict : null;
  const danger = endangered(totals ?? {});
  const bad = BAD.has(verdict) ? verdict : danger;
  if (bad) return { kind: "losing", text: bad, todo: remedy(remedies, bad) ?? "" };
  if (!totals?.partitions) return { kind: "unknown", text: "not known", todo: "no partition is known yet" };
  if (problems?.length) return { kind: "unknown", text: verdict ?? "not all known", todo: problems[0] };
  if (verdict) return { kind: "late", text: verdict, todo: remedy(remedies, verdict) ?? "" };
  // An empty partition needs no commit.
  if (totals.uncounted || totals.without_commit === totals.partitions) {
    const without = `${count(totals.without_commit)} of ${plural(totals.partitions, "partition")} without a commit`;
    return { kind: "late", text: "no commit", todo: without };
  }
  if (typeof totals.headroom === "number" && totals.headroom < TODAY && totals.headroom_state !== "none") {
    return { kind: "late", text: "expiring soon", todo: remedy(remedies, "expiring") ?? "" };
  }
  if (drift) return { kind: "good", text: drift.verdict, todo: "nothing" };
  return { kind: "alone", text: now.checkpoint ? "no group" : "no checkpoint", todo: "nothing" };
}
