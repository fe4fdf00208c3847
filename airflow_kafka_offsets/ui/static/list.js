// All pipelines that the reader may see.

import { dagPath, explain, get, inTurn, link, movePath, path, whileVisible } from "./data.js";
import { NONE, ago, count, duration, h, name, names, notice, plural } from "./dom.js";
import { table } from "./table.js";
import { headroom, tone } from "./verdicts.js";

const REFRESH = 30;
const WELL = "ok";

/** Show facts of a pipeline that come later than the pipeline itself. */
const later = (read) => (row, value) => (row.now ? read(row.now, value) : row.error ? NONE : "…");

/** What was well when it was last read is not green. */
const fresh = (now, kind) => (now.error || now.stale_since ? "quiet" : kind);

/** Return why a reading is not to be relied on, else that it is well. */
function judge({ error, problems, totals }) {
  if (error) return error.message;
  if (problems?.length) return problems[0];
  return totals?.without_commit
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
    cell: ({ now }, value) => (value === null ? "…" : value === WELL ? value
      : h("span", { class: `${now && !now.error ? "warn" : "bad"} clamp`, title: value }, name(value))),
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

/** Show the list. */
export async function show(page) {
  const { pipelines, problems } = await get("api/pipelines");
  const rows = pipelines.map((pipeline) => ({ pipeline, now: null, error: null, answer: null, version: 0 }));
  const heading = h("h1", {}, "Kafka offsets");
  if (!rows.length) {
    page.replaceChildren(heading, ...problems.map((problem) => notice("warn", problem)), nothing());
    return;
  }
  const listed = table({
    caption: "Pipelines", columns: COLUMNS, limit: 100, empty: "No pipeline has this text.",
    key: ({ pipeline }) => `${pipeline.dag_id} ${pipeline.key}`,
  });
  const found = h("p", { class: "quiet", role: "status" });
  const filter = h("input", {
    id: "filter", type: "search", autocomplete: "off", spellcheck: "false", oninput: () => draw(),
  });
  const searched = ({ pipeline: { dag_id, groups, topics, checkpoint, kafka_config_id } }) =>
    [dag_id, ...groups, ...(topics ?? []), checkpoint ?? "", kafka_config_id].join("\n").toLowerCase();
  const texts = new Map(rows.map((row) => [row, searched(row)]));

  function draw() {
    const wanted = filter.value.trim().toLowerCase();
    const shown = rows.filter((row) => texts.get(row).includes(wanted));
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
      row.error = explain(refused);
      row.answer = row.error;
    }
    row.version += 1;
    drawSoon();
  }

  page.replaceChildren(
    heading,
    ...problems.map((problem) => notice("warn", problem)),
    h("div", { class: "bar" }, h("label", { for: "filter" }, "Filter"), filter, found),
    listed.element,
  );
  draw();
  whileVisible(REFRESH, () => inTurn(listed.visible().map((row) => () => ask(row))));
}
