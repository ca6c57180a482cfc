// Defines colours that colour-blind readers can distinguish (Okabe and Ito's), each combined with a pattern.

const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8f7a00", "#6f5fbd"];

// For each activity of a timeline's slices: a CSS variable, a pattern and a text.
const DOING = {
  forward: { variable: "--forward", pattern: "solid", text: "forward" },
  backward: { variable: "--backward", pattern: "solid", text: "backward" },
  update: { variable: "--update", pattern: "solid", text: "update" },
  merge: { variable: "--merge", pattern: "dots", text: "merging partial results" },
  move: { variable: "--move", pattern: "rising", text: "message" },
  reduce: { variable: "--reduce", pattern: "falling", text: "sum of gradients" },
  wait: { variable: "--wait", pattern: "dots", text: "sending and waiting" },
};

// The activity of a title [kind, name, phase, operator, micro-batch].
function doing([kind, , phase]) {
  if (kind === "run") return phase.startsWith("forward") ? "forward" : "backward";
  return kind in DOING ? kind : "wait";
}

// The value of a CSS variable as [r, g, b]; it depends on the theme.
function themeColour(variable) {
  return rgb(getComputedStyle(document.documentElement).getPropertyValue(variable).trim());
}

function rgb(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

const css = ([r, g, b], alpha = 1) => `rgb(${r} ${g} ${b} / ${alpha})`;

// The colour moved towards `other` by `share` (0 to 1).
const mixed = (colour, other, share) => colour.map((c, i) => Math.round(c + (other[i] - c) * share));

// With several nodes, a device has the hue of its node, in a shade and with a pattern of its own. With one node,
// every device has its own hue, and a pattern when all hues are used. cluster.devices[d] is [kind, node, bytes of
// memory].
const PATTERNS = ["solid", "rising", "dots", "falling", "rows", "columns", "grid", "crossed"];

function deviceStyle(cluster, d) {
  const node = cluster.devices[d][1];
  if (cluster.nodes === 1) {
    const pattern = PATTERNS[Math.floor(d / HUES.length) % PATTERNS.length];
    return { colour: rgb(HUES[d % HUES.length]), pattern };
  }
  const first = cluster.devices.findIndex((device) => device[1] === node);
  const place = d - first; // the device's place in its node
  const colour = mixed(rgb(HUES[node % HUES.length]), [255, 255, 255], 0.12 * (place % 5));
  // Hues repeat after eight nodes; the next eight start four patterns later.
  const pattern = PATTERNS[(place + 4 * Math.floor(node / HUES.length)) % PATTERNS.length];
  return { colour, pattern };
}

// Whether a pattern inks the pixel x, y, which means that it is darker (or paler) than the colour.
const INKS = {
  solid: () => false,
  rising: (x, y) => (x + y) % 6 === 0,
  falling: (x, y) => (x - y + 6000) % 6 === 0,
  dots: (x, y) => x % 4 === 0 && y % 4 === 0,
  rows: (x, y) => y % 4 === 0,
  columns: (x, y) => x % 4 === 0,
  grid: (x, y) => x % 5 === 0 || y % 5 === 0,
  crossed: (x, y) => (x + y) % 6 === 0 || (x - y + 6000) % 6 === 0,
};

// A fill for 2D canvases: the colour with its pattern. 60 pixels are a multiple of every period above.
function patternFill(context, { colour, pattern }) {
  const key = `${colour} ${pattern}`;
  if (pattern === "solid") return css(colour);
  if (!patternFill.tiles.has(key)) patternFill.tiles.set(key, patternTile(colour, pattern));
  return context.createPattern(patternFill.tiles.get(key), "repeat");
}
patternFill.tiles = new Map();

function patternTile(colour, pattern, size = 60) {
  const tile = el("canvas", { width: size, height: size });
  const context = tile.getContext("2d");
  context.fillStyle = css(colour);
  context.fillRect(0, 0, size, size);
  const light = colour[0] * 0.3 + colour[1] * 0.6 + colour[2] * 0.1 > 150;
  context.fillStyle = css(mixed(colour, light ? [0, 0, 0] : [255, 255, 255], 0.45));
  for (let y = 0; y < size; y++) {
    for (let x = 0; x < size; x++) if (INKS[pattern](x, y)) context.fillRect(x, y, 1, 1);
  }
  return tile;
}

// Fits a canvas to its parent's width at the screen's resolution, and calls `draw(context, width, height)`.
function fitCanvas(canvas, height, draw) {
  const width = Math.max(1, canvas.clientWidth || canvas.parentElement.clientWidth);
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  draw(context, width, height);
}

// An entry of a legend: a swatch with its pattern, and a text.
function swatch(style, text) {
  const canvas = el("canvas.swatch", { width: 28, height: 28, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  context.fillStyle = patternFill(context, style);
  context.fillRect(0, 0, 28, 28);
  return el("span.key", {}, canvas, text);
}
