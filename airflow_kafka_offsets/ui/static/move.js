// One task instance: its receipt, report or reading, and the command that takes its move back.

import { airflowLink, alone, dagPath, explain, get, link, path, whileVisible } from "./data.js";
import { NONE, ago, count, facts, h, name, names, notice, plural, time } from "./dom.js";
import { badge, run } from "./moves.js";
import { table } from "./table.js";
import { tone } from "./verdicts.js";

/** Create a block of text, which has no invisible characters, with a button that copies it. */
function copyable(text) {
  const code = h("code", {}, text);
  const done = h("span", { role: "status", class: "quiet" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      done.textContent = "copied";
    } catch {
      // Without TLS there is no clipboard. The text is selected, so that the user can copy it.
      getSelection().selectAllChildren(code);
      done.textContent = "selected: press Ctrl+C";
    }
  };
  return h("div", { class: "copy" },
    h("pre", { tabindex: "0" }, code),
    h("p", {}, h("button", { type: "button", onclick: copy }, "Copy"), " ", done));
}

/** Turn columns of equal length into rows. */
export function rowsOf(columns) {
  const keys = Object.keys(columns ?? {}).filter((key) => Array.isArray(columns[key]));
  const length = Math.max(0, ...keys.map((key) => columns[key].length));
  return Array.from({ length }, (_, index) => Object.fromEntries(keys.map((key) => [key, columns[key][index]])));
}

const ENDED = new Set(["success", "failed", "skipped", "upstream_failed", "removed"]);
const REFRESH = 10;
/** Seconds between two refreshes of a move that has ended: where the pipeline is may still change. */
const SETTLED = 60;
/** Kind of a report -> heading of its section; all other kinds are readings. */
const TITLES = { drift: "Drift", certificate: "Certificate", mirror: "Failover to the mirror" };

/** Show the time of the record at an offset; `undefined` while the time is being read. */
function recordTime(value) {
  if (value === undefined) return "…";
  if (value === null) return NONE;
  return Number.isNaN(Date.parse(value)) ? name(value) : time(value);
}

const COLUMNS = [
  { label: "Topic", value: (row) => row.topic },
  { label: "Partition", numeric: true, value: (row) => row.partition, cell: (_, value) => String(value) },
  { label: "Before", numeric: true, value: (row) => row.before },
  { label: "After", numeric: true, value: (row) => row.after },
  { label: "Moved by", numeric: true, value: (row) => row.moved_by },
  { label: "Record time before", value: (row) => row.time_before, cell: (_, value) => recordTime(value) },
  { label: "Record time after", value: (row) => row.time_after, cell: (_, value) => recordTime(value) },
  { label: "Log start", numeric: true, value: (row) => row.log_start },
  { label: "Log end", numeric: true, value: (row) => row.log_end },
  { label: "Note", value: (row) => row.note ?? null, cell: (_, value) => (value === null ? "" : name(value)) },
];

/** Return what was done to the checkpoint, without its offsets, which are those of the groups. */
function checkpointOf(moved) {
  if (!moved) return null;
  const { kind, location, batch_id: batch, discarded, archive } = moved;
  return { kind, location, batch, ...(discarded?.length ? { discarded } : {}), archive: archive ?? "no file changed" };
}

const partitionsOf = (number) => (number ? plural(number, "partition") : null);

/** Create the section of a receipt; `update` takes data from Kafka, `null` for no data. */
function receiptOf(receipt, move) {
  const moved = move?.kind ?? "move";
  const rows = rowsOf(receipt.partitions);
  const several = receipt.groups.length > 1;
  const columns = several ? [...COLUMNS, { label: "Group", value: (row) => row.group }] : COLUMNS;
  const partitions = table({
    caption: "Moved partitions", columns, key: (row) => JSON.stringify([row.group, row.topic, row.partition]),
    limit: 100, empty: "No partition.",
  });
  // Times that are not in the receipt are requested from Kafka.
  partitions.update(rows.map((row) => ({
    ...row, time_before: row.time_before ?? undefined, time_after: row.time_after ?? undefined,
  })));
  const kept = rows.some((row) => row.time_before || row.time_after);
  const changed = receipt.plan_only ? "would change" : "changed";
  const about = h("div");
  let version = 0;
  const element = h("section", {}, h("h2", {}, "Receipt"),
    receipt.plan_only ? notice("warn", `This is a plan only: nothing was moved by this ${moved}.`) : null,
    facts([
      [several ? "Groups" : "Group", names(receipt.groups)],
      ["Partitions", `${count(receipt.changed)} ${changed}, of ${count(receipt.totals.partitions)}`],
      ["Moved by", plain(receipt.totals.moved_by)],
      ["Lag afterwards", plain(receipt.totals.lag)],
      ["Skipped", partitionsOf(receipt.totals.skipped)],
      ["Moved to an end of the log instead", partitionsOf(receipt.totals.clamped)],
      ["Already deleted by retention", receipt.totals.lost ? plural(receipt.totals.lost, "record") : null],
      ["Read back", receipt.plan_only ? null : receipt.verified ? "yes, the commit was verified" : "no: the task failed earlier"],
      ["Source of the offsets", receipt.source],
      ["Approved by", receipt.approval?.by ? h("span", {}, name(receipt.approval.by), ", ", time(receipt.approval.at)) : null],
      ["Checkpoint", checkpointOf(receipt.checkpoint)],
    ]),
    partitions.element, about);
  return {
    element,
    update(now) {
      const times = now?.times;
      version += 1;
      partitions.update(rows.map((row, index) => ({
        ...row, version, time_before: times?.before[index] ?? row.time_before ?? null,
        time_after: times?.after[index] ?? row.time_after ?? null,
      })));
      about.replaceChildren(h("p", { class: "quiet" }, ...(times
        ? ["A record time is the time of the next record to read at an offset, read from the log at ", time(now.read_at), "."]
        : [kept ? "The record times are from when the move was planned."
          : "The times of the records at these offsets are not known."])),
      ...(now?.problems ?? []).map((problem) => notice("warn", name(problem))));
    },
  };
}

/** Show where the commits of a move's groups are now; its checkpoint may be elsewhere. */
function sinceOf(since) {
  if (!since) return [];
  const by = since.tool ? [" by ", name(since.tool)] : [];
  const last = since.at ? [` The newest commit was made ${ago(since.at)}`, ...by, "."] : [];
  const [kind, text] = {
    "in place": ["good", "The committed offsets are still those of this move."],
    "in part": ["warn", "Some partitions are at the offsets of this move, the others at their earlier offsets."],
    "taken back": ["warn", "This move is not in place: the committed offsets are those before it."],
    "moved on": ["warn", "The committed offsets have moved on since."],
  }[since.state] ?? ["warn", since.state];
  return [notice(kind, text, ...last)];
}

/** Show the progress of a wait that has not ended; nothing if it cannot be measured. */
function progressOf({ wait, read_at: at, problems }) {
  const warnings = problems.map((problem) => notice("warn", "There is no new reading: ", name(problem)));
  if (!warnings.length && !wait?.done && typeof wait?.remaining !== "number") return [];
  return [h("h2", {}, "Progress"), ...warnings, ...(wait ? [facts([
    [wait.moving ? "Above the threshold" : "Still to read", wait.done ? "nothing: the task ends at its next poll"
      : `${plural(wait.remaining, "record")}${wait.of === null ? "" : ` of ${count(wait.of)}`}`],
    ["Pace", wait.done ? null : wait.pace],
    ["Read at", time(at)],
  ])] : [])];
}

const plain = (value) => (typeof value === "number" ? count(value) : typeof value === "boolean" ? (value ? "yes" : "no")
  : typeof value === "string" ? name(value) : value);
const label = (key) => key.charAt(0).toUpperCase() + key.slice(1).replaceAll("_", " ");

/** Turn the rows of a report into a table with a column for each key. */
function rowsTable(caption, rows) {
  const keys = [...new Set(rows.flatMap(Object.keys))];
  const columns = keys.map((key) => {
    const numeric = rows.every((row) => row[key] === null || row[key] === undefined || typeof row[key] === "number");
    const shown = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : value);
    return {
      label: label(key), numeric, value: (row) => shown(row[key]) ?? null,
      cell: (_, value) => (value === null ? NONE : key === "partition" ? String(value) : numeric ? count(value) : name(value)),
    };
  });
  const made = table({ caption, columns, key: (row) => JSON.stringify(row), limit: 100 });
  made.update(rows);
  return made.element;
}

/** Show a report, which is plain JSON: its values, then a table or a section for each list of objects. */
function reportOf(values) {
  const isRows = (value) => Array.isArray(value) && value.length > 0 && value.every((each) => each && typeof each === "object");
  const entries = Object.entries(values).filter(([key]) => key !== "version");
  const parts = entries.filter(([, value]) => isRows(value)).flatMap(([key, value]) =>
    (key === "partitions" ? [rowsTable(label(key), value)] : value.flatMap(reportOf)));
  const singles = entries.filter(([, value]) => !isRows(value)).map(([key, value]) => {
    if (key === "progress" && value) return [label(key), `${count(Math.round(value.records_per_second))} records/s`];
    return [label(key), Array.isArray(value) ? names(value.map(String)) : plain(value)];
  });
  return [facts(singles), ...parts];
}

/** Show the page of a task instance. */
export async function show(page, where) {
  const { dagId, runId, taskId, mapIndex } = where;
  const address = path("api", "dags", dagId, "runs", runId, "tasks", taskId, mapIndex);
  const found = await get(address);
  const { move, receipt, report, state } = found;
  const moved = receipt ? receiptOf(receipt, move) : null;
  const progress = h("section");
  const since = h("div");
  page.replaceChildren(
    h("nav", { "aria-label": "Where you are" },
      h("a", { href: link("") }, "Kafka offsets"), " / ", h("a", { href: link(dagPath(dagId)) }, name(dagId))),
    h("h1", {}, move ? `${move.kind[0].toUpperCase()}${move.kind.slice(1)} by task ` : "Task ", name(taskId)),
    ...found.problems.map((problem) => notice("warn", problem)),
    facts([
      ["Run", alone ? h("a", { href: airflowLink("dags", dagId, "runs", runId) }, run(runId)) : run(runId)],
      ["Map index", Number(mapIndex) >= 0 ? mapIndex : null],
      ["Operator", found.operator ? name(found.operator) : null],
      ["State", state ? badge(state, { dag_id: dagId, run_id: runId, task_id: taskId, map_index: Number(mapIndex) }) : "not run yet"],
      ["When", move?.at ? time(move.at) : null],
      ["Try", move?.try_number ?? null],
    ]),
    since,
    progress,
    moved?.element ?? "",
    ...(found.restore_command ? [h("section", {}, h("h2", {}, "Take it back"),
      h("p", {}, "This page changes nothing. To restore the earlier offsets, run this command on a machine with Airflow's "
        + "connections, such as a worker. As shown, the command only prints its plan: add --execute after the word restore to "
        + "apply it. If the pipeline has moved on since, the command names the later moves and refuses, unless you add --allow-stale."),
      copyable(found.restore_command),
      receipt?.checkpoint ? "" : h("p", { class: "quiet" }, "The command only moves the group. A checkpoint keeps its "
        + "offsets, and the next commit of these moves the group back there."))] : []),
    ...(report ? [h("section", {},
      h("h2", {}, TITLES[found.report_kind] ?? (ENDED.has(state) ? "Last reading" : "Reading when the wait began")),
      report.verdict ? h("p", {}, h("span", { class: `tag ${tone(report.verdict)}` }, report.verdict)) : "",
      ...reportOf(report))] : []),
    receipt || report ? "" : h("p", { class: "quiet" },
      "This task has stored no receipt and no reading: "
      + (state === "success" ? "" : ENDED.has(state) ? "the task ended before it had one, or " : "the task has not run yet, or ")
      + "it does not move or wait for Kafka offsets."),
  );
  document.title = `${taskId} – Kafka offsets`;

  let stop = () => {};
  async function refresh() {
    try {
      const now = await get(`${address}/now`);
      if (now.state !== state) {
        // If Airflow does not answer, this page asks again.
        await show(page, where);
        stop();
        return;
      }
      moved?.update(now);
      since.replaceChildren(...sinceOf(now.since));
      if (!moved) progress.replaceChildren(...progressOf(now));
    } catch (refused) {
      moved?.update(null);
      since.replaceChildren();
      progress.replaceChildren(notice("warn", explain(refused)));
    }
  }
  if (moved || !ENDED.has(state)) stop = whileVisible(ENDED.has(state) ? SETTLED : REFRESH, refresh);
}
