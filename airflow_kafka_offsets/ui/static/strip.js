// A heat strip with one cell for each partition: the larger the lag, the darker the cell.

import { count, h, name, names, plural } from "./dom.js";
import { alarm, remedy, runbook, tone } from "./verdicts.js";

const MANY_TOPICS = 12;
const LARGEST = 22;
const SMALLEST = 7;
const AREA = 60_000;

const partitionOf = (row) => `${row.topic} ${row.partition}`;

/** Describe how unevenly the lag is distributed. */
export function skew(rows) {
  const behind = rows.filter((row) => row.lag > 0).sort((a, b) => b.lag - a.lag);
  const total = behind.reduce((sum, row) => sum + row.lag, 0);
  const unknown = rows.filter((row) => row.lag === null).length;
  const besides = unknown ? `, ${count(unknown)} not known` : "";
  if (!total) return [`No partition of ${count(rows.length)} is ${unknown ? "known to be " : ""}behind${besides}.`];
  let sum = 0;
  const half = behind.findIndex((row) => (sum += row.lag) * 2 >= total) + 1;
  const share = Math.round((behind[0].lag / total) * 100);
  return [
    `${plural(behind.length, "partition")} of ${count(rows.length)} ${behind.length === 1 ? "is" : "are"} behind${besides}; ` +
      `half of the ${unknown ? "known " : ""}lag is in ${plural(half, "partition")}. The largest is `,
    name(partitionOf(behind[0])), ` with ${plural(behind[0].lag, "record")} (${share} %).`,
  ];
}

/** List problems with their partitions and remedies, the worst first. */
export function troubles(rows, now) {
  const problem = (row) => alarm(row) ?? (tone(row.verdict) === "warn" ? row.verdict : null);
  const found = Map.groupBy(rows.filter(problem), problem);
  const verdict = now.drift?.verdict;
  const whole = verdict && tone(verdict) !== "good" && !found.has(verdict) ? [[verdict, []]] : [];
  return [...whole, ...found].sort(([a], [b]) => Number(tone(a) === "warn") - Number(tone(b) === "warn")).map(([text, partitions]) =>
    h("div", { class: `trouble ${tone(text)}` },
      h("p", { class: "what" }, ...(partitions.length
        ? [`${text}: ${plural(partitions.length, "partition")} (`, ...names(partitions.map(partitionOf), 3), ")"] : [text])),
      h("p", {}, remedy(now.remedies, text) ?? (partitions.length ? "" : now.drift?.text ?? ""), " ", runbook(text))));
}

/** Create the strips; `update(rows)` draws them. */
export function strips() {
  const element = h("div", { class: "strips" });
  const pointed = h("p", { class: "quiet pointed", "aria-hidden": "true" });
  let rows = [];
  let drawn = [];

  function draw() {
    const width = element.clientWidth;
    if (!width) return;
    const style = getComputedStyle(element);
    const colour = (variable) => style.getPropertyValue(variable).trim();
    const most = Math.max(1, ...rows.map((row) => row.lag ?? 0));
    for (const { canvas, rows: cells } of drawn) {
      const size = Math.max(SMALLEST, Math.min(LARGEST, Math.floor(Math.sqrt(AREA / cells.length))));
      const columns = Math.max(1, Math.floor(width / size));
      const lines = Math.ceil(cells.length / columns);
      const scale = devicePixelRatio || 1;
      const wide = Math.min(columns, cells.length) * size;
      canvas.width = wide * scale;
      canvas.height = lines * size * scale;
      canvas.style.width = `${wide}px`;
      canvas.style.height = `${lines * size}px`;
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      cells.forEach((row, index) => {
        const [x, y] = [(index % columns) * size, Math.floor(index / columns) * size];
        pen.globalAlpha = 1;
        pen.fillStyle = colour("--strip-empty");
        pen.fillRect(x, y, size - 1, size - 1);
        if (alarm(row)) pen.fillStyle = colour("--bad");
        else if (row.lag === null || (row.committed === null && row.checkpoint === null)) pen.fillStyle = colour("--warn");
        else {
          pen.fillStyle = colour("--accent");
          // The square root makes small lags visible.
          pen.globalAlpha = row.lag ? 0.15 + 0.85 * Math.sqrt(row.lag / most) : 0;
        }
        pen.fillRect(x, y, size - 1, size - 1);
      });
      canvas.onpointermove = (event) => {
        const index = Math.floor(event.offsetY / size) * columns + Math.floor(event.offsetX / size);
        const row = event.offsetX < columns * size ? cells[index] : null;
        pointed.replaceChildren(...(row ? describe(row) : [""]));
      };
    }
  }

  const describe = (row) => [
    name(partitionOf(row)), `: lag ${count(row.lag)}`,
    ...[...new Set([row.verdict, alarm(row)])].filter(Boolean).map((text) => `, ${text}`),
  ];

  new ResizeObserver(draw).observe(element);
  addEventListener("theme", draw);

  return {
    element: h("div", {}, element, pointed),
    update(newRows) {
      rows = newRows;
      const topics = Map.groupBy(rows, (row) => row.topic);
      const parts = topics.size <= MANY_TOPICS ? [...topics] : [[null, rows]];
      if (parts.length !== drawn.length || parts.some(([topic], index) => topic !== drawn[index].topic)) {
        drawn = parts.map(([topic]) => ({ topic, canvas: h("canvas", { role: "img" }) }));
        element.replaceChildren(...drawn.map(({ topic, canvas }) =>
          h("figure", {}, h("figcaption", {}, topic === null ? `${topics.size} topics` : name(topic)), canvas)));
      }
      drawn.forEach((strip, index) => {
        strip.rows = parts[index][1];
        strip.canvas.setAttribute("aria-label", skew(strip.rows).map((part) => part.textContent ?? part).join(""));
      });
      draw();
    },
  };
}
