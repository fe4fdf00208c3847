// Requests to the server, with addresses relative to this file.

export const ROOT = new URL("../", import.meta.url);
const DEADLINE = 20_000;
/** For what the server reads from Airflow: it takes turns, and then many viewers wait for a minute. */
export const PATIENCE = 120_000;

/** An error response; `status` is 0 if there was no response. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Get JSON from an address below the page's root. */
export async function get(address, deadline = DEADLINE) {
  let response;
  try {
    response = await fetch(new URL(address, ROOT), {
      headers: { Accept: "application/json" },
      redirect: "error",
      signal: AbortSignal.timeout(deadline),
    });
  } catch {
    throw new Refused(0, "Airflow does not answer.");
  }
  if (response.ok) {
    try {
      return await response.json();
    } catch {
      throw new Refused(0, "Airflow's answer could not be read.");
    }
  }
  const body = await response.json().catch(() => ({}));
  const detail = typeof body.detail === "string" ? body.detail : `Airflow answers with status ${response.status}.`;
  throw new Refused(response.status, detail);
}

/** Return an address below the page's root; each part is escaped. */
export const path = (...parts) => parts.map(encodeURIComponent).join("/");

export const dagPath = (dagId) => path("dags", dagId);
export const movePath = (move) =>
  path("dags", move.dag_id, "runs", move.run_id, "tasks", move.task_id, move.map_index ?? -1);

export const link = (address) => new URL(address, ROOT).href;

/** Whether the page is outside of Airflow's frame: inside the frame, no link may lead out of it. */
export const alone = window.top === window;
export const airflowLink = (...parts) => new URL(`../${path(...parts)}`, ROOT).href;

/** Explain an error response to the user. */
export function explain(refused) {
  if (refused.status === 401) return "You are not logged in to Airflow, or the login has expired: log in and reload this page.";
  if (refused.status === 403) return "You do not have permission to read this page: it needs permission to read the DAG's tasks, task instances and XComs.";
  if (refused.status === 404) return "This page does not exist, or you do not have permission to read it.";
  return refused.message;
}

/** Call an asynchronous function regularly after `last`, at first now, but only while the page is visible. */
export function whileVisible(seconds, refresh, last = -Infinity) {
  let timer;
  let running = false;
  let stopped = false;
  const due = async () => {
    clearTimeout(timer);
    if (running || stopped || document.hidden) return;
    const wait = last + seconds * 1000 - Date.now();
    if (wait > 0) {
      timer = setTimeout(due, wait);
      return;
    }
    running = true;
    try {
      await refresh();
    } finally {
      running = false;
      last = Date.now();
      if (!stopped) timer = setTimeout(due, seconds * 1000);
    }
  };
  document.addEventListener("visibilitychange", due);
  due();
  return () => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", due);
  };
}

/** Run asynchronous jobs, a few at a time. */
export async function inTurn(jobs, width = 4) {
  const rest = [...jobs];
  const worker = async () => {
    while (rest.length) await rest.shift()();
  };
  await Promise.all(Array.from({ length: width }, worker));
}
