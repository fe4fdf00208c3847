// Plots over time, drawn by uPlot (a classic script that the page loads first), with a table under each.

import { clock, compact, count, h, plural, time, timeZone } from "./dom.js";
import { table } from "./table.js";

const HEIGHT = 200;
const colour = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
const seconds = (moment) => Date.parse(moment) / 1000;

/** Draw moves as vertical lines. */
function marks(moves) {
  return (plot) => {
    const { ctx: pen, bbox } = plot;
    pen.save();
    pen.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    pen.lineWidth = devicePixelRatio;
    pen.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    pen.strokeStyle = pen.fillStyle = colour("--mark");
    for (const move of moves) {
      const x = plot.valToPos(seconds(move.at), "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      pen.beginPath();
      pen.moveTo(x, bbox.top);
      pen.lineTo(x, bbox.top + bbox.height);
      pen.stroke();
      const right = x > bbox.left + bbox.width * 0.85;
      pen.textAlign = right ? "right" : "left";
      pen.fillText(move.kind, x + (right ? -4 : 4) * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
    }
    pen.restore();
  };
}

function axis(write) {
  return {
    stroke: () => colour("--quiet"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { stroke: () => colour("--line"), width: 1 },
    ...(write ? { values: (_, values) => values.map(write), size: 62 } : {}),
  };
}

/**
 * Make a plot; `update(series, moves)` draws it.
 *
 * A series is `{label, points: [[moment, value], ...], colour, bars}`.
 *
 * @param write gives the text of a value.
 * @param short gives the shorter text at the axis.
 */
export function plot({ title, write = count, short = compact }) {
  const host = h("div", { class: "plot", role: "img" });
  const summary = h("summary", {});
  const details = h("details", { ontoggle: () => details.open && fill() }, summary);
  const empty = h("p", { class: "quiet" }, "Nothing is known of the past yet.");
  const element = h("figure", { class: "card" }, h("figcaption", {}, title), host, empty, details);
  let drawn = null;
  let series = [];
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

  function draw(moves) {
    const columns = series.map(({ points }) => {
      const sorted = points.map(([at, value]) => [seconds(at), value]).sort(([a], [b]) => a - b);
      return [sorted.map(([at]) => at), sorted.map(([, value]) => value)];
    });
    const data = uPlot.join(columns);
    drawn?.destroy();
    drawn = new uPlot({
      width: Math.max(200, host.clientWidth),
      height: HEIGHT,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), timeZone),
      scales: { y: { range: (_, low, high) => around(low, high, series) } },
      axes: [axis(), axis(short)],
      cursor: { y: false, drag: { setScale: true, x: true, y: false } },
      series: [
        { value: (_, at) => (at === null ? "" : clock(new Date(at * 1000).toISOString())) },
        ...series.map((each) => ({
          label: each.label,
          stroke: () => colour(each.colour),
          fill: each.bars ? () => colour(each.colour) : undefined,
          width: each.bars ? 0 : 2,
          spanGaps: true,
          points: { show: !each.bars && each.points.length < 60, size: 5 },
          paths: each.bars ? uPlot.paths.bars({ size: [0.7, 24] }) : undefined,
          value: (_, value) => write(value),
        })),
      ],
      hooks: { draw: [marks(moves)] },
    }, data, host);
    drawn.root.setAttribute("aria-hidden", "true");
  }

  new ResizeObserver(() => {
    const width = host.clientWidth;
    if (drawn && width > 0 && width !== drawn.width) drawn.setSize({ width, height: HEIGHT });
  }).observe(host);
  addEventListener("theme", () => drawn?.redraw());

  return {
    element,
    update(newSeries, moves = []) {
      series = newSeries.map((each) => ({
        ...each, points: each.points.filter(([at, value]) => value !== null && !Number.isNaN(seconds(at))),
      }));
      const points = series.reduce((sum, each) => sum + each.points.length, 0);
      host.hidden = details.hidden = points === 0;
      empty.hidden = points > 0;
      // What is pointed at stays while nothing has changed.
      const now = JSON.stringify([series, moves.map((move) => move.at)]);
      if (now === shape || !points) return;
      shape = now;
      draw(moves);
      host.setAttribute("aria-label", `${title}. ${series.map((each) => told(each, write)).join(" ")}`);
      summary.textContent = `Table: ${title.toLowerCase()} (${plural(points, "value")})`;
      if (details.open) fill();
    },
  };
}

function told({ label, points }, write) {
  if (!points.length) return `${label}: nothing known.`;
  const newest = points.reduce((a, b) => (seconds(b[0]) >= seconds(a[0]) ? b : a));
  const most = points.reduce((a, b) => (b[1] > a[1] ? b : a));
  return `${label}: ${plural(points.length, "value")}, the newest ${write(newest[1])} at ${clock(newest[0])}, ` +
    `the highest ${write(most[1])} at ${clock(most[0])}.`;
}

/** Leave room above and below; bars and lags begin at 0. */
function around(low, high, series) {
  if (low === null) return [0, 1];
  const zero = series.some((each) => each.bars || each.zero);
  const room = (high - (zero ? 0 : low)) * 0.1 || Math.max(1, Math.abs(high) * 0.1);
  return [zero ? 0 : low - room, high + room];
}
