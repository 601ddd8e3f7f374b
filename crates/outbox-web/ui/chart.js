// Line charts in SVG. Colours come from style sheets; dashes and the legend distinguish lines
// without colour.

import { fill, h, s, setText } from "./dom.js";
import { now } from "./clock.js";

const SIZE = { left: 54, right: 8, top: 10, bottom: 22 };

/**
 * `series`: `{ key, name, kind, area, bars }`, where `kind` is a class such as `delivered`.
 * `format` formats a value. `times`: values are milliseconds. Points are `{ at: ms, [key]: value
 * }`, oldest first; a missing value is a gap.
 */
export function chart({ title, series, format, height = 190, floor = 1, times = false }) {
  const svg = s("svg", { role: "img", "aria-label": title, height, class: "plot" });
  const tip = h("div.tip", { hidden: true });
  const keys = series.map(one => {
    const value = h("b", null, "–");
    const swatch = s("svg", { width: 18, height: 8, "aria-hidden": "true" },
      one.bars ? s("rect", { x: 6, y: 0, width: 5, height: 8, class: `mark-bar ${one.kind}` }) : s("line", { x1: 0, y1: 4, x2: 18, y2: 4, class: `line ${one.kind}` }));
    return { ...one, value, el: h("li", null, swatch, one.name, value) };
  });
  const plot = h("div.plot-box", { tabindex: "0", role: "group", "aria-label": `${title}: arrow keys read values` }, svg, tip);
  const el = h("figure.chart", null,
    h("figcaption", null, h("h2", null, title), h("ul.legend", null, keys.map(key => key.el))), plot);

  let data = { points: [], window: 900_000 };
  let cursor = null;

  function draw(points, window) {
    data = { points, window };
    const last = points.at(-1);
    for (const key of keys) setText(key.value, last && last[key.key] !== undefined ? format(last[key.key]) : "–");
    render();
  }

  function render() {
    const width = plot.clientWidth;
    if (!width) return;
    const end = now();
    const scale = scales(width, height, end, data, { series, floor, times });
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    fill(svg, grid(scale, format), series.map(one => (one.bars ? bars : lines)(one, data.points, scale)),
      data.points.length < 2 && waiting(width, height));
    if (cursor !== null) point();
  }

  /** Shows the values at the cursor. */
  function point() {
    const found = data.points[cursor];
    if (!found) return leave();
    const width = plot.clientWidth;
    const scale = scales(width, height, now(), data, { series, floor, times });
    const x = scale.x(found.at);
    svg.querySelector(".cross")?.remove();
    svg.append(s("line", { class: "cross", x1: x, x2: x, y1: SIZE.top, y2: height - SIZE.bottom }));
    fill(tip, h("time", null, new Date(found.at).toLocaleTimeString()),
      keys.map(key => h("div", null, h("span.dot", { class: key.kind }), key.name,
        h("b", null, found[key.key] === undefined ? "–" : format(found[key.key])))));
    tip.hidden = false;
    const side = x > width / 2;
    tip.style.left = side ? "" : `${x + 12}px`;
    tip.style.right = side ? `${width - x + 12}px` : "";
  }

  function leave() {
    cursor = null;
    tip.hidden = true;
    svg.querySelector(".cross")?.remove();
  }

  plot.addEventListener("pointermove", event => {
    const { points, window } = data;
    if (!points.length) return;
    const box = plot.getBoundingClientRect();
    const share = (event.clientX - box.left - SIZE.left) / (box.width - SIZE.left - SIZE.right);
    const at = now() - window * (1 - share);
    cursor = nearest(points, at);
    point();
  });
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("blur", leave);
  plot.addEventListener("keydown", event => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !data.points.length) return;
    event.preventDefault();
    cursor = Math.min(Math.max((cursor ?? data.points.length) + step, 0), data.points.length - 1);
    point();
    const found = data.points[cursor];
    const values = keys.map(key => `${key.name} ${found[key.key] === undefined ? "unknown" : format(found[key.key])}`);
    plot.setAttribute("aria-label", `${new Date(found.at).toLocaleTimeString()}: ${values.join(", ")}`);
  });
  new ResizeObserver(render).observe(plot);

  return { el, draw };
}

function scales(width, height, end, { points, window }, { series, floor, times }) {
  let top = floor;
  for (const point of points) for (const { key } of series) top = Math.max(top, point[key] ?? 0);
  const step = niceStep(top, times);
  const most = Math.ceil(top / step) * step;
  const inner = { w: width - SIZE.left - SIZE.right, h: height - SIZE.top - SIZE.bottom };
  return {
    width, height, most, step, start: end - window, end,
    x: at => SIZE.left + inner.w * Math.min(Math.max((at - end + window) / window, 0), 1),
    y: value => SIZE.top + inner.h * (1 - value / most),
  };
}

/** Steps for time axes, in milliseconds. */
const TIMES = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000,
  3_600_000, 7_200_000, 21_600_000, 86_400_000];

/** Step for two to four grid lines, at round numbers. */
function niceStep(top, times) {
  const time = times && TIMES.find(step => step * 4 >= top);
  if (time) return time;
  const raw = top / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find(factor => factor * power >= raw) * power;
  return step || 1;
}

function grid(scale, format) {
  const parts = [];
  for (let value = 0; value <= scale.most + scale.step / 100; value += scale.step) {
    const y = Math.round(scale.y(value)) + 0.5;
    parts.push(s("line", { class: value === 0 ? "axis" : "grid", x1: SIZE.left, x2: scale.width - SIZE.right, y1: y, y2: y }));
    parts.push(s("text", { class: "tick", x: SIZE.left - 8, y: y + 4, "text-anchor": "end" }, format(value)));
  }
  const minutes = (scale.end - scale.start) / 60_000;
  const maxLabels = Math.min(Math.max(Math.floor((scale.width - SIZE.left) / 80), 2), 6);
  const every = [0.5, 1, 3, 5].find(step => minutes / step <= maxLabels) ?? minutes;
  for (let back = 0; back <= minutes; back += every) {
    const x = scale.x(scale.end - back * 60_000);
    const anchor = back === 0 ? "end" : x < SIZE.left + 14 ? "start" : "middle";
    const text = back === 0 ? "now" : back < 1 ? `−${back * 60} s` : `−${back} min`;
    parts.push(s("text", { class: "tick", x, y: scale.height - 5, "text-anchor": anchor }, text));
  }
  return parts;
}

/** Draws rare values as bars, with a minimum height. */
function bars({ key, kind }, points, scale) {
  const bottom = scale.y(0);
  return points.filter(point => point.at >= scale.start && point[key] > 0).map(point => {
    const top = Math.min(scale.y(point[key]), bottom - 5);
    return s("rect", { class: `mark-bar ${kind}`, x: (scale.x(point.at) - 2).toFixed(1), y: top.toFixed(1), width: 4, height: (bottom - top).toFixed(1), rx: 1 });
  });
}

function lines({ key, kind, area }, points, scale) {
  const runs = [];
  let run = [];
  for (const point of points) {
    if (point.at < scale.start || point[key] === undefined || point[key] === null) {
      if (run.length) runs.push(run);
      run = [];
    } else {
      run.push([scale.x(point.at).toFixed(1), scale.y(point[key]).toFixed(1)]);
    }
  }
  if (run.length) runs.push(run);
  const parts = [];
  for (const pairs of runs) {
    const path = `M${pairs.map(pair => pair.join(",")).join("L")}`;
    const bottom = scale.y(0).toFixed(1);
    if (area) parts.push(s("path", { class: `area ${kind}`, d: `${path}L${pairs.at(-1)[0]},${bottom}L${pairs[0][0]},${bottom}Z` }));
    parts.push(s("path", { class: `line ${kind}`, d: path }));
  }
  return parts;
}

function waiting(width, height) {
  return s("text", { class: "tick", x: width / 2, y: height / 2, "text-anchor": "middle" }, "Collecting…");
}

function nearest(points, at) {
  let best = 0;
  for (let i = 1; i < points.length; i++) {
    if (Math.abs(points[i].at - at) < Math.abs(points[best].at - at)) best = i;
  }
  return best;
}

/** A line without axes, for a table cell. */
export function spark(values, label) {
  const [width, height] = [96, 22];
  const known = values.filter(value => value !== undefined && value !== null);
  const top = Math.max(...known, 1);
  const step = width / Math.max(values.length - 1, 1);
  const points = values.map((value, i) => `${(i * step).toFixed(1)},${(height - 2 - (height - 4) * ((value ?? 0) / top)).toFixed(1)}`);
  return s("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    known.length > 1 && s("polyline", { points: points.join(" ") }));
}
