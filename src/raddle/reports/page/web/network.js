// Shows the network as a graph of blocks: how each is split or on which devices it runs, and the bytes between devices.

// A block is an interval of operators that is drawn as one node, or as a frame around its children (blocks.js).

const FIRST_NODES = 55; // most nodes that are drawn at first
const MOST_NODES = 1500; // most nodes after "expand all"

function networkView(section, page) {
  const { root, blocks } = blockTree(page.data.network);
  const view = {
    page,
    root,
    blocks,
    open: firstOpen(root, FIRST_NODES),
    by: "split",
    current: null,
    tip: new Tip(section),
    box: el("div.graph-box"),
    keys: el("div.keys"),
    note: el("span.soft"),
    width: 0,
  };
  section.append(graphTools(view), view.box, view.keys);
  listenToGraph(view);
  page.on("method theme", () => drawGraph(view));
  page.on("resize", () => view.width !== view.box.clientWidth && drawGraph(view));
  page.on("op", () => revealOperator(view));
  drawGraph(view);
}

function graphTools(view) {
  const press = (by) => () => {
    view.by = by;
    for (const name in colouring) colouring[name].setAttribute("aria-pressed", name === by);
    drawGraph(view);
  };
  const colouring = {
    split: el("button", { onclick: press("split"), "aria-pressed": "true" }, "by split"),
    device: el("button", { onclick: press("device"), "aria-pressed": "false" }, "by device"),
  };
  const fold = () => {
    view.open = firstOpen(view.root, FIRST_NODES);
    drawGraph(view);
  };
  const expand = () => {
    const { open, closed } = openBlocks(view.root, MOST_NODES);
    view.open = open;
    drawGraph(view);
    if (closed) view.note.textContent = `${plural(closed, "block")} left folded, at ${MOST_NODES} boxes`;
  };
  return el(
    "div.graph-tools",
    {},
    el("span", { role: "group", "aria-label": "Colours" }, colouring.split, colouring.device),
    el("span", {}, el("button", { onclick: expand }, "expand all"),
      el("button", { onclick: fold }, "fold")),
    view.note,
  );
}

// The data of the shown method, looked up once per drawing. work(op): ns, forward and backward; there, back: bytes of
// each value between devices, forward and backward; crossing(value): their sum; most: the largest sum.
function graphFigures({ data, method }) {
  const figures = { data, method, splits: null, work: () => 1, crossing: () => 0 };
  if (!method.tiles) return figures;
  const column = (c) => data.column(c);
  const [forward, backward] = [column(method.work.forward_ns), column(method.work.backward_ns)];
  const there = column(method.traffic.values.forward);
  const back = column(method.traffic.values.backward);
  return Object.assign(figures, {
    splits: methodSplits(data, method),
    forward,
    backward,
    synced: column(method.work.synced_bytes),
    there,
    back,
    // Never zero, so that operators that take no time still show how they are split.
    work: (op) => forward[op] + backward[op] + 1e-3,
    crossing: (value) => there[value] + back[value],
    most: there.reduce((most, bytes, value) => Math.max(most, bytes + back[value]), 0),
  });
}

function drawGraph(view) {
  view.width = view.box.clientWidth;
  view.figures = graphFigures(view.page);
  view.fills = new Map();
  const { page, root, open } = view;
  const width = Math.max(280, view.width - 2);
  view.size = nodeSize(width);
  const picture = layOut(page.data.network, root, open, width, view.size);
  view.nodes = new Map();
  view.defs = svg("defs");
  const drawn = drawFrame(view, picture, 0, 0);
  const [across, down] = [picture.width, picture.height].map(Math.ceil);
  const size = { width: across, height: down, viewBox: `0 0 ${across} ${down}` };
  const says = { role: "group", "aria-label": "Operators and their values" };
  const { scrollTop } = view.box;
  clear(view.box, svg("svg.graph", { ...size, ...says }, view.defs, drawn));
  view.box.scrollTop = scrollTop;
  clear(view.keys, graphLegend(view));
  view.note.textContent = "";
  markChosen(view);
  setCurrent(view, view.nodes.has(view.current) ? view.current : view.nodes.keys().next().value);
}

// ---- the legend and tooltips

function graphLegend(view) {
  const { figures } = view;
  if (!figures.splits) return [el("span", {}, "no plan")];
  const keys = view.by === "split" ? splitKeys(figures) : deviceKeys(figures.data.cluster);
  return [...keys, widthKeys(view)];
}

// The kinds of splits in this method, with their letters.
function splitKeys({ splits }) {
  const letters = new Map();
  for (const { kinds, parts } of splits) {
    for (const kind of kinds) if (!letters.has(kind)) letters.set(kind, new Set());
    for (const [letter, , kind] of parts) letters.get(kind).add(letter);
  }
  const shown = Object.keys(SPLIT_STYLES).filter((kind) => letters.has(kind));
  return shown.map((kind) => {
    const along = [...letters.get(kind)].slice(0, 8).join(" ");
    return swatch(splitStyle(kind), `${SPLIT_STYLES[kind].text}${along ? ` (${along})` : ""}`);
  });
}

// Swatches of devices, grouped by node if there are several nodes.
function deviceKeys({ devices, nodes }, most = 64) {
  const shown = devices.slice(0, most);
  const key = (d) => swatch(deviceStyle({ devices, nodes }, d), `${d}`);
  const more = devices.length > most ? [el("span", {}, `and ${devices.length - most} more`)] : [];
  if (nodes === 1) return [el("span", {}, "device"), ...shown.map((_, d) => key(d)), ...more];
  const byNode = new Map();
  shown.forEach(([, node], d) => byNode.set(node, [...(byNode.get(node) ?? []), d]));
  const groups = [...byNode].map(([node, nodeDevices]) =>
    el("span.key-group", {}, `node ${node}: `, nodeDevices.map(key)),
  );
  return [...groups, ...more];
}

function widthKeys(view) {
  const widest = widestBytes(view.figures);
  const line = (bytes, text) => {
    const path = edgeLine(view, "M0 6h26", bytes);
    return el("span.key", {}, svg("svg.edge-key", { width: 26, height: 12 }, path), text);
  };
  const keys = [line(0, "nothing crosses devices")];
  if (view.figures.most) {
    keys.push(line(widest / 16, bytesText(widest / 16)), line(widest, `${bytesText(widest)} a step cross`));
  }
  return el("span.key-group", {}, keys);
}

function nodeTip({ figures }, block) {
  const { data, method } = figures;
  const op = principal(figures, block);
  const shown = data.network.ops[op];
  const lines = [];
  if (block.children) {
    const times = block.repeat ? `, ${block.repeat} times the same` : "";
    lines.push(cut(block.label, 80), `${plural(block.hi - block.lo, "operator")}${times}`);
  } else lines.push(cut(shown.name, 120), shown.kind, cut(shown.line, 160));
  if (!figures.splits) return lines;
  const { texts, text_of: number } = method.tiles;
  lines.push(`split: ${cut(block.children ? blockSplitText(figures, block) : texts[number[op]], 120)}`);
  const sum = (column) => column.slice(block.lo, block.hi).reduce((all, x) => all + x, 0);
  lines.push(`forward ${nsText(sum(figures.forward))}, backward ${nsText(sum(figures.backward))}`);
  const synced = sum(figures.synced);
  if (synced) lines.push(`${bytesText(synced)} of gradients synchronised`);
  const params = data.network.ops.slice(block.lo, block.hi).reduce((all, op) => all + op.params, 0);
  if (params) lines.push(`${countText(params)} parameters`);
  const inside = crossingInside(figures, block);
  if (inside) lines.push(`${bytesText(inside)} cross devices between its operators`);
  if (block.children) lines.push(`a click shows ${cut(shown.name, 80)}`);
  return lines;
}

function crossingInside({ data, crossing }, { lo, hi }) {
  const within = data.network.edges.filter(([p, c]) => p >= lo && c < hi).map(([, , value]) => value);
  return [...new Set(within)].reduce((bytes, value) => bytes + crossing(value), 0);
}

function edgeTip({ figures }, values) {
  const allValues = figures.data.network.values;
  const sorted = [...values].sort((a, b) => figures.crossing(b) - figures.crossing(a));
  const lines = sorted.slice(0, 4).flatMap((value) => {
    const { name, shape, bytes } = allValues[value];
    const size = `${cut(name, 60)} [${shape.join(" ")}], ${bytesText(bytes)}`;
    if (!figures.crossing(value)) return [size];
    const ways = [figures.there, figures.back].map((way) => bytesText(way[value]));
    return [size, `crossing devices: forward ${ways[0]}, backward ${ways[1]}`];
  });
  if (sorted.length > 4) lines.push(`and ${plural(sorted.length - 4, "value")} more`);
  if (!sorted.some((value) => figures.crossing(value))) lines.push("nothing crosses devices");
  return lines;
}

// ---- pointer and keys

function listenToGraph(view) {
  const { box, tip } = view;
  box.onclick = (event) => act(view, event.target);
  box.onkeydown = (event) => graphKey(view, event);
  box.onpointermove = (event) => {
    const node = event.target.closest?.("[data-block]");
    const edge = event.target.closest?.(".edge");
    if (node) tip.show(event, nodeTip(view, view.blocks[node.dataset.block]).join("\n"));
    else if (edge) tip.show(event, edgeTip(view, edge.values).join("\n"));
    else tip.hide();
  };
  box.onpointerleave = () => tip.hide();
}

// A click or Enter opens a block, folds it, or selects an operator.
function act(view, target) {
  const on = (name) => view.blocks[target.closest?.(`[data-${name}]`)?.dataset[name]];
  const [opened, closed, chosen] = [on("open"), on("fold"), on("block")];
  if (opened) toggleBlock(view, opened, opened.children[0]);
  else if (closed) toggleBlock(view, closed, closed);
  else if (chosen) {
    view.choosing = true; // keeps revealOperator from opening the block that was clicked
    setCurrent(view, chosen);
    view.page.choose(principal(view.figures, chosen));
    view.choosing = false;
  }
}

function toggleBlock(view, block, then) {
  if (!view.open.delete(block)) view.open.add(block);
  view.tip.hide();
  drawGraph(view);
  focusBlock(view, then);
}

function graphKey(view, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return; // keys of the browser: Ctrl + plus, Alt + left
  const { key } = event;
  const block = view.current;
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  if (key === "Enter" || key === " ") act(view, event.target);
  else if (key in moves) focusBlock(view, nearest(view, moves[key]));
  else if (key === "+" && block.children) toggleBlock(view, block, block.children[0]);
  else if (key === "-" && block.parent.parent) toggleBlock(view, block.parent, block.parent);
  else return;
  event.preventDefault();
}

// The next node in a direction; at the end of a row, the next in the order of operators.
function nearest(view, [dx, dy]) {
  const places = [...view.nodes].map(([block, node]) => ({ block, box: node.getBoundingClientRect() }));
  const from = places.find(({ block }) => block === view.current).box;
  const ahead = places.flatMap(({ block, box }) => {
    const [x, y] = [box.x - from.x, box.y - from.y];
    const [along, off] = [x * dx + y * dy, Math.abs(x * dy) + Math.abs(y * dx)];
    const beside = off <= (dx ? view.size.height * 2 : Infinity);
    return along > 4 && beside ? [{ block, far: along + 3 * off }] : [];
  });
  if (ahead.length) return ahead.reduce((a, b) => (b.far < a.far ? b : a)).block;
  const order = places.map(({ block }) => block).sort((a, b) => a.lo - b.lo);
  return order[order.indexOf(view.current) + dx] ?? view.current;
}

// Tab reaches one node and its plus sign; arrow keys move from node to node.
function setCurrent(view, block) {
  const tabbable = (which, index) => {
    const element = view.nodes.get(which);
    element?.setAttribute("tabindex", index);
    element?.querySelector(".expander")?.setAttribute("tabindex", index);
  };
  tabbable(view.current, -1);
  view.current = block;
  tabbable(block, 0);
}

function focusBlock(view, block) {
  const seen = view.nodes.has(block) ? block : seenBlock(view, block.lo);
  setCurrent(view, seen);
  view.nodes.get(seen).focus({ preventScroll: true });
  scrollToBlock(view, seen);
}

// ---- the operator that is chosen

// The node that an operator is drawn in.
function seenBlock({ root, open }, op) {
  let block = root;
  while (open.has(block)) block = block.children.find(({ hi }) => op < hi);
  return block;
}

function revealOperator(view) {
  const { op } = view.page;
  if (op >= 0 && !view.choosing && seenBlock(view, op).children) {
    for (let block = seenBlock(view, op); block.children; block = seenBlock(view, op)) view.open.add(block);
    drawGraph(view);
  }
  markChosen(view);
  if (op >= 0) scrollToBlock(view, seenBlock(view, op));
}

function markChosen(view) {
  for (const node of view.nodes.values()) node.classList.remove("chosen");
  if (view.page.op >= 0) view.nodes.get(seenBlock(view, view.page.op)).classList.add("chosen");
}

// Scrolls only the box, not the page.
function scrollToBlock({ box, nodes }, block) {
  const [outer, inner] = [box.getBoundingClientRect(), nodes.get(block).getBoundingClientRect()];
  if (inner.top < outer.top) box.scrollTop += inner.top - outer.top - 30;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom + 30;
  if (inner.left < outer.left) box.scrollLeft += inner.left - outer.left - 10;
  else if (inner.right > outer.right) box.scrollLeft += inner.right - outer.right + 10;
}
