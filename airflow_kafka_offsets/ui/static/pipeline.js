// One pipeline: where it is now, how it came there, and each of its partitions.

import { explain, get, link, movePath, path, whileVisible } from "./data.js";
import { NONE, ago, clock, count, duration, facts, h, name, names, notice, plural, shortDuration, time } from "./dom.js";
import { rowsOf } from "./move.js";
import { plot } from "./plots.js";
import { alarms, skew, strips } from "./strip.js";
import { table } from "./table.js";
import { headroom, tone } from "./verdicts.js";

const REFRESH = 10;
const HISTORY = 60;
const MARKED = new Set(["reset", "restore"]);

/** A move is also a link to its page. */
const moveLink = (move) => (move.run_id ? h("a", { href: link(movePath(move)) }, move.kind) : move.kind);

const PARTITION_COLUMNS = [
  { label: "Topic", value: (row) => row.topic, cell: (_, value) => name(value) },
  { label: "Partition", numeric: true, value: (row) => row.partition, cell: (_, value) => String(value) },
  { label: "Committed", numeric: true, value: (row) => row.committed },
  { label: "Checkpoint", numeric: true, value: (row) => row.checkpoint },
  { label: "Log start", numeric: true, value: (row) => row.log_start },
  { label: "Log end", numeric: true, value: (row) => row.log_end },
  { label: "Lag", numeric: true, value: (row) => row.lag, cell: (row, value) => [bar(row), count(value)] },
  { label: "Behind", numeric: true, value: (row) => row.time_lag, cell: (_, value) => duration(value) },
  {
    label: "Headroom", numeric: true, value: (row) => row.headroom,
    cell: (row) => {
      const [text, kind] = headroom(row, duration);
      return h("span", { class: kind === "good" ? null : kind }, text);
    },
  },
  {
    label: "Drift", value: (row) => row.verdict,
    cell: (_, value) => (value ? h("span", { class: `tag ${tone(value)}` }, value) : NONE),
  },
];

/** Draw a partition's part of the largest lag. */
function bar(row) {
  const inner = h("span", { class: "bar-part", "aria-hidden": "true" });
  inner.style.width = `${Math.round(row.part * 48)}px`;
  return inner;
}

const MOVE_COLUMNS = [
  { label: "Time", value: (move) => move.at, cell: (move) => time(move.at) },
  {
    label: "Move", value: (move) => move.kind,
    cell: (move) => [moveLink(move), move.plan_only ? h("span", { class: "tag warn" }, "plan only") : null].filter(Boolean),
  },
  {
    // Of another DAG too: run ids of two DAGs may be the same.
    label: "Run", value: (move) => move.run_id,
    cell: (move, value) => [move.elsewhere ? [name(move.dag_id), ": "] : [], name(value ?? NONE)].flat(),
  },
  {
    label: "Task", value: (move) => move.task_id,
    cell: (move) => name(move.map_index >= 0 ? `${move.task_id} [${move.map_index}]` : move.task_id ?? NONE),
  },
  { label: "Records", numeric: true, value: (move) => move.records },
  { label: "Lag", numeric: true, value: (move) => move.lag },
  { label: "State", value: (move) => move.state, cell: (_, value) => value ?? NONE },
];

const MEMBER_COLUMNS = [
  { label: "Member", value: (member) => member.member_id, cell: (_, value) => name(value) },
  { label: "Group", value: (member) => member.group_id, cell: (_, value) => name(value) },
  { label: "Client", value: (member) => member.client_id, cell: (_, value) => name(value) },
  { label: "Host", value: (member) => member.host, cell: (_, value) => name(value) },
  { label: "Partitions", numeric: true, value: (member) => member.partitions },
];

function card(label) {
  const value = h("dd", { class: "value" });
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

function cards() {
  const all = Object.fromEntries(["Lag", "Behind", "Headroom", "Drift", "Group", "Checkpoint", "Last commit"]
    .map((label) => [label, card(label)]));
  const element = h("dl", { class: "cards" }, ...Object.values(all).map((each) => each.element));

  function update(now, pipeline) {
    const { totals, checkpoint, provenance, members } = now;
    // What was well an hour ago is not green.
    element.classList.toggle("stale", Boolean(now.error || now.stale_since));
    const known = totals?.lag !== null && totals?.lag !== undefined;
    all.Lag.set([known ? count(totals.lag) : NONE, "", known
      ? `records in ${plural(totals.partitions ?? 0, "partition")}` +
        (totals.without_commit ? `, ${count(totals.without_commit)} without a commit` : "")
      : totals?.without_commit ? `${plural(totals.without_commit, "partition")} without a commit` : "not known"]);
    all.Behind.set([duration(totals?.time_lag), "", "age of the oldest record not read"]);
    // Without all lags, a headroom is that of some partitions.
    const bound = known || totals?.headroom_is === "lost" ? totals : { ...totals, headroom_is: "unknown" };
    all.Headroom.set(headroom(bound, duration));
    const verdict = now.drift?.verdict;
    const compared = tone(verdict) === "good" ? "checkpoint and group agree" : now.drift?.text;
    all.Drift.set([verdict ?? NONE, tone(verdict), compared ?? (pipeline.checkpoint ? "not known" : "no checkpoint to compare with")]);
    all.Group.set([now.state ?? NONE, "", members?.length ? plural(members.length, "member")
      : now.state ? "no members: Spark does not join it" : "not known"]);
    all.Checkpoint.set(checkpoint
      ? [checkpoint.batch === null ? "no batch yet" : `batch ${checkpoint.batch}`, "", [
        checkpoint.age === null ? "" : `${duration(checkpoint.age)} old`,
        checkpoint.pending_batch === null ? "" : `${checkpoint.age === null ? "" : ", "}batch ${checkpoint.pending_batch} is pending`,
      ]]
      : [NONE, "quiet", pipeline.checkpoint ? "not known" : "no checkpoint is named"]);
    const move = pipeline.last_move;
    if (provenance?.dag_id || provenance?.by) {
      all["Last commit"].set([provenance.at ? ago(provenance.at) : NONE, "", [
        provenance.run_id ? ["by run ", provenance.task_id
          ? h("a", { href: link(movePath(provenance)) }, name(provenance.run_id)) : name(provenance.run_id)] : [],
        provenance.by ? [" triggered by ", name(provenance.by)] : []].flat(2)]);
    } else if (move) {
      all["Last commit"].set([ago(move.at), "", [moveLink(move), " by run ", name(move.run_id)]]);
    } else all["Last commit"].set([NONE, "quiet", "no run has moved it yet"]);
  }
  return { element, update };
}

/** Sum up a column; without one of its values the sum is not known. */
const sum = (column) => (column?.length && !column.includes(null) ? column.reduce((all, each) => all + each, 0) : null);

/** Leave out the moves of some partitions only: their sums are no points of the line of all of them. */
function ofAll(moves, now) {
  const all = now?.totals?.partitions ?? Math.max(...moves.map((move) => move.partitions ?? 0));
  return moves.filter((move) => (move.partitions ?? all) === all);
}

function plots() {
  const position = plot({ title: "Offsets, sum of the partitions" });
  const lag = plot({ title: "Lag in records" });
  const records = plot({ title: "Records per batch" });
  const durations = plot({ title: "Duration of a batch", write: duration, short: shortDuration });
  const element = h("div", { class: "plots" }, ...[position, lag, records, durations].map((each) => each.element));

  function update(history, now) {
    const moved = history.moves.filter((move) => !move.plan_only);
    const ended = history.batches.filter((batch) => !batch.pending);
    const marked = moved.filter((move) => MARKED.has(move.kind));
    const points = (rows, column) => rows.map((row) => [row.at, row[column]]);
    const whole = ofAll(moved, now);
    const live = (value) => (now?.read_at ? [[now.read_at, value]] : []);
    position.update([
      { label: "Log end", colour: "--quiet", points: [...points(whole, "log_end"), ...live(sum(now?.partitions?.log_end))] },
      { label: "Committed", colour: "--accent", points: [...points(whole, "offset"), ...live(sum(now?.partitions?.committed))] },
      { label: "Checkpoint", colour: "--second", points: points(ended, "offset") },
    ], marked);
    lag.update([
      { label: "Lag", colour: "--accent", zero: true, points: [...points(whole, "lag"), ...live(now?.totals?.lag ?? null)] },
    ], marked);
    records.update([{ label: "Records", colour: "--accent", bars: true, points: points(ended, "records") }], marked);
    durations.update([{ label: "Duration", colour: "--second", bars: true, points: points(ended, "duration") }], marked);
  }
  return { element, update };
}

/** Return a notice if the numbers are old or missing, else null. */
function answer(now) {
  if (now.error) {
    return notice("bad", `No new numbers since ${clock(now.error.since)} (${ago(now.error.since)}): `,
      name(now.error.message), now.read_at
        ? `. Those shown are of ${clock(now.read_at)}.` : ". What follows is history only.");
  }
  return now.stale_since
    ? notice("warn", `No new numbers since ${clock(now.stale_since)}: those shown are of ${clock(now.read_at)}.`)
    : null;
}

/** Make a pipeline's part of the page; `update()` takes it as it is now, `stop()` ends its refreshing. */
export function pipelineView(pipeline) {
  const address = path("api", "dags", pipeline.dag_id, "pipelines", pipeline.key);
  const trouble = h("div");
  const past = h("div");
  const read = h("p", { class: "quiet" }, "Asking Kafka …");
  const numbers = cards();
  const drawn = plots();
  const strip = strips();
  const skewed = h("div");
  const partitions = table({
    caption: "Partitions", columns: PARTITION_COLUMNS, sort: { column: 6, descending: true },
    key: (row) => JSON.stringify([row.group, row.topic, row.partition]), empty: "No partition is known.",
  });
  const moves = table({
    caption: "Moves and waits", columns: MOVE_COLUMNS, sort: { column: 0, descending: true },
    key: (move) => JSON.stringify([move.dag_id, move.run_id, move.task_id, move.map_index, move.at]),
    limit: 20, empty: "No run has moved or read it yet.",
  });
  const members = table({ caption: "Members of the group", columns: MEMBER_COLUMNS, key: (member) => member.member_id });
  const membersPart = h("section", { hidden: true }, h("h2", {}, "Members"), members.element);
  const partitionsPart = h("section", { hidden: true }, h("h2", {}, "Partitions"), skewed, strip.element, partitions.element);

  const named = h("div");
  const element = h("article", {}, named, trouble, numbers.element, read,
    h("section", {}, h("h2", {}, "Over time"), past, drawn.element),
    partitionsPart,
    h("section", {}, h("h2", {}, "Moves"), moves.element),
    membersPart);

  let now = null;
  let history = { batches: [], moves: [] };
  let shown = "";

  function show() {
    named.replaceChildren(facts([
      ["Group", names(pipeline.groups)],
      ["Topics", pipeline.topics ? names(pipeline.topics) : "those of the checkpoint, or of the group's commits"],
      ["Checkpoint", pipeline.checkpoint ? name(pipeline.checkpoint) : null],
      ["Connection", name(pipeline.kafka_config_id)],
      ["Tasks", names(pipeline.tasks.map((task) => task.task_id), 8)],
    ]),
    pipeline.unresolved.length ? notice("warn",
      "Not known until a task has run, since Airflow fills it in then: ", ...names(pipeline.unresolved)) : "");
  }

  function showTrouble(notices) {
    // The same trouble is not read out again.
    const text = notices.map((each) => each.textContent).join("\n");
    if (text !== shown) trouble.replaceChildren(...notices);
    shown = text;
  }

  async function refreshNow() {
    try {
      now = await get(`${address}/now`);
    } catch (refused) {
      showTrouble([notice("bad", explain(refused), now?.read_at ? ` The numbers shown are of ${clock(now.read_at)}.` : "")]);
      now = now && { ...now, stale_since: now.read_at };
      if (now) draw();
      else read.textContent = "";
      return;
    }
    showTrouble([answer(now), ...(now.problems ?? []).map((problem) => notice("warn", name(problem)))].filter(Boolean));
    draw();
  }

  function draw() {
    read.replaceChildren(...(now.read_at
      ? ["Read at ", time(now.read_at), `; again every ${REFRESH} s while this page is visible.`] : []));
    numbers.update(now, pipeline);
    const rows = rowsOf(now.partitions);
    const most = Math.max(1, ...rows.map((row) => row.lag ?? 0));
    for (const row of rows) row.part = (row.lag ?? 0) / most;
    partitionsPart.hidden = !rows.length;
    partitionsPart.classList.toggle("stale", Boolean(now.error || now.stale_since));
    skewed.replaceChildren(h("p", {}, ...skew(rows)), ...alarms(rows));
    strip.update(rows);
    partitions.update(rows);
    membersPart.hidden = !now.members?.length;
    members.update(now.members ?? []);
    drawn.update(history, now);
  }

  async function refreshHistory() {
    try {
      history = await get(`${address}/history`);
    } catch (refused) {
      past.replaceChildren(notice("warn", "The history could not be read: ", explain(refused)));
      return;
    }
    past.replaceChildren(...history.problems.map((problem) => notice("warn", problem)));
    moves.update(history.moves.map((move) => ({ ...move, elsewhere: Boolean(move.dag_id) && move.dag_id !== pipeline.dag_id })));
    drawn.update(history, now);
  }

  show();
  moves.update([]);
  drawn.update(history, null);
  const stops = [whileVisible(REFRESH, refreshNow), whileVisible(HISTORY, refreshHistory)];
  return {
    element,
    update(newPipeline) {
      pipeline = newPipeline;
      show();
      if (now) numbers.update(now, pipeline);
    },
    stop: () => stops.forEach((stop) => stop()),
  };
}
