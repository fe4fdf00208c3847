// One pipeline: its current position, its history, and its partitions.

import { cards } from "./cards.js";
import { PATIENCE, explain, get, path, whileVisible } from "./data.js";
import { NONE, ago, clock, count, duration, facts, h, name, names, notice, skeleton, time, timeZone } from "./dom.js";
import { rowsOf } from "./move.js";
import { badge, moveLink, mover, run, withCommits } from "./moves.js";
import { plots } from "./overtime.js";
import { skew, strips, troubles } from "./strip.js";
import { table } from "./table.js";
import { headroom, tone } from "./verdicts.js";

const REFRESH = 10;
const HISTORY = 60;
const PARTITION_COLUMNS = [
  { label: "Topic", value: (row) => row.topic },
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
      const [text, kind] = headroom(row);
      return h("span", { class: kind === "good" ? null : kind }, text);
    },
  },
  {
    label: "Drift", value: (row) => row.verdict,
    cell: (_, value) => (value ? h("span", { class: `tag ${tone(value)}` }, value) : NONE),
  },
];

/** Draw a partition's lag as a fraction of the largest lag. */
function bar(row) {
  const inner = h("span", { class: "bar-part", "aria-hidden": "true" });
  inner.style.width = `${Math.round(row.part * 48)}px`;
  return inner;
}

const MOVE_COLUMNS = [
  { label: "Time", value: (move) => move.at, cell: (move) => time(move.at) },
  {
    label: "Move", value: (move) => move.kind,
    cell: (move) => [moveLink(move), move.plan_only ? h("span", { class: "tag warn" }, "plan only") : null,
      move.verdict ? h("span", { class: `tag ${tone(move.verdict)}` }, move.verdict) : null].filter(Boolean),
  },
  {
    // Moves of other DAGs are included: the run ids of two DAGs may be the same.
    label: "Run", value: (move) => move.run_id,
    cell: (move, value) => [move.elsewhere ? [name(move.dag_id), ": "] : [], run(value)].flat(),
  },
  { label: "Task or tool", value: (move) => move.task_id ?? move.tool ?? null, cell: mover },
  { label: "Moved by", numeric: true, value: (move) => move.moved_by },
  { label: "Lag", numeric: true, value: (move) => move.lag },
  { label: "State", value: (move) => move.state, cell: (move, value) => badge(value, move) },
];

const MEMBER_COLUMNS = [
  { label: "Member", value: (member) => member.member_id },
  { label: "Group", value: (member) => member.group_id },
  { label: "Client", value: (member) => member.client_id },
  { label: "Host", value: (member) => member.host },
  { label: "Partitions", numeric: true, value: (member) => member.partitions },
];

/** Return the notice that the numbers are old or missing. */
const outdated = ({ error, read_at: at }) =>
  notice("bad", `No ${at ? "new " : ""}numbers since ${clock(error.since)} (${ago(error.since)}): `, name(error.message),
    at ? `. The numbers shown are from ${clock(at)}.` : ". Only the history is shown.");

/** Create the section of a pipeline; `update()` takes its current state, `stop()` ends its refreshing. */
export function pipelineView(pipeline) {
  const address = path("api", "dags", pipeline.dag_id, "pipelines", pipeline.key);
  const trouble = h("div");
  const past = h("div");
  const read = h("p", { class: "quiet" }, "Asking Kafka …");
  const todo = h("div");
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
    limit: 20, names: 1, stack: true,
  });
  const members = table({ caption: "Members of the group", columns: MEMBER_COLUMNS, key: (member) => member.member_id });
  const membersPart = h("section", { hidden: true }, h("h2", {}, "Members"), members.element);
  const partitionsPart = h("section", { hidden: true }, h("h2", {}, "Partitions"), skewed, strip.element, partitions.element);

  const named = h("div");
  const element = h("article", {}, named, trouble, numbers.element, read, todo,
    h("section", {}, h("h2", {}, "Over time", h("span", { class: "quiet" }, ` (times of ${timeZone})`)), past, drawn.element),
    partitionsPart,
    h("section", {}, h("h2", {}, "Moves"), moves.element),
    membersPart);

  let now = null;
  let history = null;
  let failed = false;
  // Makers of commits while the page is open; the group itself only keeps the last commits.
  const commits = new Map();
  let shown = "";

  function show() {
    named.replaceChildren(facts([
      ["Group", names(pipeline.groups)],
      ["Topics", pipeline.topics || now?.topics?.length ? names(pipeline.topics ?? now.topics) : now ? "not known" : skeleton()],
      ["Checkpoint", pipeline.checkpoint ? name(pipeline.checkpoint) : null],
      ["Connection", name(pipeline.kafka_config_id)],
      ["Tasks", names(pipeline.tasks, 8)],
    ]),
    pipeline.unresolved.length ? notice("warn",
      "Not known, because no run has rendered them yet, or Airflow has cut them off or masked them: ", ...names(pipeline.unresolved)) : "");
  }

  function showTrouble(notices) {
    // Screen readers must not read the same problem again.
    const text = notices.map((each) => each.textContent).join("\n");
    if (text !== shown) trouble.replaceChildren(...notices);
    shown = text;
  }

  async function refreshNow() {
    try {
      now = await get(`${address}/now`);
    } catch (refused) {
      showTrouble([notice("bad", explain(refused), now?.read_at ? ` The numbers shown are from ${clock(now.read_at)}.` : "")]);
      now = now && { ...now, stale: true };
      if (now) draw();
      else {
        read.textContent = "";
        numbers.fail();
      }
      return;
    }
    showTrouble([...(now.error && !pipeline.not_run ? [outdated(now)] : []), ...(now.problems ?? []).map((problem) => notice("warn", name(problem)))]);
    draw();
  }

  function draw() {
    read.replaceChildren(...(now.read_at
      ? ["Read at ", time(now.read_at), `; again every ${REFRESH} s while this page is visible.`] : []));
    const rows = rowsOf(now.partitions);
    const most = Math.max(1, ...rows.map((row) => row.lag ?? 0));
    for (const row of rows) row.part = (row.lag ?? 0) / most;
    partitionsPart.hidden = !rows.length;
    for (const part of [partitionsPart, membersPart]) part.classList.toggle("stale", Boolean(now.error || now.stale));
    skewed.replaceChildren(h("p", {}, ...skew(rows)));
    todo.replaceChildren(...troubles(rows, now));
    strip.update(rows);
    partitions.update(rows);
    membersPart.hidden = !now.members?.length;
    members.update(now.members ?? []);
    for (const made of now.commits ?? []) commits.set(JSON.stringify(made), made);
    drawn.poll(now);
    show();
    drawMoves();
  }

  function drawMoves() {
    const known = withCommits(history?.moves ?? [], [...commits.values()]);
    const unread = failed ? "Not known: the history could not be read." : history?.problems.length ? "Not all moves are known yet, see above." : null;
    moves.update(known.map((move) => ({ ...move, elsewhere: Boolean(move.dag_id) && move.dag_id !== pipeline.dag_id })),
      history || failed ? unread ?? "No run has moved or read this pipeline yet." : skeleton());
    drawn.update(history, known, failed, pipeline.checkpoint);
    if (now) numbers.update(now, pipeline, known, Boolean(history) && !history.problems.length);
  }

  async function refreshHistory() {
    try {
      history = await get(`${address}/history`, PATIENCE);
    } catch (refused) {
      past.replaceChildren(notice("warn", "The history could not be read: ", explain(refused)));
      failed = !history;
      drawMoves();
      return;
    }
    failed = false;
    past.replaceChildren(...history.problems.map((problem) => notice("warn", problem)));
    drawMoves();
  }

  show();
  drawMoves();
  const stops = [whileVisible(REFRESH, refreshNow), whileVisible(HISTORY, refreshHistory)];
  return {
    element,
    update(newPipeline) {
      pipeline = newPipeline;
      show();
      drawMoves();
    },
    stop: () => stops.forEach((stop) => stop()),
  };
}
