// Draws the parts of the network's picture: frames, edges, and nodes with a bar that shows shares of work.
// view: the state of the drawing (networkView in network.js); its `figures` are the shown method's data. A block is
// an interval of operators (blocks.js); a frame is an open block, with its children's nodes inside (layers.js).

const BAR = { left: 8, top: 34, height: 6, most: 48 }; // px; most: largest number of pieces of a bar

// ---- frames, edges, nodes

function drawFrame(view, frame, x, y) {
  const parts = frame.block.parent ? [...frameTitle(frame)] : [];
  const edges = frame.edges.map((edge) => ({ ...edge, bytes: edgeBytes(view, edge) }));
  edges.sort((a, b) => a.bytes - b.bytes);
  for (const edge of edges) parts.push(drawEdge(view, edge));
  for (const node of frame.nodes) {
    parts.push(node.nodes ? drawFrame(view, node, node.x, node.y) : drawNode(view, node));
  }
  return svg("g", { transform: `translate(${x} ${y})` }, parts);
}

function* frameTitle({ block, width, height }) {
  yield svg("rect.frame", { x: 0.5, y: 0.5, width: width - 1, height: height - 1, rx: 7 });
  const text = `${block.label}${block.repeat ? ` × ${block.repeat}` : ""}`;
  yield svg(
    "g.frame-title",
    { role: "button", tabindex: 0, "data-fold": block.id, "aria-label": `fold ${cut(text, 80)}` },
    svg("rect.hit", { x: 4, y: 3, width: Math.max(20, width - 8), height: 20 }),
    minusSign(16, 13),
    svg("text.title", { x: 28, y: 17 }, fitText(text, width - 40, 12, 600)),
  );
}

const minusSign = (x, y) => [
  svg("circle.sign", { cx: x, cy: y, r: 6.5 }),
  svg("path.stroke", { d: `M${x - 3} ${y}h6` }),
];

const plusSign = (x, y) => [...minusSign(x, y), svg("path.stroke", { d: `M${x} ${y - 3}v6` })];

function edgeBytes({ figures }, { values }) {
  let bytes = 0;
  for (const value of values) bytes += figures.crossing(value);
  return bytes;
}

// Proportional to the square root, so that small values are visible next to large ones. The scale has at least
// 1 MiB, so edges with few bytes stay thin.
function edgeWidth({ figures }, bytes) {
  return bytes ? Math.min(10, 1.5 + 8.5 * Math.sqrt(bytes / widestBytes(figures))) : 1.3;
}

const widestBytes = ({ most }) => Math.max(most, 2 ** 20);

function drawEdge(view, { path, values, bytes }) {
  const hit = svg("path.hit", { d: path });
  const edge = svg("g.edge", { "data-bytes": bytes }, hit, edgeLine(view, path, bytes));
  edge.values = values;
  return edge;
}

function edgeLine(view, path, bytes) {
  const width = edgeWidth(view, bytes).toFixed(1);
  return svg(bytes ? "path.crossing" : "path.local", { d: path, "stroke-width": width });
}

function drawNode(view, { block, x, y, width, height }) {
  const single = !block.children;
  const shown = nodeTexts(view, block);
  const node = svg(
    "g.node",
    {
      transform: `translate(${x} ${y})`,
      role: "button",
      tabindex: -1,
      "data-block": block.id,
      "data-op": single ? block.lo : null,
      "aria-label": cut(`${shown.name}, ${shown.kind}, ${shown.split}`, 160),
    },
    block.repeat ? svg("rect.behind", { x: 4, y: -3, width: width - 4, height: height - 1, rx: 5 }) : null,
    svg("rect.card", { width, height, rx: 5 }),
    nodeBar(view, block),
    svg("text.label", { x: 8, y: 16 }, shown.label),
    svg("text.kind", { x: 8, y: 29 }, shown.short),
    svg("text.split", { x: width - 8, y: 29 }, shown.shortSplit),
    single ? null : nodeExpander(block, width),
  );
  view.nodes.set(block, node);
  return node;
}

function nodeExpander(block, width) {
  return svg(
    "g.expander",
    { role: "button", tabindex: -1, "data-open": block.id, "aria-label": `open ${cut(block.label, 80)}` },
    svg("rect.hit", { x: width - 24, y: 0, width: 24, height: 24 }),
    plusSign(width - 11, 11),
  );
}

function nodeTexts({ figures, size }, block) {
  const op = figures.data.network.ops[principal(figures, block)];
  const room = size.width - 16;
  const split = blockSplitText(figures, block);
  const shortSplit = fitText(split, room * 0.85, 11);
  const left = room - textWidth(shortSplit, 11) - 6;
  const kinds = block.unit ? [op.kind] : countTexts(block);
  const fitting = kinds.find((text) => textWidth(text, 11) <= left);
  return {
    name: block.children ? block.label : op.name,
    kind: kinds[0],
    split,
    shortSplit,
    label: fitText(block.label, room - (block.children ? 14 : 0), 12, 600),
    short: left < 24 ? "" : fitText(fitting ?? kinds.at(-1), left, 11),
  };
}

// Texts for the number of operators of a block, the longest first.
function countTexts({ lo, hi, repeat }) {
  if (!repeat || repeat === hi - lo) return [`${hi - lo} ops`];
  const rounds = `${repeat} × ${(hi - lo) / repeat}`;
  return [`${rounds} ops`, rounds, `× ${repeat}`];
}

// The operator that represents a block: for a layer the one with weights, otherwise the one that takes longest.
function principal(figures, { lo, hi, unit }) {
  const { ops } = figures.data.network;
  let best = lo;
  if (unit) {
    for (let op = lo; op < hi; op++) if (hasWeights(ops[op])) return op;
  }
  for (let op = lo; op < hi; op++) if (figures.work(op) > figures.work(best)) best = op;
  return best;
}

// Share of work by key -> [[key, share]], the largest first.
function workShares(figures, { lo, hi }, addTo) {
  const sums = new Map();
  for (let op = lo; op < hi; op++) {
    addTo(op, (key, work) => sums.set(key, (sums.get(key) ?? 0) + work));
  }
  const all = [...sums.values()].reduce((sum, work) => sum + work, 0);
  return [...sums].map(([key, work]) => [key, work / all]).sort((a, b) => b[1] - a[1]);
}

function blockSplitText(figures, block) {
  if (!figures.splits) return "";
  const shares = workShares(figures, block, (op, add) => add(figures.splits[op].text, figures.work(op)));
  const more = shares.filter(([, share]) => share >= 0.02).length - 1;
  return more > 0 ? `${shares[0][0]} +${more}` : shares[0][0];
}

// ---- the bar of a node: shares of work, by split or by device

function nodeBar(view, block) {
  if (!view.figures.splits) return null;
  const segments = view.by === "split" ? splitSegments(view, block) : deviceSegments(view, block);
  const { width, height } = view.size;
  const all = width - 2 * BAR.left;
  const parts = [];
  if (view.by === "split") {
    const tint = view.fills.get(segments[0].fills[0]).colour;
    parts.push(svg("rect.tint", { width, height, rx: 5, fill: css(tint) }));
  }
  let x = BAR.left;
  for (const { share, fills } of segments) {
    const thick = BAR.height / fills.length;
    fills.forEach((fill, i) => {
      const place = { x, y: BAR.top + i * thick, width: share * all, height: thick };
      parts.push(svg("rect", { ...place, fill: view.fills.get(fill).paint }));
    });
    x += share * all;
  }
  return svg("g.bar", {}, parts);
}

function splitSegments(view, block) {
  const { figures } = view;
  const kindsOf = (op) => figures.splits[op].kinds.join(" ");
  const shares = workShares(figures, block, (op, add) => add(kindsOf(op), figures.work(op)));
  const fills = (kinds) => kinds.split(" ").map((kind) => fillFor(view, kind, splitStyle));
  return shares
    .filter(([, share]) => share > 0.004)
    .map(([kinds, share]) => ({ share, fills: fills(kinds) }));
}

function deviceSegments(view, block) {
  const { figures } = view;
  const { cluster } = figures.data;
  const shares = workShares(figures, block, (op, add) => {
    for (const [device, share] of figures.splits[op].shares) add(device, figures.work(op) * share);
  });
  // If there are very many devices, neighbours share a piece.
  const group = Math.ceil(cluster.devices.length / BAR.most);
  const pieces = new Map();
  for (const [device, share] of shares) {
    const first = Math.floor(device / group) * group;
    pieces.set(first, (pieces.get(first) ?? 0) + share);
  }
  return [...pieces]
    .sort(([a], [b]) => a - b)
    .map(([d, share]) => ({ share, fills: [fillFor(view, d, () => deviceStyle(cluster, d))] }));
}

// The name of a fill; its pattern is defined in the picture when it is first used.
function fillFor(view, name, styleOf) {
  if (!view.fills.has(name)) {
    const style = styleOf(name);
    const id = `graph-fill-${view.fills.size}`;
    if (style.pattern !== "solid") view.defs.append(svgPattern(id, style));
    const paint = style.pattern === "solid" ? css(style.colour) : `url(#${id})`;
    view.fills.set(name, { paint, colour: style.colour });
  }
  return name;
}

function svgPattern(id, { colour, pattern }) {
  const href = patternTile(colour, pattern).toDataURL();
  return svg(
    "pattern",
    { id, width: 60, height: 60, patternUnits: "userSpaceOnUse" },
    svg("image", { href, width: 60, height: 60 }),
  );
}

// ---- widths of texts

const textMeasure = { context: null, widths: new Map() };

function textWidth(text, size, weight = 400) {
  if (!text) return 0;
  textMeasure.context ??= el("canvas").getContext("2d");
  const { context, widths } = textMeasure;
  const key = `${weight} ${size} ${text}`;
  if (!widths.has(key)) {
    context.font = `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
    widths.set(key, context.measureText(text).width);
  }
  return widths.get(key);
}

// As much of a text as fits into `room` pixels.
function fitText(text, room, size, weight = 400) {
  let most = Math.min(visible(text).length, 120);
  let shown = cut(text, most);
  while (most > 2 && textWidth(shown, size, weight) > room) {
    most -= 1;
    shown = cut(text, most);
  }
  return shown;
}
