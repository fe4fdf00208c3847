// Plots over time, drawn by uPlot (a classic script that the page loads first), with a table under each.

import { clock, compact, count, h, plural, skeleton, time, timeZone } from "./dom.js";
import { table } from "./table.js";

const HEIGHT = 200;
const SHORTEST = 300;
const colour = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
const seconds = (moment) => Date.parse(moment) / 1000;

// {increment, ticks, and below them at a new year, month, day}: ISO 8601 and 24 hours, as everywhere on the page.
const DAY = "\n{YYYY}-{MM}-{DD}";
const TIMES = [
  [86_400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", DAY, null, DAY, null, null, null, 1],
  [0.001, "{HH}:{mm}:{ss}", DAY, null, DAY, null, null, null, 1],
];

/** Draw moves as vertical lines. */
function marks(moves) {
  return (plot) => {
    const { ctx: pen, bbox } = plot;
    pen.save();
    pen.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    pen.lineWidth = devicePixelRatio;
    pen.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    pen.strokeStyle = pen.fillStyle = colour("--mark");
    pen.textAlign = "left";
    let free = 0;
    for (const move of [...moves()].sort((a, b) => seconds(a.at) - seconds(b.at))) {
      const x = plot.valToPos(seconds(move.at), "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      pen.beginPath();
      pen.moveTo(x, bbox.top);
      pen.lineTo(x, bbox.top + bbox.height);
      pen.stroke();
      // If marks are close together, only the first one is labelled.
      const width = pen.measureText(move.kind).width;
      const left = Math.min(Math.max(x - width / 2, bbox.left), bbox.left + bbox.width - width);
      if (left < free) continue;
      pen.fillText(move.kind, left, bbox.top - 5 * devicePixelRatio);
      free = left + width + 6 * devicePixelRatio;
    }
    pen.restore();
  };
}

function axis(more) {
  return {
    font: "12px system-ui, sans-serif",
    stroke: () => colour("--quiet"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { stroke: () => colour("--line"), width: 1 },
    ...more,
  };
}

/** Return the range of all times, at least some minutes: `[from, to]` in seconds; `null` without times. */
export function span(moments) {
  const known = moments.map(seconds).filter((at) => !Number.isNaN(at));
  if (!known.length) return null;
  const [from, to] = known.reduce(([low, high], at) => [Math.min(low, at), Math.max(high, at)], [Infinity, -Infinity]);
  const room = Math.max(0, SHORTEST - (to - from)) / 2;
  return [from - room, to + room];
}

/**
 * Create a plot; `update(series, moves, range, nothing)` draws it.
 *
 * A series is `{label, points: [[moment, value], ...], colour, bars}`; `range` is the time range of all plots.
 *
 * @param together `{key, enlarged}`: shared by the plots that have one cursor and are enlarged together.
 * @param write returns the text of a value.
 * @param short returns the shorter text of a value for the axis.
 * @param steps the allowed differences between two lines of the axis.
 */
export function plot({ title, together, write = count, short = compact, steps }) {
  const host = h("div", { class: "plot", role: "img" });
  const summary = h("summary", {});
  const details = h("details", { ontoggle: () => details.open && fill() }, summary);
  const empty = h("p", { class: "quiet" }, skeleton());
  const element = h("figure", { class: "card" }, h("figcaption", {}, title), host, empty, details);
  let drawn = null;
  let series = [];
  let moves = [];
  let range = null;
  let shape = "";
  let rows = null;

  function fill() {
    if (!rows) {
      const columns = series.map((each, index) => ({
        label: each.label, numeric: true, value: (row) => row.values[index], cell: (_, value) => write(value),
      }));
      rows = table({
        caption: title,
        columns: [{ label: "Time", value: (row) => seconds(row.at), cell: (row) => time(row.at) }, ...columns],
        key: (row) => row.at,
        sort: { column: 0, descending: true },
        limit: 100,
      });
      details.replaceChildren(summary, rows.element);
    }
    const found = new Map();
    series.forEach((each, index) => {
      for (const [at, value] of each.points) {
        if (!found.has(at)) found.set(at, { at, values: series.map(() => null) });
        found.get(at).values[index] = value;
      }
    });
    rows.update([...found.values()]);
  }

  function draw() {
    const columns = series.map(({ points }) => {
      const sorted = points.map(([at, value]) => [seconds(at), value]).sort(([a], [b]) => a - b);
      return [sorted.map(([at]) => at), sorted.map(([, value]) => value)];
    });
    const data = uPlot.join(columns);
    if (drawn) {
      // If the user has enlarged the plot, keep its range.
      drawn.setData(data, !together.enlarged);
      // Drawing at once would keep the old time range in a plot that is not enlarged.
      if (together.enlarged) drawn.redraw();
      return;
    }
    drawn = new uPlot({
      width: Math.max(200, host.clientWidth),
      height: HEIGHT,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), timeZone),
      // All plots show the same time range, unless a part is enlarged.
      scales: { x: { range: (_, from, to) => (together.enlarged ? [from, to] : range) }, y: { range: (_, low, high) => around(low, high, series) } },
      axes: [axis({ values: TIMES, space: 70 }), axis({ values: (_, values) => values.map(short), size: 62, incrs: steps })],
      // Space for half of the last date.
      padding: [18, 36, 0, 0],
      cursor: { y: false, drag: { setScale: true, x: true, y: false }, sync: { key: together.key, scales: ["x", null] } },
      series: [
        { label: "Time", value: (_, at, __, index) => moment(index === null ? drawn?.data[0].at(-1) : at) },
        ...series.map((each, number) => ({
          label: each.label,
          stroke: () => colour(each.colour),
          fill: each.bars ? () => colour(each.colour) : undefined,
          width: each.bars ? 0 : 2,
          spanGaps: true,
          points: { show: () => !each.bars && series[number].points.length < 60, size: 5 },
          paths: each.bars ? uPlot.paths.bars({ size: [0.7, 24] }) : undefined,
          // Without a cursor, show the newest values.
          value: (_, value, __, index) => write(index === null ? newest(series[number])[1] : value),
        })),
      ],
      hooks: {
        draw: [marks(() => moves)],
        setSelect: [(plot) => { together.enlarged ||= plot.select.width > 0; }],
      },
    }, data, host);
    drawn.over.addEventListener("dblclick", () => { together.enlarged = false; });
    drawn.root.setAttribute("aria-hidden", "true");
  }

  new ResizeObserver(() => {
    const width = host.clientWidth;
    if (drawn && width > 0 && width !== drawn.width) drawn.setSize({ width, height: HEIGHT });
  }).observe(host);
  addEventListener("theme", () => drawn?.redraw());

  return {
    element,
    update(newSeries, newMoves, newRange, nothing) {
      moves = newMoves;
      range = newRange;
      series = newSeries.map((each) => ({
        ...each, points: each.points.filter(([at, value]) => typeof value === "number" && !Number.isNaN(seconds(at))),
      }));
      const points = series.reduce((sum, each) => sum + each.points.length, 0);
      host.hidden = details.hidden = points === 0;
      empty.hidden = points > 0;
      empty.replaceChildren(nothing ?? skeleton());
      // Keep the cursor if nothing has changed.
      const now = JSON.stringify([series, moves.map((move) => move.at), range]);
      if (now === shape || !points) return;
      shape = now;
      draw();
      host.setAttribute("aria-label", `${title}. ${series.map((each) => describe(each, write)).join(" ")}`);
      summary.textContent = `Table: ${title.toLowerCase()} (${plural(points, "value")})`;
      if (details.open) fill();
    },
  };
}

const moment = (at) => (at === null || at === undefined ? "" : clock(new Date(at * 1000).toISOString()));
const newest = ({ points }) => points.reduce((a, b) => (seconds(b[0]) >= seconds(a[0]) ? b : a), points[0] ?? [null, null]);

function describe({ label, points }, write) {
  if (!points.length) return `${label}: no known values.`;
  const last = newest({ points });
  const most = points.reduce((a, b) => (b[1] > a[1] ? b : a));
  return `${label}: ${plural(points.length, "value")}, the newest ${write(last[1])} at ${clock(last[0])}, ` +
    `the highest ${write(most[1])} at ${clock(most[0])}.`;
}

/** Leave room above and below; bars and lags begin at 0. */
function around(low, high, series) {
  if (low === null) return [0, 1];
  const zero = series.some((each) => each.bars || each.zero);
  const room = (high - (zero ? 0 : low)) * 0.1 || Math.max(1, Math.abs(high) * 0.1);
  return [zero ? 0 : low - room, high + room];
}
