// Computes the axes of a chart, linear or logarithmic: positions of values, and ticks with their texts.

const DIGIT = 7; // approximate width of a digit in pixels

// An axis has share(value), the position from 0 to 1, and about `count` ticks. If `lengths` are compared on it,
// it starts at zero (unless the values are far from zero), and it starts and ends at ticks.
function linearAxis(values, count, lengths) {
  let [low, high] = ends(values, [0, 1]);
  if (lengths && low >= 0 && low < 0.6 * high) low = 0;
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const step = tickStep(high - low, count);
  if (lengths) [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  return { share: (value) => (value - low) / (high - low), ticks: roundTicks(low, high, step) };
}

function logAxis(values, count) {
  let [low, high] = ends(values, [1, 10]);
  if (low === high) [low, high] = [low / 2, high * 2];
  const [from, to] = [Math.log10(low), Math.log10(high)];
  return { share: (value) => (Math.log10(value) - from) / (to - from), ticks: logTicks(low, high, count) };
}

// The least and the largest value, or `otherwise` if there are no values.
function ends(values, otherwise) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return low > high ? otherwise : [low, high];
}

// If there are at most `most` different values, such as numbers of devices, they are the ticks.
function withFew(axis, values, most) {
  const distinct = [...new Set(values)].sort((a, b) => a - b);
  return distinct.length > 1 && distinct.length <= most ? { ...axis, ticks: distinct } : axis;
}

function roundTicks(low, high, step) {
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.min(100, Math.floor(high / step + 1e-9) - first + 1);
  return Array.from({ length: Math.max(0, count) }, (_, i) => (first + i) * step);
}

// Powers of ten, every one or every few of them; if there is room, also 3 times them, or 2 and 5 times them. Round
// ticks if fewer than two of these are in view.
function logTicks(low, high, count) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.max(1, Math.ceil((last - first) / Math.max(2, count)));
  const inside = (steps) => {
    const count = Math.floor((last - first) / every) + 1;
    const decades = Array.from({ length: count }, (_, i) => first + i * every);
    const ticks = decades.flatMap((decade) => steps.map((n) => Number(`${n}e${decade}`)));
    return ticks.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
  };
  const finer = [[1], [1, 3], [1, 2, 5]].map(inside);
  const chosen = every > 1 ? finer[0] : finer.findLast((ticks) => ticks.length <= 1.5 * count);
  return chosen?.length > 1 ? chosen : roundTicks(low, high, tickStep(high - low, count));
}

// 1500000 -> "1.5M", 1e-5 -> "10⁻⁵". The unit is in the name of the axis.
function tickText(value) {
  const size = Math.abs(value);
  const exponent = size < 1e4 ? 0 : Math.min(4, Math.floor(Math.log10(size) / 3 + 1e-9));
  const scaledValue = value / 1000 ** exponent;
  if (size > 0 && (size < 1e-4 || Math.abs(scaledValue) >= 1e4)) return powerText(value);
  return `${Number(scaledValue.toPrecision(4))}${["", "k", "M", "G", "T"][exponent]}`.replace("-", "−");
}

function powerText(value) {
  const [digits, power] = value.toExponential(0).split("e");
  const raised = [...String(Number(power))].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
  return digits === "1" ? `10${raised}` : `${digits.replace("-", "−")}·10${raised}`;
}

// Leaves out texts that would touch the previous one. A tick is [position in pixels, text].
function apart(ticks) {
  let end = -Infinity;
  return ticks.map(([at, text]) => {
    const half = (DIGIT * text.length) / 2;
    if (at - half < end + 6) return [at, ""];
    end = at + half;
    return [at, text];
  });
}
