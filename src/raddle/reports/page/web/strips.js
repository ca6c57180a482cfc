// Draws a strip for every layer, in which each element has the colour of the device that computes it.

// Pixels: the usual height of a strip, the least height of one line of boxes in it (`row`) and of a copy in this line,
// the largest height of a strip; elements that are at least `visible` wide are separated by thin lines.
const STRIP = { height: 20, row: 7, copy: 2, most: 84, visible: 5 };
// Operators that are shown only because they are split differently than their inputs need this share of the work.
const STRIP_WORK = 0.002;

// A page is printed with all rows. Before printing, the theme changes, which builds the rows anew; then they are drawn
// at once, not when they come into view.
const stripsPrinted = { now: false };
window.addEventListener("beforeprint", () => (stripsPrinted.now = true));
window.addEventListener("afterprint", () => (stripsPrinted.now = false));

function stripsView(section, page) {
  const view = { page, all: false, rows: new Map(), tip: new Tip(section), keys: el("div.keys") };
  view.list = el("div.strips-list");
  view.note = el("span.soft");
  const box = el("input", {
    type: "checkbox",
    onchange: () => {
      view.all = box.checked;
      fillStrips(view);
    },
  });
  section.append(
    el("p.strips-tools", {}, el("label", {}, box, " all operators"), view.note),
    view.keys,
    view.list,
  );
  // Rows are drawn when they come into view.
  view.watcher = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) if (isIntersecting) drawStrip(view, target);
  }, { rootMargin: "300px" });
  page.on("method theme", () => fillStrips(view));
  page.on("resize", () => redrawStrips(view));
  page.on("op", () => markStrip(view, true));
  fillStrips(view);
}

function fillStrips(view) {
  const { page } = view;
  const { data, method } = page;
  view.watcher.disconnect();
  view.rows.clear();
  if (!method.tiles) {
    clear(view.list, el("p.soft", {}, "This method has no plan."));
    return;
  }
  const shown = view.all ? data.network.ops.map((_, i) => i) : stripOperators(data, method);
  for (const op of shown) view.rows.set(op, stripRow(view, op));
  clear(view.keys, deviceKeys(data.cluster));
  clear(view.list, [...view.rows.values()]);
  view.note.textContent = `${shown.length} of ${plural(data.network.ops.length, "operator")}`;
  for (const row of view.rows.values()) {
    if (stripsPrinted.now) drawStrip(view, row);
    else view.watcher.observe(row);
  }
  markStrip(view, false);
}

// Layers with weights (of those in one composite that are alike, such as time steps of an LSTM, only the first), and
// operators that are split differently than their inputs.
function stripOperators(data, method) {
  const { ops, edges } = data.network;
  const { text_of: texts } = method.tiles;
  const [forward, backward] = [data.column(method.work.forward_ns), data.column(method.work.backward_ns)];
  const work = ops.map((_, i) => forward[i] + backward[i]);
  const least = STRIP_WORK * work.reduce((sum, ns) => sum + ns, 0);
  const like = new Set(edges.filter(([p, c]) => texts[p] === texts[c]).map(([, c]) => c));
  const fed = new Set(edges.map(([, c]) => c));
  const differs = (i) => fed.has(i) && !like.has(i) && work[i] > least;
  const shapes = new Set();
  const isNew = ({ composite, layer, kind, dims }, i) => {
    const shape = JSON.stringify([layer, kind, dims, texts[i]]);
    return !composite || (!shapes.has(shape) && shapes.add(shape));
  };
  const weighs = (op, i) => (op.composite ? hasWeights(op) : op.params > 0) && isNew(op, i);
  return ops.flatMap((op, i) => (weighs(op, i) || differs(i) ? [i] : []));
}

function stripRow(view, i) {
  const { page } = view;
  const { data, method } = page;
  const op = data.network.ops[i];
  const text = method.tiles.texts[method.tiles.text_of[i]];
  const boxes = method.tiles.tilings[method.tiles.tiling_of[i]].boxes;
  const short = boxes ? methodSplits(data, method)[i].text : cut(text, 44);
  const name = el("button.strip-name.name", { title: cut(op.name, 200) }, cut(op.name, 30));
  const row = el(
    "div.strip-row",
    { "data-op": i, onclick: () => page.choose(i) },
    el("span.strip-head", {}, name, el("span.soft", {}, op.kind)),
    el("span.strip-text.mono.name", { title: cut(text, 600) }, short),
    el("span.strip-picture", {}, el("canvas", { "aria-hidden": "true" })),
    el("span.strip-axis.soft"),
  );
  const canvas = row.querySelector("canvas");
  canvas.onpointermove = (event) => showStripTip(view, row, event);
  canvas.onpointerleave = () => view.tip.hide();
  return row;
}

function redrawStrips(view) {
  for (const row of view.rows.values()) {
    row.strip = null;
    view.watcher.unobserve(row);
    view.watcher.observe(row);
  }
}

// parts: the operator's split letters, their cuts, and its cells with their devices (tilingCells in splits.js).
// lines: how many lines of boxes the strip has, one below the other; the first letter goes across.
function drawStrip(view, row) {
  if (row.strip) return;
  const { data, method } = view.page;
  const i = Number(row.dataset.op);
  const op = data.network.ops[i];
  const parts = tilingCells(op, method.tiles.tilings[method.tiles.tiling_of[i]]);
  const lines = parts.cuts.slice(1).reduce((count, cuts) => count * (cuts.length - 1), 1);
  const copies = Math.max(...parts.cells.map((cell) => cell.devices.length));
  const wanted = lines * Math.max(STRIP.row, STRIP.copy * copies);
  const height = Math.min(STRIP.most, Math.max(STRIP.height, wanted));
  row.querySelector(".strip-axis").textContent = stripAxis(op, parts);
  fitCanvas(row.querySelector("canvas"), height, (context, width) => {
    row.strip = stripRectangles(parts, width, height);
    paintStrip(context, row.strip, data.cluster);
    paintElements(context, op, parts, width, height);
  });
}

// "c 512"; with letters that go down, "c 512 × k 64".
function stripAxis(op, { dims }) {
  const shown = dims.length ? dims : widestDim(op);
  return shown.map((d) => `${op.dims[d][0]} ${op.dims[d][1]}`).join(" × ");
}

// The letter shown for an operator that is not split: its filters, or its first letter.
function widestDim(op) {
  const filters = op.kinds.indexOf("P");
  return op.dims.length ? [Math.max(0, filters)] : [];
}

// The rectangle of every cell, divided into one band per copy. The first letter goes across; the others go down,
// nested.
function stripRectangles({ cuts, cells }, width, height) {
  return cells.flatMap(({ index, devices }) => {
    const [x0, x1] = cuts.length ? cutShare(cuts[0], index[0]) : [0, 1];
    let [y0, y1] = [0, 1];
    for (let d = 1; d < cuts.length; d++) {
      const [from, to] = cutShare(cuts[d], index[d]);
      [y0, y1] = [y0 + (y1 - y0) * from, y0 + (y1 - y0) * to];
    }
    const left = Math.round(x0 * width);
    return devices.map((device, copy) => {
      const top = Math.round((y0 + ((y1 - y0) * copy) / devices.length) * height);
      const bottom = Math.round((y0 + ((y1 - y0) * (copy + 1)) / devices.length) * height);
      // Every part has at least one pixel, so that it is visible.
      const right = Math.max(left + 1, Math.round(x1 * width));
      return { left, right, top, bottom: Math.max(top + 1, bottom), index, device };
    });
  });
}

function cutShare(cuts, i) {
  const [from, all] = [cuts[0], cuts.at(-1) - cuts[0] || 1];
  return [(cuts[i] - from) / all, (cuts[i + 1] - from) / all];
}

function paintStrip(context, rectangles, cluster) {
  for (const { left, right, top, bottom, device } of rectangles) {
    context.fillStyle = patternFill(context, deviceStyle(cluster, device));
    context.fillRect(left, top, right - left, bottom - top);
  }
  context.fillStyle = css(themeColour("--card"));
  for (const rectangle of rectangles) {
    const { left, right, top, bottom } = rectangle;
    if (left > 0 && right - left > 3 && otherAt(rectangles, left - 1, top, rectangle)) {
      context.fillRect(left, top, 1, bottom - top);
    }
    if (top > 0 && bottom - top > 3 && otherAt(rectangles, left, top - 1, rectangle)) {
      context.fillRect(left, top, right - left, 1);
    }
  }
}

// Whether the pixel belongs to another device; there is no line between boxes of the same device.
function otherAt(rectangles, x, y, { device }) {
  return rectangleAt(rectangles, x, y)?.device !== device;
}

function rectangleAt(rectangles, x, y) {
  return rectangles.findLast((r) => x >= r.left && x < r.right && y >= r.top && y < r.bottom);
}

// Separates single elements if there is room.
function paintElements(context, op, { dims }, width, height) {
  const [d] = dims.length ? dims : widestDim(op);
  const size = d === undefined ? 1 : op.dims[d][1];
  if (width / size < STRIP.visible) return;
  context.fillStyle = css(themeColour("--card"), 0.35);
  for (let i = 1; i < size; i++) context.fillRect(Math.round((i * width) / size), 0, 1, height);
}

function showStripTip(view, row, event) {
  const { data, method } = view.page;
  const i = Number(row.dataset.op);
  const box = event.target.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const here = rectangleAt(row.strip ?? [], x, y);
  if (!here) return view.tip.hide();
  const op = data.network.ops[i];
  const { dims, cuts } = tilingCells(op, method.tiles.tilings[method.tiles.tiling_of[i]]);
  const ranges = dims.map((d, at) => {
    const [from, to] = [cuts[at][here.index[at]], cuts[at][here.index[at] + 1]];
    return `${op.dims[d][0]} ${from}–${to - 1} of ${op.dims[d][1]}`;
  });
  const share = methodSplits(data, method)[i].shares.get(here.device);
  const [kind, node] = data.cluster.devices[here.device];
  const place = data.cluster.nodes > 1 ? `, node ${node}` : "";
  const lines = [
    ranges.join(", ") || "all of it",
    `device ${here.device} (${kind}${place})`,
    `${percentText(share)} of this operator's work`,
  ];
  view.tip.show(event, lines.join("\n"));
}

function markStrip(view, scroll) {
  for (const [op, row] of view.rows) row.classList.toggle("chosen", op === view.page.op);
  const chosen = view.rows.get(view.page.op);
  if (!scroll || !chosen) return;
  const [outer, inner] = [view.list.getBoundingClientRect(), chosen.getBoundingClientRect()];
  if (inner.top < outer.top) view.list.scrollTop += inner.top - outer.top - 20;
  else if (inner.bottom > outer.bottom) view.list.scrollTop += inner.bottom - outer.bottom + 20;
}
