// Draws a chart as SVG: axes, lines, and a tooltip at the point that the pointer or the keyboard selects.
// Lines with the same name have the same colour; measured lines have filled marks, printed lines are dashed.

const DASHES = { counted: "2 3", printed: "7 4" };
const MARKS = [
  (r) => `m${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`, // a circle
  (r) => `m${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`, // a square
  (r) => `m0 ${-1.4 * r}l${1.4 * r} ${1.4 * r}l${-1.4 * r} ${1.4 * r}l${-1.4 * r} ${-1.4 * r}z`, // a diamond
  (r) => `m0 ${-1.3 * r}l${1.3 * r} ${2.2 * r}h${-2.6 * r}z`, // pointing up
  (r) => `m0 ${1.3 * r}l${1.3 * r} ${-2.2 * r}h${-2.6 * r}z`, // pointing down
];
const MOST_MARKS = 16; // marks of a line with many points

// Returns a function that draws the chart: call it when the box is in the page, and when its width changes.
function plotBox(box, chart, tip) {
  const styles = lineStyles(chart.lines);
  const hidden = new Set();
  const place = el("div.plot");
  const left = el("p.left.soft");
  const state = { at: null, points: [] }; // the selected point, and all drawn points
  const draw = () => {
    const lines = chart.lines.filter((_, l) => !hidden.has(l));
    const plot = layout({ ...chart, lines }, place.clientWidth);
    state.points = plot.points;
    const label = `${cut(chart.title, 120)}: ${cut(chart.y, 60)} over ${cut(chart.x, 60)}`;
    clear(place, plotSvg(plot, styles, label));
    leave(state, place, tip);
    left.hidden = plot.left === 0;
    left.textContent = `Not drawn: ${plural(plot.left, "point")} at or below zero, on a logarithmic axis.`;
  };
  const legend = el("div.legend", { role: "group", "aria-label": "Lines, to show or hide" });
  chart.lines.forEach((line, l) => legend.append(legendKey(line, styles.get(line), hidden, l, draw)));
  const axis = (text, log) => `${cut(text, 120)}${log ? " (logarithmic)" : ""}`;
  box.append(
    legend,
    el("p.axis.name", {}, axis(chart.y, chart.log_y)),
    place,
    el("p.axis.across.name", {}, axis(chart.x, chart.log_x)),
    left,
  );
  listen(place, state, chart, tip);
  return draw;
}

// Line -> colour, mark, dash, and whether its marks are filled.
function lineStyles(lines) {
  const names = [...new Set(lines.map((line) => line.name))];
  return new Map(
    lines.map((line) => {
      const i = names.indexOf(line.name);
      const full = line.source === "measured";
      const dash = DASHES[line.source];
      return [line, { colour: HUES[i % HUES.length], mark: MARKS[i % MARKS.length], dash, full }];
    }),
  );
}

function legendKey(line, style, hidden, l, draw) {
  const key = svg("svg.key-line", { viewBox: "0 0 34 14", width: 34, height: 14, "aria-hidden": "true" });
  key.append(strokePath("M1 7H33", style), markPath([[17, 7]], style));
  const flip = () => {
    if (!hidden.delete(l)) hidden.add(l);
    button.setAttribute("aria-pressed", String(!hidden.has(l)));
    draw();
  };
  const about = { onclick: flip, "aria-pressed": "true", title: "Show or hide" };
  const name = el("span.name", {}, cut(line.name, 80));
  const button = el("button.line", about, key, name, sourceLabel(line.source));
  return button;
}

// The layout of a chart in pixels: frame, ticks, and points {x, y, line, given}. given: the point in the data, [x, y,
// text of x, text of y]. left: the number of points that cannot be drawn on a logarithmic axis.
function layout(chart, width) {
  const height = Math.round(Math.min(340, Math.max(230, width * 0.5)));
  const drawable = ([x, y]) => (x > 0 || !chart.log_x) && (y > 0 || !chart.log_y);
  const all = chart.lines.flatMap((line) => line.points.map((given) => ({ line, given })));
  const points = all.filter(({ given }) => drawable(given));
  const [xs, ys] = [0, 1].map((i) => points.map(({ given }) => given[i]));
  const [tall, wide] = [Math.round(height / 50), Math.max(2, Math.round(width / 90))];
  const up = chart.log_y ? logAxis(ys, tall) : linearAxis(ys, tall, true);
  const across = withFew(chart.log_x ? logAxis(xs, wide) : linearAxis(xs, wide, false), xs, 12);
  const margin = 14 + DIGIT * Math.max(...up.ticks.map((tick) => tickText(tick).length), 1);
  const frame = { left: margin, right: width - 14, top: 10, bottom: height - 24 };
  const x = (value) => frame.left + across.share(value) * (frame.right - frame.left);
  const y = (value) => frame.bottom - up.share(value) * (frame.bottom - frame.top);
  for (const point of points) Object.assign(point, { x: x(point.given[0]), y: y(point.given[1]) });
  const named = (axis, at) => axis.ticks.map((tick) => [at(tick), tickText(tick)]);
  const ticks = { x: apart(named(across, x)), y: named(up, y) };
  return { width, height, frame, points, ticks, left: all.length - points.length };
}

function plotSvg({ width, height, frame, points, ticks }, styles, label) {
  const grid = [
    ...ticks.y.map(([y]) => `M${frame.left} ${Math.round(y) + 0.5}H${frame.right}`),
    ...ticks.x.map(([x]) => `M${Math.round(x) + 0.5} ${frame.bottom}v5`),
  ];
  const about = { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img", "aria-label": label };
  return svg(
    "svg",
    about,
    svg("path.grid", { d: grid.join("") }),
    ticks.y.map(([y, text]) => svg("text.end", { x: frame.left - 7, y: y + 4 }, text)),
    ticks.x.map(([x, text]) => svg("text.middle", { x, y: frame.bottom + 19 }, text)),
    [...styles].map(([line, style]) => plotLine(points.filter((point) => point.line === line), style)),
    svg("circle.here", { r: 7, hidden: true }),
  );
}

// Points are joined by a line only if they are sorted by x.
function plotLine(points, style) {
  if (!points.length) return null;
  const places = points.map(({ x, y }) => [x.toFixed(1), y.toFixed(1)]);
  const forth = points.every(({ given }, i) => i === 0 || given[0] >= points[i - 1].given[0]);
  const every = forth ? Math.ceil(points.length / MOST_MARKS) : 1;
  return svg(
    "g",
    {},
    forth && points.length > 1 && strokePath(`M${places.map((place) => place.join(" ")).join("L")}`, style),
    markPath(places.filter((_, i) => i % every === 0), style),
  );
}

function strokePath(d, { colour, dash }) {
  return svg("path.stroke", { d, stroke: colour, "stroke-dasharray": dash });
}

function markPath(places, { colour, mark, full }) {
  const d = places.map(([x, y]) => `M${x} ${y}${mark(3.2)}`).join("");
  return svg(full ? "path.mark" : "path.mark.hollow", { d, stroke: colour, fill: full && colour });
}

// The pointer selects the nearest point; arrow keys move along a line, and from line to line.
function listen(place, state, chart, tip) {
  const go = (point) => point && visit(state, point, place, chart, tip);
  const near = (event) => {
    const box = place.getBoundingClientRect();
    go(nearest(state.points, event.clientX - box.left, event.clientY - box.top));
  };
  const away = () => leave(state, place, tip);
  place.addEventListener("pointermove", near);
  place.addEventListener("pointerdown", near);
  place.addEventListener("pointerleave", away);
  place.addEventListener("focusin", () => state.at ?? go(state.points[0]));
  place.addEventListener("focusout", away);
  place.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") away();
    const next = state.at ? beside(state.points, state.at, event.key) : undefined;
    if (next === undefined) return;
    event.preventDefault();
    go(next);
  });
}

function nearest(points, x, y) {
  const far = (point) => (point.x - x) ** 2 + (point.y - y) ** 2;
  return points.reduce((best, point) => (best && far(best) <= far(point) ? best : point), null);
}

// The point that an arrow key selects; undefined for other keys.
function beside(points, at, key) {
  const arrows = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  if (!(key in arrows)) return undefined;
  const [along, over] = arrows[key];
  const lines = [...new Set(points.map((point) => point.line))];
  const line = lines[(lines.indexOf(at.line) + over + lines.length) % lines.length];
  const linePoints = points.filter((point) => point.line === line);
  if (over) return nearest(linePoints, at.x, at.y);
  return linePoints[Math.min(linePoints.length - 1, Math.max(0, linePoints.indexOf(at) + along))];
}

function visit(state, point, place, chart, tip) {
  state.at = point;
  const ring = place.querySelector(".here");
  ring.setAttribute("cx", point.x);
  ring.setAttribute("cy", point.y);
  ring.removeAttribute("hidden");
  const { line, given } = point;
  const box = place.getBoundingClientRect();
  const name = line.source ? `${cut(line.name, 80)} (${line.source})` : cut(line.name, 80);
  const words = `${name}\n${cut(chart.x, 60)}: ${given[2]}\n${cut(chart.y, 60)}: ${given[3]}`;
  tip.show({ clientX: box.left + point.x, clientY: box.top + point.y }, words);
}

function leave(state, place, tip) {
  state.at = null;
  place.querySelector(".here")?.setAttribute("hidden", "");
  tip.hide();
}
