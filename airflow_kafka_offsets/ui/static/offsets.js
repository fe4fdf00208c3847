// The page's entry point: the address below /kafka-offsets/ determines what the page shows.

import { show as showDag } from "./dag.js";
import { ROOT, Refused, explain } from "./data.js";
import { h, notice } from "./dom.js";
import { show as showList } from "./list.js";
import { show as showMove } from "./move.js";

const parts = location.pathname.slice(ROOT.pathname.length).split("/").filter(Boolean).map(decodeURIComponent);
const page = document.getElementById("page");

function start() {
  const [dags, dagId, runs, runId, tasks, taskId, mapIndex] = parts;
  if (!parts.length) return showList(page);
  if (dags === "dags" && parts.length === 2) return showDag(page, { dagId });
  if (dags === "dags" && runs === "runs" && tasks === "tasks" && parts.length === 7) {
    return showMove(page, { dagId, runId, taskId, mapIndex });
  }
  throw new Refused(404, "");
}

async function load() {
  page.setAttribute("aria-busy", "true");
  try {
    await start();
  } catch (error) {
    if (!(error instanceof Refused)) console.error(error);
    page.replaceChildren(
      h("h1", {}, "Kafka offsets"),
      notice("bad", error instanceof Refused ? explain(error) : "This page could not be shown: see the browser's console."),
      h("p", {}, h("button", { type: "button", onclick: load }, "Try again")),
    );
  }
  page.setAttribute("aria-busy", "false");
}

if (window.top !== window) document.documentElement.dataset.framed = "";
load();
