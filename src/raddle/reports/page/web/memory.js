// Draws the memory of devices over a step, for the time span that the timeline shows.

const MEMORY_HEIGHT = 240; // px, with the axis
const MEMORY_AXIS = 24; // px
const MEMORY_KEYS = 32; // most curves in the legend
const FAR_BELOW = 0.05; // if the peak is below this share of the capacity, the capacity is only written, not drawn

// A curve has a dash in addition to its colour, as areas have patterns.
const DASHES = {
  solid: [], rising: [7, 3], dots: [2, 2], falling: [9, 3, 2, 3],
  rows: [4, 4], columns: [12, 4], grid: [9, 3, 2, 3, 2, 3], crossed: [1, 3],
}; // prettier-ignore

function memoryView(section, page) {
  const summary = el("p");
  const canvas = el("canvas.memory-curves", { role: "img" });
  const keys = el("div.keys");
  const tip = el("div.tip", { hidden: true });
  section.append(summary, el("div.memory-window", {}, canvas), keys, tip);
  const view = { page, canvas, curves: [], hovered: null };

  const draw = () => page.method.memory && drawMemory(view);
  const redraw = oncePerFrame(draw);
  const showMethod = () => {
    section.hidden = !page.method.memory;
    if (section.hidden) return;
    view.curves = memoryCurves(page);
    view.hovered = null;
    summary.textContent = memorySentence(view.curves);
    canvas.setAttribute("aria-label", summary.textContent);
    clear(keys, memoryKeys(page, view.curves));
    redraw();
  };
  const hover = (event) => {
    view.hovered = event.type === "pointermove" && !event.buttons ? nearestCurve(view, event) : null;
    tip.hidden = !view.hovered;
    redraw();
    if (!view.hovered) return;
    const { curve, bytes, time } = view.hovered;
    clear(tip, `${devicesText(curve.devices)}\n${bytesText(bytes)} at ${nsText(time)}`);
    placeTip(tip, event.clientX, event.clientY);
  };

  spanGestures(canvas, page, () => memoryPlot(canvas));
  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerleave", hover);
  page.on("method", showMethod);
  page.on("span resize", redraw);
  page.on("theme", draw);
  showMethod();
}

// The fullest device is last, so that its curve is drawn on top: curves.at(-1) is its curve.
function memoryCurves({ data, method }) {
  const curves = method.memory.curves.map((curve) => {
    const [time, bytes] = [data.column(curve.time), data.column(curve.bytes)];
    const peak = bytes.reduce((best, level, i) => (level > bytes[best] ? i : best), 0);
    const capacity = Math.min(...curve.devices.map((d) => method.memory.capacity[d]));
    return { devices: curve.devices, time, bytes, capacity, peak: bytes[peak], peakTime: time[peak] };
  });
  return curves.sort((a, b) => a.peak / a.capacity - b.peak / b.capacity);
}

// [0, 1, 2, 5] -> "devices 0–2, 5"
function devicesText(devices) {
  const runs = [];
  for (const d of devices) {
    if (runs.length && runs.at(-1)[1] === d - 1) runs.at(-1)[1] = d;
    else runs.push([d, d]);
  }
  const texts = runs.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`));
  return `${devices.length === 1 ? "device" : "devices"} ${cut(texts.join(", "), 60)}`;
}

function memorySentence(curves) {
  const { devices, capacity, peak, peakTime } = curves.at(-1);
  const least = Math.min(...curves.map((curve) => curve.peak));
  const fits = peak <= capacity;
  const share = fits ? ` (${percentText(peak / capacity)})` : `, ${bytesText(peak - capacity)} too much`;
  const others = least < peak ? ` The emptiest peaks at ${bytesText(least)}.` : "";
  const most = `The fullest, ${devicesText(devices)}, holds ${bytesText(peak)} at ${nsText(peakTime)}`;
  return `${most}, of ${bytesText(capacity)}${share}.${others}`;
}

function memoryKeys({ data }, curves) {
  const ordered = [...curves].sort((a, b) => a.devices[0] - b.devices[0]);
  const keys = ordered
    .slice(0, MEMORY_KEYS)
    .map(({ devices }) => swatch(deviceStyle(data.cluster, devices[0]), devicesText(devices)));
  const more = curves.length - MEMORY_KEYS;
  return more > 0 ? [...keys, el("span", {}, `and ${more} more curves`)] : keys;
}

function memoryPlot({ clientWidth }) {
  const left = labelColumn(clientWidth);
  return { left, top: 12, width: clientWidth - left - 8, height: MEMORY_HEIGHT - MEMORY_AXIS - 12 };
}

// The upper end of the vertical axis.
function memoryTop(curves) {
  const peak = Math.max(...curves.map((curve) => curve.peak));
  const near = curves.map(({ capacity }) => capacity).filter((capacity) => peak >= FAR_BELOW * capacity);
  return Math.max(peak, ...near) * 1.08;
}

function memoryScales({ page, canvas, curves }) {
  const plot = memoryPlot(canvas);
  const [from, to] = page.span;
  const most = memoryTop(curves);
  return {
    plot,
    most,
    x: (time) => plot.left + ((time - from) / (to - from)) * plot.width,
    y: (bytes) => plot.top + plot.height * (1 - bytes / most),
    time: (x) => from + ((x - plot.left) / plot.width) * (to - from),
  };
}

// The index of the level (bytes in use, until the next time of the curve) at a time, or -1 outside the step.
function levelPlace({ time }, at, period) {
  if (at < time[0] || at > period) return -1;
  let [low, high] = [0, time.length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (time[middle] <= at) low = middle;
    else high = middle;
  }
  return low;
}

function nearestCurve(view, { clientX, clientY }) {
  const scales = memoryScales(view);
  const box = view.canvas.getBoundingClientRect();
  const time = scales.time(clientX - box.left);
  let [nearest, least] = [null, Infinity];
  for (const curve of view.curves) {
    const place = levelPlace(curve, time, view.page.method.timeline.period_ns);
    if (place < 0 || clientX - box.left < scales.plot.left) continue;
    const away = Math.abs(scales.y(curve.bytes[place]) - (clientY - box.top));
    if (away < least) [nearest, least] = [{ curve, time, bytes: curve.bytes[place] }, away];
  }
  return nearest;
}

function drawMemory(view) {
  fitCanvas(view.canvas, MEMORY_HEIGHT, (context, width) => {
    const scales = memoryScales(view);
    const colour = (name, alpha) => css(themeColour(`--${name}`), alpha);
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    drawMemoryAxes(context, view, scales, colour, width);
    const { left, top, width: across, height } = scales.plot;
    context.save();
    context.beginPath();
    context.rect(left, 0, across, top + height + 1);
    context.clip();
    for (const curve of view.curves) drawCurve(context, view, curve, scales, colour);
    drawCapacities(context, view, scales, colour);
    context.restore();
    drawPeak(context, view, scales, colour);
    drawHovered(context, view, scales, colour);
  });
}

function drawMemoryAxes(context, { page }, { plot, most, x, y }, colour, width) {
  context.fillStyle = colour("paper");
  context.fillRect(plot.left, plot.top, plot.width, plot.height);
  context.textBaseline = "middle";
  context.textAlign = "right";
  const step = tickStep(most, 5, true);
  for (let bytes = 0; bytes <= most; bytes += step) {
    context.fillStyle = colour("line");
    context.fillRect(plot.left, Math.round(y(bytes)), plot.width, 1);
    context.fillStyle = colour("soft");
    context.fillText(bytes ? bytesText(bytes).replace(/\.0+ /, " ") : "0", plot.left - 8, y(bytes));
  }
  context.textBaseline = "alphabetic";
  context.textAlign = "center";
  for (const { time, text } of timeTicks(page.span, plot.width)) {
    context.fillStyle = colour("line");
    context.fillRect(Math.floor(x(time)), plot.top + plot.height, 1, 5);
    context.fillStyle = colour("soft");
    const half = context.measureText(text).width / 2;
    context.fillText(text, between(half, x(time), width - half), MEMORY_HEIGHT - 5);
  }
}

function drawCurve(context, view, curve, scales, colour) {
  const { page, hovered } = view;
  const { colour: hue, pattern } = deviceStyle(page.data.cluster, curve.devices[0]);
  const path = curvePath(curve, page, scales);
  const pale = hovered && hovered.curve !== curve;
  context.lineWidth = hovered?.curve === curve ? 2.5 : 1.5;
  context.setLineDash(DASHES[pattern]);
  context.strokeStyle = css(hue, pale ? 0.35 : 1);
  context.stroke(path);
  context.setLineDash([]);
  if (curve.peak > curve.capacity) drawExcess(context, path, curve, scales, colour);
}

// The visible part of a step curve. It is clipped, because dashing long lines outside the view is slow.
function curvePath(curve, page, { plot, x: place, y }) {
  const x = (time) => between(plot.left - 20, place(time), plot.left + plot.width + 20);
  const { time, bytes } = curve;
  const period = page.method.timeline.period_ns;
  const path = new Path2D();
  const first = Math.max(0, levelPlace(curve, Math.min(page.span[0], period), period));
  path.moveTo(x(time[first]), y(bytes[first]));
  for (let i = first + 1; i < time.length && time[i - 1] <= page.span[1]; i++) {
    path.lineTo(x(time[i]), y(bytes[i - 1]));
    path.lineTo(x(time[i]), y(bytes[i]));
  }
  path.lineTo(x(period), y(bytes.at(-1)));
  return path;
}

// The part of a curve that is above the capacity.
function drawExcess(context, path, { capacity }, { plot, y }, colour) {
  context.save();
  context.beginPath();
  context.rect(plot.left, 0, plot.width, y(capacity));
  context.clip();
  context.strokeStyle = colour("warn");
  context.lineWidth = 2;
  context.stroke(path);
  context.restore();
}

// The text of a capacity is on the other side than the peak's. Capacities far above are written at the top.
function drawCapacities(context, { curves }, { plot, most, x, y }, colour) {
  const capacities = [...new Set(curves.map((curve) => curve.capacity))].sort((a, b) => a - b);
  const right = x(curves.at(-1).peakTime) < plot.left + plot.width / 2;
  context.fillStyle = colour("ink");
  context.textBaseline = "bottom";
  for (const capacity of capacities.filter((bytes) => bytes <= most)) {
    const at = y(capacity);
    context.textAlign = right ? "right" : "left";
    const side = right ? plot.left + plot.width - 6 : plot.left + 6;
    haloText(context, `capacity ${bytesText(capacity)}`, side, at - 2, colour("paper"));
    context.strokeStyle = colour("ink");
    context.lineWidth = 1.2;
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(plot.left, at);
    context.lineTo(plot.left + plot.width, at);
    context.stroke();
    context.setLineDash([]);
  }
  const far = capacities.filter((bytes) => bytes > most).map(bytesText);
  if (!far.length) return;
  context.textAlign = "right";
  context.fillText(`capacity ${far.join(", ")}, far above`, plot.left + plot.width, plot.top);
}

function drawPeak(context, { curves }, { plot, x, y }, colour) {
  const { peak, peakTime, capacity } = curves.at(-1);
  const [left, top] = [x(peakTime), y(peak)];
  if (left < plot.left || left > plot.left + plot.width) return;
  const text = `peak ${bytesText(peak)}`;
  context.fillStyle = colour(peak > capacity ? "warn" : "ink");
  context.beginPath();
  context.arc(left, top, 3.5, 0, 2 * Math.PI);
  context.fill();
  const leftward = left + context.measureText(text).width + 10 > plot.left + plot.width;
  context.textAlign = leftward ? "right" : "left";
  context.textBaseline = "bottom";
  haloText(context, text, left + (leftward ? -7 : 7), top - 1, colour("paper"));
}

// Text with a background outline, so that it can be read on top of lines.
function haloText(context, text, x, y, paper) {
  context.lineWidth = 4;
  context.strokeStyle = paper;
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
}

function drawHovered(context, { hovered }, { plot, x, y }, colour) {
  if (!hovered) return;
  context.fillStyle = colour("ink");
  context.fillRect(x(hovered.time), plot.top, 1, plot.height);
  context.beginPath();
  context.arc(x(hovered.time), y(hovered.bytes), 4, 0, 2 * Math.PI);
  context.fill();
}
