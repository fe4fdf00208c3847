// The pipelines of one DAG, one at a time.

import { PATIENCE, explain, get, link, path, whileVisible } from "./data.js";
import { h, name, notice, printable } from "./dom.js";
import { pipelineView } from "./pipeline.js";

const AGAIN = 180;

const label = (pipeline) => [pipeline.groups.join(", ") || pipeline.checkpoint || pipeline.tasks.join(", "),
  pipeline.topics?.join(", ")].filter(Boolean).join(" · ");

/** Show the pipelines of a DAG: one at a time, selected by the fragment of the address. */
export async function show(page, { dagId }) {
  const address = path("api", "dags", dagId, "pipelines");
  const first = await get(address, PATIENCE);
  const problems = h("div");
  const choice = h("select", { id: "pipeline", onchange: () => { location.hash = choice.value; } });
  const bar = h("div", { class: "bar" }, h("label", { for: "pipeline" }, "Pipeline"), choice);
  const none = h("p", { class: "quiet" },
    "No task of this DAG names a Kafka pipeline: the DAG has no operator or sensor of this provider, or Airflow does not have this DAG.");
  const place = h("div");
  const other = notice("warn", "This DAG does not name the pipeline of this address any more. The page shows another one.");
  let pipelines = [];
  let shown = null;
  let view = null;

  function choose() {
    const wanted = location.hash.slice(1);
    const found = pipelines.find(({ key }) => key === wanted);
    const pipeline = found ?? pipelines.find(({ key }) => key === shown) ?? pipelines[0];
    other.hidden = !wanted || !pipeline || Boolean(found);
    if (pipeline && pipeline.key === shown) view.update(pipeline);
    else {
      view?.stop();
      view = pipeline ? pipelineView(pipeline) : null;
      place.replaceChildren(...(view ? [view.element] : []));
    }
    shown = pipeline?.key ?? null;
    choice.value = shown;
  }

  /** Update the list; the shown pipeline stays selected as long as it is in the list. */
  function take(found) {
    pipelines = found.pipelines;
    problems.replaceChildren(...found.problems.map((problem) => notice("warn", problem)));
    none.hidden = pipelines.length > 0;
    bar.hidden = pipelines.length < 2;
    const options = pipelines.map((pipeline) => [pipeline.key, printable(label(pipeline))]);
    const before = [...choice.options].map((option) => [option.value, option.text]);
    // An open list stays open if it has not changed.
    if (JSON.stringify(options) !== JSON.stringify(before)) {
      choice.replaceChildren(...options.map(([value, text]) => h("option", { value }, text)));
    }
    choose();
  }

  async function askList() {
    try {
      take(await get(address, PATIENCE));
    } catch (refused) {
      problems.replaceChildren(notice("bad", "The list of pipelines is not up to date: ", explain(refused)));
    }
  }

  document.title = `${dagId} – Kafka offsets`;
  page.replaceChildren(
    h("nav", { "aria-label": "Where you are" }, h("a", { href: link("") }, "Kafka offsets"), " / ", name(dagId)),
    h("h1", {}, "Offsets of ", name(dagId)), problems, bar, other, none, place);
  take(first);
  addEventListener("hashchange", choose);
  whileVisible(AGAIN, askList, Date.now());
}
