// Cards with the current numbers of one pipeline.

import { NONE, ago, compact, count, duration, h, name, plural, skeleton } from "./dom.js";
import { badge, mover, moveLink, newest, run } from "./moves.js";
import { headroom, tone } from "./verdicts.js";

const LABELS = ["Lag", "Behind", "Headroom", "Drift", "Rates", "Group", "Checkpoint", "Last move"];

function card(label) {
  const value = h("dd", { class: "value" }, skeleton());
  const hint = h("dd", { class: "quiet" });
  return {
    element: h("div", { class: "card" }, h("dt", {}, label), value, hint),
    set([text, kind = "", small = ""]) {
      value.className = `value ${kind}`;
      value.replaceChildren(...[text].flat());
      hint.replaceChildren(...[small].flat());
    },
  };
}

/** Return the lag, and the partitions that it covers. */
function lag(totals) {
  const known = totals?.lag ?? null;
  const { partitions = 0, uncounted = 0, without_commit: without = 0, unknown_lag: unknown = 0 } = totals ?? {};
  const others = uncounted ? `${plural(uncounted, "record")} more in ${plural(unknown, "partition")} without a commit` : "";
  if (known === null) return [uncounted ? "not known" : NONE, uncounted ? "warn" : "", others || (without ? `${plural(without, "partition")} without a commit` : "not known")];
  const covered = `records in ${plural(partitions - unknown, "partition")}`;
  if (others) return [`${count(known)} + ?`, "warn", `${covered}; ${others}`];
  return [count(known), "", covered + (without ? `, ${count(without)} without a commit` : "")];
}

const persecond = (rate) => (rate >= 10 ? compact(Math.round(rate)) : rate >= 0.1 ? String(Number(rate.toFixed(1))) : "< 0.1");

/** Return how fast records are written and read, measured since the page was opened. */
function rates(pace) {
  const { records_in: come = null, records_out: read = null, seconds_left: left = null, lag_falls: falls = null } = pace ?? {};
  if (come === null && read === null) return [NONE, "quiet", "measured while this page is open: a few commits are needed"];
  if (read === null) return [`${persecond(come)} /s in`, "", "the read rate is known after a few commits"];
  return [`${persecond(read)} /s read`, "", [come === null ? "no new records known" : `${persecond(come)} /s in`,
    left !== null ? `; caught up in about ${duration(left).split(" ").slice(0, 2).join(" ")}` : falls !== null ? "; lag falls" : ""].join("")];
}

function lastMove(move, now, pipeline, historyKnown) {
  if (move) {
    return [ago(move.at), "", [moveLink(move), move.run_id ? [" by run ", run(move.run_id)] : [" by ", mover(move)],
      move.by ? [", triggered by ", name(move.by)] : [], move.state ? [" ", badge(move.state, move)] : []].flat(2)];
  }
  // A failed reading does not mean that there was no move.
  if (now.error || !now.totals) return [NONE, "quiet", "not known"];
  const { partitions, without_commit: without } = now.totals;
  if (without !== null && partitions && without === partitions) return [NONE, "quiet", "the group has no commit"];
  if (!historyKnown) return [NONE, "quiet", "not known yet"];
  return [NONE, "quiet", pipeline.groups.length
    ? "the commits do not show what made them, and no run has left a receipt" : "no run has left a receipt"];
}

/** Create the cards; `update` takes the reading, the pipeline and the known moves. */
export function cards() {
  const all = Object.fromEntries(LABELS.map((label) => [label, card(label)]));
  const element = h("dl", { class: "cards" }, ...Object.values(all).map((each) => each.element));

  function update(now, pipeline, moves, historyKnown) {
    const { totals, checkpoint, members } = now;
    // An old reading is never shown in green.
    element.classList.toggle("stale", Boolean(now.error || now.stale));
    all.Lag.set(lag(totals));
    const late = totals?.time_lag ?? null;
    all.Behind.set([duration(late), "", late === null ? "not known" : "age of the oldest unread record"]);
    all.Headroom.set(totals ? headroom(totals) : [NONE, "quiet", "not known"]);
    const verdict = now.drift?.verdict;
    all.Drift.set([verdict ?? NONE, tone(verdict), verdict
      ? tone(verdict) === "good" ? "checkpoint and group agree" : "see the remedy below"
      : !pipeline.groups.length ? "no group to compare with" : pipeline.checkpoint ? "not known" : "no checkpoint to compare with"]);
    all.Rates.set(rates(now.pace));
    all.Group.set([now.state ?? NONE, "", members?.length ? plural(members.length, "member")
      : now.state === "Empty" ? "no members (normal: Spark does not join the group)" : now.state ? "no members" : pipeline.groups.length ? "not known" : "no group is named"]);
    all.Checkpoint.set(checkpoint
      ? [checkpoint.batch === null ? "no batch yet" : `batch ${checkpoint.batch}`, "", [
        checkpoint.age === null ? "" : `${duration(checkpoint.age)} old`,
        checkpoint.pending_batch === null ? "" : `${checkpoint.age === null ? "" : ", "}batch ${checkpoint.pending_batch} is pending`,
      ]]
      : [NONE, "quiet", pipeline.checkpoint ? "not known" : "no checkpoint is named"]);
    all["Last move"].set(lastMove(newest(moves.filter((move) => !["wait", "drift", "audit", "mirror"].includes(move.kind)), now.commits), now, pipeline, historyKnown));
  }

  /** Show that nothing could be read, if there is no earlier reading. */
  function fail() {
    for (const each of Object.values(all)) each.set([NONE, "quiet", "not known"]);
  }
  return { element, update, fail };
}
