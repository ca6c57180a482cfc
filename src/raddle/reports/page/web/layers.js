// Lays out a drawing of nested blocks in layers, from left to right, broken into rows like lines of text. An open block
// is a frame with one entry and one exit, so every edge joins siblings, or a child and its frame.

// A block is an interval of operators, as in blocks.js. A layer is a column of the drawing (not a layer of the model).
// l: layer. The items of a layer are blocks, and lanes in which edges pass. inY, outY: where edges enter and leave.

// Pixels: between columns, between the items of a column, height of a lane, between rows; margins of a frame at the
// sides, at the top with its title, at the bottom.
const SPACE = { across: 22, down: 12, lane: 10, row: 18, side: 18, head: 26, foot: 12 };
const MOST_IN_LAYER = 8; // nodes
// In place of the number of a child: an edge enters the frame from outside, or leaves it.
const WAY_IN = -1;
const WAY_OUT = -2;

// A node has block, x, y, width, height, inY and outY (where edges enter and leave). A frame also has `nodes` and
// `edges` ({values, path}), with positions relative to the frame.
// open: the set of blocks drawn as frames; width: of the drawing; size: of a node. Returns the frame of the root.
function layOut(network, root, open, width, size) {
  return frameOf(root, { open, size, edges: blockEdges(network, root, open) }, width);
}

// Eight nodes fit side by side into a frame on a wide screen; two into two nested frames on a phone.
const nodeSize = (width) => ({ width: width < 480 ? 112 : 123, height: 46 });

// Block -> edges between its children: {from, to, values}; from and to are indices of children, or WAY_IN, WAY_OUT.
function blockEdges(network, root, open) {
  // By operator: the open blocks around it, from the root inwards, each with the index `at` of the child inside.
  const chains = new Array(network.ops.length);
  const visit = (block, above) => {
    if (!open.has(block)) {
      for (let op = block.lo; op < block.hi; op++) chains[op] = above;
    } else block.children.forEach((child, at) => visit(child, [...above, { block, at }]));
  };
  visit(root, []);
  const edges = new Map([...open].map((block) => [block, new Map()]));
  const add = (block, from, to, value) => {
    const key = `${from} ${to}`;
    const joined = edges.get(block);
    if (!joined.has(key)) joined.set(key, { from, to, values: new Set() });
    joined.get(key).values.add(value);
  };
  for (const [producer, consumer, value] of network.edges) {
    const [p, c] = [chains[producer], chains[consumer]];
    let depth = 0;
    while (depth < p.length && depth < c.length && p[depth].block === c[depth].block
      && p[depth].at === c[depth].at) depth += 1;
    if (depth === p.length || depth === c.length) continue;
    add(p[depth].block, p[depth].at, c[depth].at, value);
    for (const { block, at } of p.slice(depth + 1)) add(block, at, WAY_OUT, value);
    for (const { block, at } of c.slice(depth + 1)) add(block, WAY_IN, at, value);
  }
  return edges;
}

// picture: what is the same for all frames, {open, size, edges} (see layOut).
function frameOf(block, picture, width) {
  const { size } = picture;
  const inside = Math.max(size.width, width - 2 * SPACE.side);
  const nodes = block.children.map((child) =>
    picture.open.has(child)
      ? frameOf(child, picture, inside)
      : { block: child, ...size, inY: size.height / 2, outY: size.height / 2 },
  );
  const edges = [...picture.edges.get(block).values()];
  const layers = filledLayers(nodes, edges);
  ordered(layers);
  const rows = placedRows(layers, inside, block.parent ? SPACE.head : SPACE.foot);
  return framed(block, nodes, edges, layers, rows);
}

// ---- layers

// The layers with their items: nodes, and lanes for the edges that pass. ways: by source, the edges that leave it.
function filledLayers(nodes, edges) {
  const at = layerNumbers(nodes.length, edges);
  const layers = Array.from({ length: Math.max(...at) + 1 }, () => []);
  const items = nodes.map((node, i) => newItem(at[i], node));
  items.forEach((item) => layers[item.layer].push(item));
  const ways = new Map();
  for (const edge of edges) {
    if (!ways.has(edge.from)) ways.set(edge.from, []);
    ways.get(edge.from).push(edge);
  }
  for (const [from, out] of ways) addLane(layers, items, from, out);
  return layers;
}

const newItem = (layer, node = null) => ({ layer, node, y: 0, before: [], after: [], ...itemSize(node) });

const itemSize = (node) =>
  node
    ? { width: node.width, height: node.height, inY: node.inY, outY: node.outY }
    : { width: 0, height: SPACE.lane, inY: SPACE.lane / 2, outY: SPACE.lane / 2 };

// Nodes are in the earliest layer after their producers that is not full. A node without producers is moved to the
// layer before its first consumer. at: by node, its layer; full: by layer, how many nodes it has; fed: the nodes that
// an edge from outside of the frame enters.
function layerNumbers(count, edges) {
  const [from, to] = [Array.from({ length: count }, () => []), Array.from({ length: count }, () => [])];
  for (const edge of edges) {
    if (edge.from >= 0 && edge.to >= 0) {
      to[edge.from].push(edge.to);
      from[edge.to].push(edge.from);
    }
  }
  const fed = new Set(edges.filter((edge) => edge.from === WAY_IN).map((edge) => edge.to));
  const [at, full] = [new Array(count).fill(0), []];
  for (let i = 0; i < count; i++) {
    const free = !from[i].length && !fed.has(i);
    let layer = free && !to[i].length && i ? at[i - 1] : Math.max(0, ...from[i].map((p) => at[p] + 1));
    while (full[layer] >= MOST_IN_LAYER) layer += 1;
    at[i] = layer;
    full[layer] = (full[layer] ?? 0) + 1;
  }
  for (let i = count - 1; i >= 0; i--) {
    if (from[i].length || fed.has(i) || !to[i].length) continue;
    const late = Math.min(...to[i].map((c) => at[c])) - 1;
    if (late > at[i] && full[late] < MOST_IN_LAYER) {
      full[at[i]] -= 1;
      full[late] += 1;
      at[i] = late;
    }
  }
  return closedUp(at);
}

// Renumbers layers so that none is empty.
function closedUp(at) {
  const used = [...new Set(at)].sort((a, b) => a - b);
  const number = new Map(used.map((layer, i) => [layer, i]));
  return at.map((layer) => number.get(layer));
}

// Edges from one item to several others share one lane as far as possible.
function addLane(layers, items, from, edges) {
  const source = from === WAY_IN ? null : items[from];
  const first = source ? source.layer + 1 : 0;
  const target = (edge) => (edge.to === WAY_OUT ? layers.length : items[edge.to].layer);
  const lane = [];
  const last = Math.max(...edges.map(target));
  for (let l = first; l < last; l++) {
    const item = newItem(l);
    joinItems(lane.at(-1) ?? source, item);
    layers[l].push(item);
    lane.push(item);
  }
  for (const edge of edges) {
    const passed = lane.slice(0, target(edge) - first);
    edge.items = [source, ...passed, edge.to === WAY_OUT ? null : items[edge.to]];
    if (edge.to !== WAY_OUT) joinItems(passed.at(-1) ?? source, items[edge.to]);
  }
}

function joinItems(a, b) {
  if (!a || !b) return;
  a.after.push(b);
  b.before.push(a);
}

// ---- the order within layers: in sweeps in both directions, items are sorted by the mean position of their
// neighbours (barycentre heuristic of Sugiyama et al.); the order with the fewest crossings of edges wins

function ordered(layers) {
  const number = (layer) => layer.forEach((item, i) => (item.order = i));
  layers.forEach(number);
  let best = { crossings: allCrossings(layers), orders: layers.map((layer) => [...layer]) };
  for (let sweep = 0; sweep < 6 && best.crossings; sweep++) {
    const forth = sweep % 2 === 0;
    for (const layer of forth ? layers : [...layers].reverse()) {
      const near = (item) => (forth ? item.before : item.after);
      const centre = new Map(layer.map((item) => [item, barycentre(near(item), item.order)]));
      layer.sort((a, b) => centre.get(a) - centre.get(b));
      number(layer);
    }
    const crossings = allCrossings(layers);
    if (crossings < best.crossings) best = { crossings, orders: layers.map((layer) => [...layer]) };
  }
  best.orders.forEach((order, l) => {
    layers[l] = order;
    number(order);
  });
}

const barycentre = (items, otherwise) =>
  items.length ? items.reduce((sum, item) => sum + item.order, 0) / items.length : otherwise;

function allCrossings(layers) {
  let count = 0;
  for (const layer of layers) {
    const ends = [];
    for (const item of layer) {
      const orders = item.after.map((next) => next.order);
      for (const end of orders) for (const other of ends) if (other > end) count += 1;
      ends.push(...orders);
    }
  }
  return count;
}

// ---- rows, like lines of text: as few as possible, broken where few edges pass

function placedRows(layers, inside, top) {
  const widths = layers.map((layer) => Math.max(...layer.map((item) => item.width)));
  const passing = layers.map((layer) => layer.filter((item) => item.before.length || !item.node).length);
  const rows = brokenRows(widths, passing, inside);
  let y = top;
  for (const row of rows) {
    row.top = y;
    const rowLayers = layers.slice(row.from, row.to);
    row.height = placedVertically(rowLayers);
    let x = SPACE.side;
    widths.slice(row.from, row.to).forEach((width, i) => {
      for (const item of rowLayers[i]) {
        item.y += y;
        item.x = x + (item.node ? (width - item.width) / 2 : 0);
        item.row = row;
        item.column = { left: x, right: x + width };
      }
      x += width + SPACE.across;
    });
    row.right = x - SPACE.across;
    y += row.height + SPACE.row;
    y += SPACE.lane * Math.max(0, rowLayers.at(-1).filter((item) => item.after.length).length - 1);
  }
  return rows;
}

// Dynamic programming over the layers: best[to] is the cheapest way to break layers 0 to `to` - 1 into rows.
// passing: for each layer, how many edges enter it; inside: the width of a row. A row costs 1, and each edge beyond the
// first that continues in the next row 0.2.
function brokenRows(widths, passing, inside) {
  const best = [{ cost: 0, from: 0 }];
  for (let to = 1; to <= widths.length; to++) {
    best[to] = { cost: Infinity, from: to - 1 };
    for (let from = to - 1, width = 0; from >= 0; from--) {
      width += widths[from] + (from < to - 1 ? SPACE.across : 0);
      if (width > inside && from < to - 1) break;
      const cost = best[from].cost + 1 + 0.2 * Math.max(0, (passing[to] ?? 1) - 1);
      if (cost < best[to].cost) best[to] = { cost, from };
    }
  }
  const rows = [];
  for (let to = widths.length; to > 0; to = best[to].from) rows.unshift({ from: best[to].from, to });
  return rows;
}

// Places every item as near to the ends of its edges as order and distances allow. Returns the row's height.
function placedVertically(layers) {
  for (const layer of layers) stack(layer, layer.map(() => 0));
  const inRow = new Set(layers.flat());
  for (const forth of [true, false, true, false, true]) {
    for (const layer of forth ? layers : [...layers].reverse()) {
      stack(layer, layer.map((item) => wantedY(item, forth, inRow)));
    }
  }
  const items = layers.flat();
  const top = Math.min(...items.map((item) => item.y));
  for (const item of items) item.y -= top;
  return Math.max(...items.map((item) => item.y + item.height));
}

function wantedY(item, forth, inRow) {
  const near = (forth ? item.before : item.after).filter((other) => inRow.has(other));
  if (!near.length) return item.y;
  const ends = near.map((other) => other.y + (forth ? other.outY : other.inY)).sort((a, b) => a - b);
  const middle = (ends[Math.floor((ends.length - 1) / 2)] + ends[Math.ceil((ends.length - 1) / 2)]) / 2;
  return middle - (forth ? item.inY : item.outY);
}

// Least squares with a fixed order (isotonic regression): neighbours that would overlap are pooled, and share
// their mean.
function stack(layer, wanted) {
  const pools = [];
  let offset = 0;
  layer.forEach((item, i) => {
    item.offset = offset;
    offset += item.height + (item.node ? SPACE.down : SPACE.down / 2);
    pools.push({ items: [item], sum: wanted[i] - item.offset });
    while (pools.length > 1 && meanOf(pools.at(-2)) >= meanOf(pools.at(-1))) {
      const last = pools.pop();
      pools.at(-1).items.push(...last.items);
      pools.at(-1).sum += last.sum;
    }
  });
  for (const pool of pools) for (const item of pool.items) item.y = meanOf(pool) + item.offset;
}

const meanOf = ({ sum, items }) => sum / items.length;

// ---- the frame around the nodes, and the paths of edges

// The frame enters and leaves at the mean height of the items that its outer edges meet; if there are none, in the
// middle of the first and of the last row.
function framed(block, nodes, edges, layers, rows) {
  const width = Math.max(...rows.map((row) => row.right)) + SPACE.side;
  const bottom = rows.at(-1).top + rows.at(-1).height;
  const frame = { block, width, height: bottom + SPACE.foot };
  for (const item of layers.flat()) if (item.node) Object.assign(item.node, { x: item.x, y: item.y });
  const ends = (way, one, port) => {
    const met = edges.filter((edge) => edge[way] < 0).map((edge) => edge.items.at(one));
    return met.length ? met.map((item) => item.y + item[port]) : null;
  };
  const mid = (row) => [row.top + row.height / 2];
  frame.inY = meanNumber(ends("from", 1, "inY") ?? mid(rows[0]));
  frame.outY = meanNumber(ends("to", -2, "outY") ?? mid(rows.at(-1)));
  const turns = rowTurns(edges);
  frame.edges = edges.map(({ values, items }) => ({ values, path: edgePath(items, frame, turns) }));
  frame.nodes = nodes;
  return frame;
}

const meanNumber = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;

// The turns of edges that continue in the next row. The topmost edge turns outermost at the right and innermost at
// the left, in the lowest line between the rows, so that edges in the same order do not cross.
function rowTurns(edges) {
  const turnsByRow = new Map();
  for (const { items } of edges) {
    for (let i = 1; i < items.length; i++) {
      const [a, b] = [items[i - 1], items[i]];
      if (!a || !b || a.row === b.row) continue;
      if (!turnsByRow.has(a.row)) turnsByRow.set(a.row, new Map());
      turnsByRow.get(a.row).set(a, Math.min(b.y + b.inY, turnsByRow.get(a.row).get(a) ?? Infinity));
    }
  }
  for (const turns of turnsByRow.values()) {
    const sources = [...turns.keys()].sort((a, b) => b.y - a.y);
    sources.forEach((item, i) => turns.set(item, { at: i, of: sources.length }));
  }
  return turnsByRow;
}

function edgePath(items, frame, turns) {
  const [first, last] = [items[0], items.at(-1)];
  const path = [first ? `M${first.x + first.width} ${first.y + first.outY}` : `M0 ${frame.inY}`];
  for (let i = 1; i < items.length; i++) {
    const [a, b] = [items[i - 1], items[i]];
    if (a && b && a.row !== b.row) path.push(turnPath(a, b, turns.get(a.row).get(a)));
    else path.push(stepPath(a, b, frame));
    if (b && i < items.length - 1) path.push(`H${b.column.right}`);
  }
  return path.join("");
}

// The path between two columns of a row: straight to the end of the column, then a curve through the gap. a, b: items;
// null for the entry (a) or the exit (b) of the frame.
function stepPath(a, b, frame) {
  const from = a ? [a.column.right, a.y + a.outY] : [0, frame.inY];
  const to = b ? [b.column.left, b.y + b.inY] : [frame.width, frame.outY];
  const middle = (from[0] + to[0]) / 2;
  const curve = `C${middle} ${from[1]} ${middle} ${to[1]} ${to[0]} ${to[1]}`;
  return `${a ? `H${from[0]}` : ""}${curve}${b ? `H${b.x}` : ""}`;
}

// The path from the end of one row to the beginning of the next: down at the right, back to the left between the rows.
// `at`: the edge's number among the `of` edges that turn there.
function turnPath(a, b, { at, of }) {
  const step = Math.min(7, (SPACE.side - 4) / of);
  const right = a.row.right + 4 + at * step;
  const left = SPACE.side - 4 - (of - 1 - at) * step;
  const line = a.row.top + a.row.height + SPACE.row / 2 + at * SPACE.lane;
  return roundedPath([
    [right, a.y + a.outY], [right, line], [left, line], [left, b.y + b.inY], [b.x, b.y + b.inY],
  ]);
}

// Straight lines from point to point, with round corners.
function roundedPath(points, radius = 5) {
  const text = [];
  for (let i = 0; i < points.length - 1; i++) {
    const [[x, y], [nextX, nextY]] = [points[i], points[i + 1]];
    const length = Math.hypot(nextX - x, nextY - y) || 1;
    const [dx, dy] = [(nextX - x) / length, (nextY - y) / length];
    const before = points[i - 1];
    const r = Math.min(radius, length / 2, before ? Math.hypot(x - before[0], y - before[1]) / 2 : radius);
    if (before) {
      const was = Math.hypot(x - before[0], y - before[1]) || 1;
      text.push(`L${x - ((x - before[0]) / was) * r} ${y - ((y - before[1]) / was) * r}`);
    } else text.push(`L${x - r} ${y}`);
    text.push(`Q${x} ${y} ${x + dx * r} ${y + dy * r}`);
  }
  const end = points.at(-1);
  return `${text.join("")}L${end[0]} ${end[1]}`;
}
