// Operators folded into blocks. A block is an interval of the order in which operators run, so that edges
// between blocks never make a circle. Blocks nest as modules do; what repeats stands once, with "× N".

const BLOCK_UNIT = 12; // operators that are still a layer with what follows it, not opened by themselves
const BLOCK_REPEATED = 12; // operators that must lie in a repetition, or it is shown in full
const BLOCK_PERIOD = 64; // siblings that may make one round of a repetition
const BLOCK_CHILDREN = 60; // of a block without structure, more are put in groups

// A block: lo, hi (operators), label, children (null: one operator), repeat (how many rounds, or 0), unit.
function blockTree(network) {
  const builder = {
    ops: network.ops,
    paths: network.ops.map(blockPath),
    signatures: internAll(network.ops.map((op) => `${op.kind} ${op.dims.map((dim) => dim[1])}`)),
    inputs: network.ops.map(() => []),
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

function internAll(texts) {
  const known = new Map();
  return texts.map((text) => known.get(text) ?? (known.set(text, known.size), known.size - 1));
}

// A module's path; operators that were one (a loss, a softmax) stand one level further down.
function blockPath({ module, layer, composite }) {
  const path = module === "" ? [] : module.split(".");
  const within = layer.startsWith(`${module}.`) ? layer.slice(module.length + 1) : layer;
  if (composite && layer !== module) path.push(within);
  return path;
}

// "conv1" of layer1.0.conv1, but "layer1.0" of layer1.0: a number alone says nothing.
function shortName(parts) {
  const last = parts.at(-1) || "·";
  return /^\d+$/.test(last) && parts.length > 1 ? `${parts.at(-2)}.${last}` : last;
}

function blockSiblings(builder, lo, hi, depth) {
  const found = [];
  for (let at = lo; at < hi; ) {
    const part = builder.paths[at][depth];
    let end = at + 1;
    while (part !== undefined && end < hi && builder.paths[end][depth] === part) end += 1;
    found.push(blockOf(builder, at, end, depth));
    at = end;
  }
  return grouped(builder, repeated(builder, folded(builder, found)));
}

function blockOf(builder, lo, hi, depth) {
  if (hi - lo === 1) return leafBlock(builder, lo);
  const label = shortName(builder.paths[lo].slice(0, depth + 1));
  const children = blockSiblings(builder, lo, hi, depth + 1);
  if (children.length > 1) return { lo, hi, label, children, repeat: 0, unit: isUnit(builder, lo, hi) };
  // A module around one block is that block; only a repetition says more with its own name.
  return children[0].repeat ? children[0] : { ...children[0], label };
}

// A layer: few operators, at most one of them with weights.
function isUnit({ ops }, lo, hi) {
  return hi - lo <= BLOCK_UNIT && ops.slice(lo, hi).filter(hasWeights).length <= 1;
}

const hasWeights = ({ params, kinds }) => params > 0 && kinds.includes("R");

function leafBlock(builder, at) {
  const label = shortName(builder.ops[at].name.split("."));
  return { lo: at, hi: at + 1, label, children: null, repeat: 0, unit: true };
}

// Pointwise operators and batch norms join the layer that they follow.
function folded(builder, blocks) {
  const found = [];
  for (const block of blocks) {
    const last = found.at(-1);
    if (!last || !follows(builder, block, last)) found.push(block);
    else {
      const children = last.joined ? [...last.children, block] : [last, block];
      found[found.length - 1] = { ...last, hi: block.hi, children, unit: true, joined: true };
    }
  }
  return found;
}

function follows({ ops, inputs }, block, last) {
  if (block.hi - last.lo > BLOCK_UNIT || block.repeat || !last.unit) return false;
  const own = ops.slice(block.lo, block.hi);
  const from = inputs.slice(block.lo, block.hi).flat();
  if (!from.some((p) => p >= last.lo && p < last.hi) || from.some((p) => p < last.lo)) return false;
  if (own.every(isPointwise)) return true;
  return own.every((op) => op.composite === "batch_norm" || isPointwise(op))
    && ops.slice(last.lo, last.hi).some(hasWeights);
}

// "y0[n c] = x0[n c], x1[]": nothing but letters in brackets, and no sum.
function isPointwise({ line }) {
  const places = [...line.matchAll(/\[([^\]]*)\]/g)];
  return line.includes(" = ") && places.every(([, place]) => /^[A-Za-z ]*$/.test(place));
}

// Rounds of equal structure, one after the other, become one block: the most operators first.
function repeated(builder, blocks) {
  const same = internAll(blocks.map(({ lo, hi }) => builder.signatures.slice(lo, hi).join(",")));
  const found = [];
  for (let at = 0; at < blocks.length; ) {
    const { period, rounds } = longestRepeat(blocks, same, at);
    if (rounds) found.push(repeatBlock(builder, blocks.slice(at, at + period * rounds), period, rounds));
    else found.push(blocks[at]);
    at += Math.max(1, period * rounds);
  }
  return found;
}

function longestRepeat(blocks, same, at) {
  let best = { period: 1, rounds: 0 };
  const most = Math.min(BLOCK_PERIOD, Math.floor((blocks.length - at) / 2));
  for (let period = 1; period <= most; period++) {
    let end = at + period;
    while (end < blocks.length && same[end] === same[end - period]) end += 1;
    const rounds = Math.floor((end - at) / period);
    // Two layers that are alike may be branches side by side; three, or two larger blocks, repeat.
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

// "layer1.1–2" of layer1.1 and layer1.2: what both begin with stands once.
function fromTo(first, last) {
  let same = 0;
  while (same < first.length && first[same] === last[same]) same += 1;
  while (same && /\d/.test(first[same - 1])) same -= 1;
  const rest = last.slice(same);
  return same > 1 && rest ? `${first}–${rest.replace(/^_/, "")}` : `${first}–${last}`;
}

function grouped(builder, blocks) {
  if (blocks.length <= BLOCK_CHILDREN) return blocks;
  const size = Math.ceil(Math.sqrt(blocks.length));
  const found = [];
  for (let i = 0; i < blocks.length; i += size) {
    const group = blocks.slice(i, i + size);
    found.push(group.length > 1 ? groupBlock(builder, group) : group[0]);
  }
  return found;
}

// What is open at first: no layers; repetitions only where nearly nothing else is there to be seen.
function firstOpen(root, most) {
  const modules = openBlocks(root, most, (block) => !block.unit && !block.repeat);
  if (modules.count * 2 > most) return modules.open;
  return openBlocks(root, most, (block) => !block.unit && !block.parent.repeat).open;
}

// Opens blocks, the largest first, while at most `most` are to be seen; `left`: how many stay closed.
function openBlocks(root, most, mayOpen = () => true) {
  const open = new Set([root]);
  const waiting = [...root.children];
  let count = waiting.length;
  let left = 0;
  while (waiting.length) {
    waiting.sort((a, b) => b.hi - b.lo - (a.hi - a.lo) || a.lo - b.lo);
    const block = waiting.shift();
    if (!block.children || !mayOpen(block)) continue;
    if (count + block.children.length - 1 > most) left += 1;
    else {
      open.add(block);
      count += block.children.length - 1;
      waiting.push(...block.children);
    }
  }
  return { open, count, left };
}
