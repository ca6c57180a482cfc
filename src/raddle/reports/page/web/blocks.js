// Folds operators into blocks, so that a network of thousands of operators is drawn as a few nodes. A block is an
// interval of the order in which operators run, so the edges between blocks have no cycle. Blocks nest like modules;
// repeated blocks are shown once, with "× N".

const BLOCK_UNIT = 12; // most operators of a layer and those that follow it; such a block is not opened at first
const BLOCK_REPEATED = 12; // fewest operators of a repetition; a smaller one is shown in full
const BLOCK_PERIOD = 64; // most siblings of one round of a repetition
const BLOCK_CHILDREN = 60; // most children of a block; if there are more, they are put into groups

// A block has lo, hi (operators), label, children (null: one operator), repeat (number of rounds, or 0), and
// unit (whether it is a layer).
function blockTree(network) {
  const builder = {
    ops: network.ops,
    paths: network.ops.map(blockPath),
    // equal numbers for operators of the same kind and sizes; a dim is [letter, size]
    signatures: internAll(network.ops.map((op) => `${op.kind} ${op.dims.map((dim) => dim[1])}`)),
    inputs: network.ops.map(() => []), // by operator: the producers of the values that it reads
  };
  for (const [producer, consumer] of network.edges) builder.inputs[consumer].push(producer);
  const children = blockSiblings(builder, 0, network.ops.length, 0);
  const root = { lo: 0, hi: network.ops.length, label: "", children, repeat: 0, unit: false };
  return numbered(root);
}

function numbered(root) {
  const blocks = [];
  const visit = (block, parent) => {
    block.parent = parent;
    block.id = blocks.push(block) - 1;
    for (const child of block.children ?? []) visit(child, block);
  };
  visit(root, null);
  return { root, blocks };
}

// A number for each text; equal texts have the same number.
function internAll(texts) {
  const numbers = new Map();
  return texts.map((text) => numbers.get(text) ?? (numbers.set(text, numbers.size), numbers.size - 1));
}

// The path of an operator's module. Operators of a composite (a loss, a softmax) are one level further down.
function blockPath({ module, layer, composite }) {
  const path = module === "" ? [] : module.split(".");
  const within = layer.startsWith(`${module}.`) ? layer.slice(module.length + 1) : layer;
  if (composite && layer !== module) path.push(within);
  return path;
}

// layer1.0.conv1 -> "conv1", but layer1.0 -> "layer1.0": a number alone says nothing.
function shortName(parts) {
  const last = parts.at(-1) || "·";
  return /^\d+$/.test(last) && parts.length > 1 ? `${parts.at(-2)}.${last}` : last;
}

// The blocks of operators lo to hi - 1, whose module paths are equal up to `depth`.
function blockSiblings(builder, lo, hi, depth) {
  const siblings = [];
  for (let at = lo; at < hi; ) {
    const part = builder.paths[at][depth];
    let end = at + 1;
    while (part !== undefined && end < hi && builder.paths[end][depth] === part) end += 1;
    siblings.push(blockOf(builder, at, end, depth));
    at = end;
  }
  return grouped(builder, repeated(builder, folded(builder, siblings)));
}

function blockOf(builder, lo, hi, depth) {
  if (hi - lo === 1) return leafBlock(builder, lo);
  const label = shortName(builder.paths[lo].slice(0, depth + 1));
  const children = blockSiblings(builder, lo, hi, depth + 1);
  if (children.length > 1) return { lo, hi, label, children, repeat: 0, unit: isUnit(builder, lo, hi) };
  // A module with a single block is that block, with the module's name; a repetition keeps its own name.
  return children[0].repeat ? children[0] : { ...children[0], label };
}

// A layer has few operators, at most one of them with weights.
function isUnit({ ops }, lo, hi) {
  return hi - lo <= BLOCK_UNIT && ops.slice(lo, hi).filter(hasWeights).length <= 1;
}

// Convolutions and matrix products: operators with parameters and with a sum over a dimension (kind R).
const hasWeights = ({ params, kinds }) => params > 0 && kinds.includes("R");

function leafBlock(builder, at) {
  const label = shortName(builder.ops[at].name.split("."));
  return { lo: at, hi: at + 1, label, children: null, repeat: 0, unit: true };
}

// Pointwise operators and batch norms join the layer that they follow.
function folded(builder, blocks) {
  const joinedBlocks = [];
  for (const block of blocks) {
    const last = joinedBlocks.at(-1);
    if (!last || !follows(builder, block, last)) joinedBlocks.push(block);
    else {
      const children = last.joined ? [...last.children, block] : [last, block];
      joinedBlocks[joinedBlocks.length - 1] = { ...last, hi: block.hi, children, unit: true, joined: true };
    }
  }
  return joinedBlocks;
}

// Whether a block joins the layer `last` before it: it reads the layer and nothing before the layer, and is pointwise
// or, after an operator with weights, a batch norm.
function follows({ ops, inputs }, block, last) {
  if (block.hi - last.lo > BLOCK_UNIT || block.repeat || !last.unit) return false;
  const blockOps = ops.slice(block.lo, block.hi);
  const from = inputs.slice(block.lo, block.hi).flat();
  if (!from.some((p) => p >= last.lo && p < last.hi) || from.some((p) => p < last.lo)) return false;
  if (blockOps.every(isPointwise)) return true;
  return blockOps.every((op) => op.composite === "batch_norm" || isPointwise(op))
    && ops.slice(last.lo, last.hi).some(hasWeights);
}

// "y0[n c] = x0[n c], x1[]" is pointwise: only letters in the brackets, and no sum.
function isPointwise({ line }) {
  const places = [...line.matchAll(/\[([^\]]*)\]/g)];
  return line.includes(" = ") && places.every(([, place]) => /^[A-Za-z ]*$/.test(place));
}

// Consecutive rounds of equal structure become one block; the repetition with most operators is preferred.
function repeated(builder, blocks) {
  const same = internAll(blocks.map(({ lo, hi }) => builder.signatures.slice(lo, hi).join(",")));
  const repeatedBlocks = [];
  for (let at = 0; at < blocks.length; ) {
    const { period, rounds } = longestRepeat(blocks, same, at);
    const repetition = blocks.slice(at, at + period * rounds);
    repeatedBlocks.push(rounds ? repeatBlock(builder, repetition, period, rounds) : blocks[at]);
    at += Math.max(1, period * rounds);
  }
  return repeatedBlocks;
}

// The repetition that begins at block `at`: `rounds` times `period` blocks. same: equal numbers for equal blocks.
function longestRepeat(blocks, same, at) {
  let best = { period: 1, rounds: 0 };
  const most = Math.min(BLOCK_PERIOD, Math.floor((blocks.length - at) / 2));
  for (let period = 1; period <= most; period++) {
    let end = at + period;
    while (end < blocks.length && same[end] === same[end - period]) end += 1;
    const rounds = Math.floor((end - at) / period);
    // Two equal layers may be parallel branches; three of them, or two larger blocks, are a repetition.
    const fewest = period === 1 && !blocks[at].unit ? 2 : 3;
    if (rounds < fewest || period * rounds <= best.period * best.rounds) continue;
    const operators = blocks[at + period * rounds - 1].hi - blocks[at].lo;
    if (operators >= BLOCK_REPEATED) best = { period, rounds };
  }
  return best;
}

function repeatBlock(builder, blocks, period, rounds) {
  const children = [];
  for (let i = 0; i < blocks.length; i += period) {
    const round = blocks.slice(i, i + period);
    children.push(period === 1 ? round[0] : groupBlock(builder, round));
  }
  return { ...groupBlock(builder, children), repeat: rounds, unit: false };
}

function groupBlock(builder, children) {
  const [first, last] = [children[0], children.at(-1)];
  const [lo, hi] = [first.lo, last.hi];
  const ends = [first.ends?.[0] ?? first.label, last.ends?.[1] ?? last.label];
  return { lo, hi, label: fromTo(...ends), ends, children, repeat: 0, unit: isUnit(builder, lo, hi) };
}

// layer1.1 and layer1.2 -> "layer1.1–2": the common beginning is written once.
function fromTo(first, last) {
  let same = 0;
  while (same < first.length && first[same] === last[same]) same += 1;
  while (same && /\d/.test(first[same - 1])) same -= 1;
  const ending = last.slice(same);
  return same > 1 && ending ? `${first}–${ending.replace(/^_/, "")}` : `${first}–${last}`;
}

// Puts too many siblings into groups of consecutive blocks.
function grouped(builder, blocks) {
  if (blocks.length <= BLOCK_CHILDREN) return blocks;
  const size = Math.ceil(Math.sqrt(blocks.length));
  const groups = [];
  for (let i = 0; i < blocks.length; i += size) {
    const group = blocks.slice(i, i + size);
    groups.push(group.length > 1 ? groupBlock(builder, group) : group[0]);
  }
  return groups;
}

// The blocks that are open at first. Layers are closed; repetitions are open only if few other blocks are visible.
function firstOpen(root, most) {
  const modules = openBlocks(root, most, (block) => !block.unit && !block.repeat);
  if (modules.count * 2 > most) return modules.open;
  return openBlocks(root, most, (block) => !block.unit && !block.parent.repeat).open;
}

// Opens blocks, the largest first, while at most `most` are visible. Returns the open blocks, how many blocks are
// visible (`count`), and how many had to stay closed (`closed`).
function openBlocks(root, most, mayOpen = () => true) {
  const open = new Set([root]);
  const waiting = [...root.children];
  let count = waiting.length;
  let closed = 0;
  while (waiting.length) {
    waiting.sort((a, b) => b.hi - b.lo - (a.hi - a.lo) || a.lo - b.lo);
    const block = waiting.shift();
    if (!block.children || !mayOpen(block)) continue;
    if (count + block.children.length - 1 > most) closed += 1;
    else {
      open.add(block);
      count += block.children.length - 1;
      waiting.push(...block.children);
    }
  }
  return { open, count, closed };
}
