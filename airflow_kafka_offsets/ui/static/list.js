// All pipelines that the user may read, the worst first.

import { PATIENCE, dagPath, explain, get, inTurn, link, path, whileVisible } from "./data.js";
import { NONE, clock, count, duration, h, name, names, notice, plural, skeleton } from "./dom.js";
import { lastMove, newest } from "./moves.js";
import { natural, table } from "./table.js";
import { KINDS, headroom, judge, runbook } from "./verdicts.js";

const REFRESH = 30;
const AGAIN = 180;
const RANKS = Object.keys(KINDS);
/** The status of a task that has not run: its names are not known, and nothing may be wrong. */
const NOT_RUN = { kind: "alone", text: "not run yet", todo: "nothing" };

/** Return the tone of a value; an old value is grey. */
const fresh = (now, kind) => (now.error || now.stale ? "quiet" : kind);

/** Show values of a pipeline that are read later than the pipeline itself. */
const later = (read) => ({ now, error }, value) =>
  (now ? h("span", { class: fresh(now, null) }, read(now, value)) : error ? NONE : skeleton());

const total = (column) => (row) => row.now?.totals?.[column] ?? null;
const address = (pipeline) => link(`${dagPath(pipeline.dag_id)}#${pipeline.key}`);
const topicsOf = ({ pipeline, now }) => pipeline.topics ?? (now?.topics?.length ? now.topics : null);

/** Show the lag, and the records in partitions without a position. */
function lag(now) {
  const { lag: known, uncounted } = now.totals ?? {};
  if (!uncounted) return count(known);
  return h("span", { class: fresh(now, "warn"), title: "records in partitions without a commit: a job may still read them" },
    known ? `${count(known)} + ` : "", `${count(uncounted)} ?`);
}

const COLUMNS = [
  {
    label: "Status", value: (row) => RANKS.indexOf(row.status.kind),
    cell: ({ status: { kind, text } }) => (kind === "waiting" ? skeleton() : h("span", { class: `status ${KINDS[kind][1]}` }, text)),
  },
  {
    label: "Pipeline",
    value: (row) => row.title,
    cell: ({ pipeline }) => h("a", { href: address(pipeline) },
      ...names(pipeline.groups.length ? pipeline.groups : pipeline.checkpoint ? [pipeline.checkpoint] : pipeline.tasks, 3)),
  },
  {
    label: "DAG", value: (row) => row.pipelines.map((each) => each.dag_id).join(" "),
    cell: ({ pipelines }) => pipelines.flatMap((each, index) =>
      [index ? ", " : "", h("a", { href: address(each) }, name(each.dag_id))]),
  },
  { label: "Lag", numeric: true, value: total("lag"), cell: later(lag) },
  { label: "Behind", numeric: true, value: total("time_lag"), cell: later((_, value) => duration(value)) },
  {
    label: "Headroom", numeric: true, value: total("headroom"),
    cell: later((now) => {
      if (!now.totals) return NONE;
      const [text, kind, hint] = headroom(now.totals);
      return h("span", { class: `tag ${fresh(now, kind)}`, title: hint }, text);
    }),
  },
  {
    label: "What to do", value: (row) => row.status.todo || null,
    cell: ({ status: { kind, text, todo } }) => (kind === "waiting" ? skeleton()
      : todo === "nothing" || !todo ? h("span", { class: "quiet" }, todo || NONE)
        : [h("span", { class: `${kind === "unknown" ? "bad" : ""} clamp`, title: todo }, name(todo)),
          kind === "unknown" ? null : runbook(text)]),
  },
  {
    label: "Topics",
    value: (row) => topicsOf(row)?.join(" ") ?? null,
    cell: (row) => (topicsOf(row) ? names(topicsOf(row), 3) : row.now || row.error ? NONE : skeleton()),
  },
  {
    label: "Last move", value: (row) => row.move?.at ?? null,
    cell: (row) => (row.move ? lastMove(row.move) : row.now || row.error ? NONE : skeleton()),
  },
];

/** Show a new user the first step. */
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
    h("p", {}, "You do not register pipelines. If your DAG is not here, check whether Airflow has parsed its file, and " +
      "whether you have permission to read its tasks, task instances and XComs."));
}

/** Order of the entries of a group: those with its checkpoint or all of its topics include the others. */
const part = ({ checkpoint, topics }) => (checkpoint ? 0 : topics ? 2 : 1);

/** Merge the entries of one pipeline: each DAG has its own entry, and some name the group without its checkpoint. */
function together(pipelines) {
  const found = new Map();
  for (const each of [...pipelines].sort((a, b) => part(a) - part(b))) {
    const open = each.unresolved.length || !each.groups.length;
    const group = JSON.stringify([each.kafka_config_id, each.groups]);
    const whole = open ? JSON.stringify([each.unresolved.length ? each.dag_id : null, each.key])
      : `${group} ${each.checkpoint ?? JSON.stringify(each.topics)}`;
    const place = !open && !each.checkpoint
      ? [...found].find(([one, [entry]]) => one.startsWith(`${group} `) && part(entry) < 2)?.[0] ?? whole : whole;
    if (found.has(place)) found.get(place).push(each);
    else found.set(place, [each]);
  }
  return [...found].map(([place, entries]) => ({ place, entries: entries.sort((a, b) => natural(a.dag_id, b.dag_id)) }));
}

/** Show the list. */
export async function show(page) {
  const source = "api/pipelines";
  let rows = [];
  let whole = true;
  let asked = 0;
  let only = null;
  const trouble = h("div");
  const listed = table({
    caption: "Pipelines", columns: COLUMNS, limit: 100, sort: { column: 0, descending: false }, names: 1, stack: true,
    empty: "No pipeline matches this text and this status.", key: (row) => row.place,
  });
  const found = h("p", { class: "quiet", role: "status" });
  const times = h("p", { class: "quiet" });
  const filter = h("input", {
    id: "filter", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "group, topic, DAG, checkpoint …",
    oninput: () => draw(),
  });
  const chips = Object.fromEntries(RANKS.map((kind) => [kind, h("button", {
    type: "button", class: `chip ${KINDS[kind][1]}`, "aria-pressed": "false",
    onclick: () => { only = only === kind ? null : kind; draw(); },
  })]));
  const headline = h("div", { class: "bar headline", role: "group", "aria-label": "Show only" }, ...Object.values(chips));
  const some = h("div", {}, headline,
    h("div", { class: "bar" }, h("label", { for: "filter" }, "Filter"), filter, found), listed.element, times);
  const none = nothing();
  const searched = ({ dag_id, groups, topics, checkpoint, kafka_config_id }) =>
    [dag_id, ...groups, ...(topics ?? []), checkpoint ?? "", kafka_config_id];

  /** Update the list; earlier readings of a pipeline are kept. */
  function take({ pipelines, problems }) {
    const before = new Map(rows.map((row) => [row.place, row]));
    rows = together(pipelines).map(({ place, entries }) => {
      const row = before.get(place) ?? { place, now: null, error: null, version: 0 };
      // The entry with the checkpoint and all topics is the one that is read.
      const pipeline = entries.find((each) => each.checkpoint) ?? entries.find((each) => !each.topics) ?? entries[0];
      const title = pipeline.groups.join(" ") || pipeline.checkpoint || pipeline.tasks.join(" ");
      return judged(Object.assign(row, { pipeline, pipelines: entries, title }));
    }).sort((a, b) => natural(a.title, b.title));
    trouble.replaceChildren(...problems.map((problem) => notice("warn", problem)));
    whole = !problems.length;
    some.hidden = !rows.length;
    none.hidden = rows.length > 0 || !whole;
    draw();
  }

  function judged(row) {
    row.status = row.pipeline.not_run ? NOT_RUN : judge(row.now, row.error);
    row.move = newest([], row.now?.commits);
    row.text = [...row.pipelines.flatMap(searched), ...(row.now?.topics ?? [])].join("\n").toLowerCase();
    row.version += 1;
    return row;
  }

  function draw() {
    const wanted = filter.value.trim().toLowerCase();
    const shown = rows.filter((row) => row.text.includes(wanted) && (only === null || row.status.kind === only));
    listed.update(shown);
    for (const [kind, chip] of Object.entries(chips)) {
      const number = rows.filter((row) => row.status.kind === kind).length;
      chip.hidden = !number && only !== kind;
      chip.textContent = KINDS[kind][0](number);
      chip.setAttribute("aria-pressed", String(only === kind));
    }
    const text = wanted || only !== null ? `${plural(shown.length, "pipeline")} of ${count(rows.length)}` : plural(rows.length, "pipeline");
    if (found.textContent !== text) found.textContent = text;
    const known = rows.filter(({ now, error }) => now?.read_at && !now.error && !error).map(({ now }) => now.read_at).sort();
    const [first, last] = [clock(known.at(0)), clock(known.at(-1))];
    times.textContent = !known.length ? ""
      : `Numbers read ${first === last ? "at" : `between ${first} and`} ${last}; those of visible lines again every ${REFRESH} s, `
      + `the others every ${AGAIN / 60} min, while this page is visible. Grey numbers are older.`;
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
    } catch (refused) {
      row.now = row.now && { ...row.now, stale: true };
      row.error = explain(refused);
    }
    judged(row);
    drawSoon();
  }

  async function askList() {
    asked = Date.now();
    try {
      take(await get(source, PATIENCE));
    } catch (refused) {
      trouble.replaceChildren(notice("bad", "The list is not up to date: ", explain(refused)));
    }
  }

  asked = Date.now();
  take(await get(source, PATIENCE));
  page.replaceChildren(h("h1", {}, "Kafka offsets"), trouble, some, none);
  // The headline counts all pipelines. Those that are visible are read more often, also while the others are read,
  // which leave them four of a browser's six connections.
  const read = (wanted, width) => inTurn(wanted.map((row) => () => ask(row)), width);
  whileVisible(REFRESH, () => read(listed.visible()));
  whileVisible(AGAIN, () => {
    const visible = new Set(listed.visible());
    return read(rows.filter((row) => !visible.has(row)), 2);
  });
  // What could not be read in time is there soon.
  whileVisible(REFRESH, () => (whole && Date.now() < asked + AGAIN * 1000 ? null : askList()), Date.now());
}
