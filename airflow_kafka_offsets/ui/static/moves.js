// Moves of a pipeline by tasks, commands and Spark, and the display of their runs and states.

import { alone, airflowLink, link, movePath } from "./data.js";
import { NONE, ago, clock, h, name } from "./dom.js";

/** Show a move's kind as a link to the move's page. */
export const moveLink = (move) =>
  (move.run_id && move.task_id ? h("a", { href: link(movePath(move)) }, move.kind) : move.kind);

const STATES = new Set(["success", "failed", "running", "queued", "scheduled", "skipped", "upstream_failed", "removed",
  "deferred", "up_for_retry", "up_for_reschedule", "restarting"]);

/** Show a state like Airflow; outside of Airflow's frame it links to Airflow's page of the task instance. */
export function badge(state, move) {
  if (!state) return NONE;
  const shown = h("span", { class: "badge", "data-state": STATES.has(state) ? state : "other" }, state.replaceAll("_", " "));
  if (!move?.run_id || !move.task_id) return shown;
  const address = alone ? airflowLink("dags", move.dag_id, "runs", move.run_id, "tasks", move.task_id,
    ...(move.map_index >= 0 ? ["mapped", move.map_index] : [])) : link(movePath(move));
  return h("a", { href: address, class: "plain" }, shown);
}

const RUN = /^([a-z_]+)__(\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d))/;

/** Show the time in a run id; the tooltip has the whole run id. */
export function run(runId) {
  const [, kind, at] = RUN.exec(runId ?? "") ?? [];
  const text = at && clock(at);
  if (!text || text === NONE) return name(runId ?? NONE);
  return h("span", { title: runId }, h("time", { datetime: at }, text), h("span", { class: "quiet" }, ` ${kind.replaceAll("_", " ")}`));
}

/** Return the task that made a move, or the command or library that the commit names. */
export function mover(move) {
  if (move.task_id) return name(move.map_index >= 0 ? `${move.task_id} [${move.map_index}]` : move.task_id);
  return move.tool ? name(move.tool) : NONE;
}

/** Commits of many partitions do not name their DAG and task. */
const same = (made, move) => made.run_id !== null && made.run_id === move.run_id
  && (made.dag_id ?? move.dag_id) === move.dag_id && (made.task_id ?? move.task_id) === move.task_id
  && (made.task_id === null || made.map_index === move.map_index);

/** Add moves that are only in the commits' metadata to the moves of tasks. */
export function withCommits(moves, commits) {
  const others = commits.filter((made) => made.at && !moves.some((move) => same(made, move)));
  return [...moves, ...others.map((made) => ({ plan_only: false, moved_by: null, lag: null, state: null, ...made }))]
    .sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
}

/** Return the newest move or commit, `null` if no move is known. */
export function newest(moves, commits) {
  return withCommits(moves.filter((move) => !move.plan_only), commits ?? []).at(-1) ?? null;
}

/** Describe the pipeline's last move: its kind, how long ago, and its tool if it was not a task. */
export const lastMove = (move) =>
  [moveLink(move), " ", h("span", { class: "ago" }, ago(move.at)), ...(move.task_id || !move.tool ? [] : [h("span", { class: "quiet" }, " by ", mover(move))])];
