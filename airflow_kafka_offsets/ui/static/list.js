// All pipelines that the reader may see.

import { dagPath, explain, get, inTurn, link, movePath, path, whileVisible } from "./data.js";
import { NONE, ago, count, duration, h, name, names, notice, plural } from "./dom.js";
import { table } from "./table.js";
import { headroom, tone } from "./verdicts.js";

const REFRESH = 30;
const AGAIN = 180;
const WELL = "ok";

/** Show facts of a pipeline that come later than the pipeline itself. */
const later = (read) => (row, value) => (row.now ? read(row.now, value) : row.error ? NONE : "…");

/** What was well when it was last read is not green. */
const fresh = (now, kind) => (now.error || now.stale_since ? "quiet" : kind);

/** Return why a reading is not to be relied on, else that it is well. */
function judge({ error, problems, totals }) {
  if (error) return error.message;
  if (problems?.length) return problems[0];
  if (!totals?.partitions) return "no partition is known yet";
  return totals.without_commit
    ? `${count(totals.without_commit)} of ${plural(totals.partitions, "partition")} without a commit` : WELL;
}

const total = (column) => (row) => row.now?.totals?.[column] ?? null;

const COLUMNS = [
  {
    label: "Pipeline",
    value: (row) => row.pipeline.groups.join(" ") || row.pipeline.checkpoint || row.pipeline.key,
    cell: ({ pipeline }) => h("a", { href: link(`${dagPath(pipeline.dag_id)}#${pipeline.key}`) },
      ...(pipeline.groups.length ? names(pipeline.groups, 3) : [name(pipeline.checkpoint ?? pipeline.key)])),
  },
  { label: "DAG", value: (row) => row.pipeline.dag_id, cell: (row, value) => name(value) },
  {
    label: "Topics",
    value: (row) => (row.pipeline.topics ?? []).join(" "),
    cell: ({ pipeline }) => (pipeline.topics ? names(pipeline.topics, 3) : NONE),
  },
  { label: "Lag", numeric: true, value: total("lag"), cell: later((_, value) => count(value)) },
  { label: "Behind", numeric: true, value: total("time_lag"), cell: later((_, value) => duration(value)) },
  {
    label: "Headroom", numeric: true, value: total("headroom"),
    cell: later((now) => {
      if (!now.totals) return NONE;
      const [text, kind, hint] = headroom(now.totals, duration);
      return h("span", { class: `tag ${fresh(now, kind)}`, title: hint }, text);
    }),
  },
  {
    label: "Drift", value: (row) => row.now?.drift?.verdict ?? null,
    cell: later((now, value) => (value ? h("span", { class: `tag ${fresh(now, tone(value))}` }, value) : NONE)),
  },
  {
    label: "Last move", value: (row) => row.pipeline.last_move?.at ?? null,
    cell: ({ pipeline: { last_move: move } }) => (move?.run_id
      ? [h("a", { href: link(movePath(move)) }, move.kind), ` ${ago(move.at)}`] : NONE),
  },
  {
    label: "Reading", value: (row) => row.answer,
    cell: ({ now, error }, value) => (value === null ? "…" : value === WELL ? value
      : h("span", { class: `${now && !now.error && !error ? "warn" : "bad"} clamp`, title: value }, name(value))),
  },
];

/** Explain what a new user does first. */
function nothing() {
  return h("section", { class: "card" },
    h("h2", {}, "No pipelines yet"),
    h("p", {}, "A pipeline appears here as soon as a DAG that you may read has a task of this provider, for example:"),
    h("pre", { tabindex: "0" }, [
      "from airflow_kafka_offsets.operators.commit import CommitOffsetsOperator",
      "",
      "CommitOffsetsOperator(",
      "    task_id=\"commit\",",
      "    group_id=\"orders\",",
      "    checkpoint_location=\"s3a://lake/checkpoints/orders\",",
      ")",
    ].join("\n")),
    h("p", {}, "Nothing is registered by hand. If your DAG is not here, see whether Airflow has read its file, and " +
      "whether you have the right to read its XComs."));
}

const keyOf = ({ dag_id, key }) => `${dag_id} ${key}`;

/** Show the list. */
export async function show(page) {
  const address = "api/pipelines";
  let rows = [];
  const trouble = h("div");
  const listed = table({
    caption: "Pipelines", columns: COLUMNS, limit: 100, empty: "No pipeline has this text.",
    key: ({ pipeline }) => keyOf(pipeline),
  });
  const found = h("p", { class: "quiet", role: "status" });
  const filter = h("input", {
    id: "filter", type: "search", autocomplete: "off", spellcheck: "false", oninput: () => draw(),
  });
  const some = h("div", {}, h("div", { class: "bar" }, h("label", { for: "filter" }, "Filter"), filter, found), listed.element);
  const none = nothing();
  const searched = ({ dag_id, groups, topics, checkpoint, kafka_config_id }) =>
    [dag_id, ...groups, ...(topics ?? []), checkpoint ?? "", kafka_config_id].join("\n").toLowerCase();

  /** Take the list; what was read of a pipeline before is kept. */
  function take({ pipelines, problems }) {
    const before = new Map(rows.map((row) => [keyOf(row.pipeline), row]));
    rows = pipelines.map((pipeline) => {
      const row = before.get(keyOf(pipeline)) ?? { now: null, error: null, answer: null, version: 0 };
      return Object.assign(row, { pipeline, text: searched(pipeline), version: row.version + 1 });
    });
    trouble.replaceChildren(...problems.map((problem) => notice("warn", problem)));
    some.hidden = !rows.length;
    none.hidden = rows.length > 0;
    draw();
  }

  function draw() {
    const wanted = filter.value.trim().toLowerCase();
    const shown = rows.filter((row) => row.text.includes(wanted));
    listed.update(shown);
    const text = wanted ? `${plural(shown.length, "pipeline")} of ${count(rows.length)}` : plural(rows.length, "pipeline");
    if (found.textContent !== text) found.textContent = text;
  }

  let drawing = 0;
  const drawSoon = () => {
    drawing ||= requestAnimationFrame(() => { drawing = 0; draw(); });
  };

  async function ask(row) {
    const { dag_id, key } = row.pipeline;
    try {
      row.now = await get(`${path("api", "dags", dag_id, "pipelines", key, "now")}?partitions=false`);
      row.error = null;
      row.answer = judge(row.now);
    } catch (refused) {
      row.now = row.now && { ...row.now, stale_since: row.now.read_at };
      row.error = explain(refused);
      row.answer = row.error;
    }
    row.version += 1;
    drawSoon();
  }

  async function askList() {
    try {
      take(await get(address));
    } catch (refused) {
      trouble.replaceChildren(notice("bad", "The list is old: ", explain(refused)));
    }
  }

  take(await get(address));
  page.replaceChildren(h("h1", {}, "Kafka offsets"), trouble, some, none);
  whileVisible(REFRESH, () => inTurn(listed.visible().map((row) => () => ask(row))));
  whileVisible(AGAIN, askList, Date.now());
}
