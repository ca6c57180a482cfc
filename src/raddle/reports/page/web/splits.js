// Computes how operators are split: turns tilings (cuts and devices, or boxes) into letters, devices' shares and cells.
// A tiling is {cuts, devices, copies}: the cut points of each letter, and the devices of the boxes between them in
// row-major order, the copies of a box one after the other; or {boxes: [[lower corner, upper corner, device]]}.
// For example, {cuts: [[0, 4, 8], [0, 3]], devices: [0, 1], copies: 1} halves the first of two letters.
// A cell is a box between neighbouring cuts. d: the number of a letter in op.dims, [[letter, size]].

// For each kind of split: a hue (null: a colour of the theme), a pattern and a text.
const SPLIT_STYLES = {
  sample: { hue: 0, pattern: "solid", text: "samples" },
  parameter: { hue: 1, pattern: "rising", text: "parameters" },
  attribute: { hue: 2, pattern: "rows", text: "attributes" },
  reduction: { hue: 3, pattern: "dots", text: "reduction" },
  copies: { hue: null, pattern: "crossed", text: "copies" },
  whole: { hue: null, pattern: "solid", text: "one device" },
};

const SPLIT_KINDS = { S: "sample", P: "parameter", A: "attribute", R: "reduction" };

// Most cells of a tiling that are drawn. In finer tilings, the letters with the fewest parts are not shown.
const MOST_CELLS = 50000;

function splitStyle(name) {
  const { hue, pattern } = SPLIT_STYLES[name];
  return { colour: hue === null ? themeColour("--wait") : rgb(HUES[hue]), pattern };
}

// For each operator: parts [[letter, number, kind]], copies, kinds, shares by device, and a short text.
function methodSplits(data, method) {
  if (!methodSplits.cache.has(method)) methodSplits.cache.set(method, findSplits(data, method));
  return methodSplits.cache.get(method);
}
methodSplits.cache = new WeakMap();

function findSplits(data, { tiles }) {
  const shares = tiles.tilings.map(deviceShares);
  return data.network.ops.map((op, i) => {
    const tiling = tiles.tilings[tiles.tiling_of[i]];
    const parts = splitParts(op, tiling);
    const copies = tiling.copies ?? 1;
    const opShares = shares[tiles.tiling_of[i]];
    const kinds = [...new Set(parts.map((part) => part[2]))];
    if (copies > 1) kinds.push("copies");
    if (!kinds.length) kinds.push("whole");
    const text = splitText(tiling, parts, copies, opShares);
    return { parts, copies, kinds, shares: opShares, text };
  });
}

function splitText({ boxes }, parts, copies, shares) {
  if (shares.size === 1) return `@${[...shares.keys()]}`;
  if (boxes) return `${boxes.length} boxes ${parts.map(([letter]) => letter).join(" ")}`;
  const texts = parts.map(([letter, count]) => `${letter}/${count}`);
  if (copies > 1) texts.push(`×${copies}`);
  return texts.join(" ");
}

function splitParts(op, tiling) {
  return tilingCuts(tiling, op.dims)
    .map((cuts, d) => [op.dims[d][0], cuts.length - 1, dimKind(op, d)])
    .filter(([, count]) => count > 1);
}

// A sum over the batch counts as a split of samples.
function dimKind({ dims, kinds }, d) {
  const overBatch = kinds[d] === "R" && dims[d][0] === "n" && !kinds.includes("S");
  return overBatch ? "sample" : (SPLIT_KINDS[kinds[d]] ?? "attribute");
}

function tilingCuts({ cuts, boxes }, dims) {
  if (cuts) return cuts;
  return dims.map((_, d) => {
    const points = new Set(boxes.flatMap(([lo, hi]) => [lo[d], hi[d]]));
    return [...points].sort((a, b) => a - b);
  });
}

// Device -> its share of the computed elements, including copies; sorted by device.
function deviceShares({ cuts, devices, copies, boxes }) {
  const volumes = new Map();
  const add = (device, volume) => volumes.set(device, (volumes.get(device) ?? 0) + volume);
  if (boxes) {
    const volume = (lo, hi) => lo.reduce((size, from, d) => size * (hi[d] - from), 1);
    for (const [lo, hi, device] of boxes) add(device, volume(lo, hi));
  } else {
    let sizes = [1];
    for (const points of cuts) {
      const lengths = points.slice(1).map((to, i) => to - points[i]);
      sizes = sizes.flatMap((size) => lengths.map((length) => size * length));
    }
    devices.forEach((device, i) => add(device, sizes[Math.floor(i / copies)]));
  }
  const all = [...volumes.values()].reduce((sum, volume) => sum + volume, 0) || 1;
  const sorted = [...volumes].sort(([a], [b]) => a - b);
  return new Map(sorted.map(([device, volume]) => [device, volume / all]));
}

// The letters that are split (the one with the most parts first), their cuts, and the devices of every cell.
function tilingCells(op, tiling) {
  const cuts = tilingCuts(tiling, op.dims);
  const split = cuts.map((_, d) => d).filter((d) => cuts[d].length > 2);
  // With equal numbers of parts, summed letters go down, and the later letter goes across (h down, w across).
  const summed = (d) => (op.kinds[d] === "R" ? 1 : 0);
  split.sort((a, b) => cuts[b].length - cuts[a].length || summed(a) - summed(b) || b - a);
  const shownDims = [];
  let count = 1;
  for (const d of split) {
    count *= cuts[d].length - 1;
    if (count <= MOST_CELLS) shownDims.push(d);
  }
  const cells = new Map();
  for (const { ranges, device } of tilesOf(tiling, cuts)) {
    for (const index of indices(shownDims.map((d) => intervalsWithin(cuts[d], ranges[d])))) {
      const key = index.join(" ");
      if (!cells.has(key)) cells.set(key, { index, devices: [] });
      cells.get(key).devices.push(device);
    }
  }
  return { dims: shownDims, cuts: shownDims.map((d) => cuts[d]), cells: [...cells.values()] };
}

// Every tile as its ranges [from, to], one for each letter, and its device.
function tilesOf({ cuts: given, devices, copies, boxes }, cuts) {
  if (boxes) {
    return boxes.map(([lo, hi, device]) => ({ ranges: lo.map((from, d) => [from, hi[d]]), device }));
  }
  const ranges = indices(given.map((points) => points.slice(1).map((_, i) => i)));
  return devices.map((device, i) => ({
    ranges: ranges[Math.floor(i / copies)].map((at, d) => [cuts[d][at], cuts[d][at + 1]]),
    device,
  }));
}

// The indices of the intervals between `points` that lie within [from, to].
function intervalsWithin(points, [from, to]) {
  return points.slice(1).flatMap((end, i) => (points[i] >= from && end <= to ? [i] : []));
}

// The Cartesian product of the lists, row-major.
function indices(lists) {
  return lists.reduce((all, list) => all.flatMap((index) => list.map((at) => [...index, at])), [[]]);
}
