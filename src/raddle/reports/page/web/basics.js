// Makes elements, and writes numbers as text. All strings of the data become text nodes here, so none is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

// Invisible characters are shown as \uXXXX: control characters, and marks that change the direction of text.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

function visible(text) {
  return String(text).replace(UNSEEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// At most `most` characters; a long name keeps its beginning and its end.
function cut(text, most = 40) {
  const shown = visible(text);
  if (shown.length <= most) return shown;
  const head = Math.ceil((most - 1) * 0.4);
  return `${shown.slice(0, head)}…${shown.slice(shown.length - (most - 1 - head))}`;
}

// el("button.copy", {title: "…", onclick: f}, "text", child). Strings always become text nodes.
function el(what, given = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return filled(document.createElement(tag), classes, given, children);
}

function svg(what, given = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return filled(document.createElementNS(SVG, tag), classes, given, children);
}

function filled(node, classes, given, children) {
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : visible(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return node;
}

// Replaces the children of a node.
function clear(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child));
  return node;
}

// Three digits, in the largest unit in which the value is at least 1, as in the terminal's tables.
function scaled(value, base, units) {
  let step = 0;
  let left = value;
  while (Math.round(Math.abs(left)) >= base && step < units.length - 1) {
    left /= base;
    step += 1;
  }
  const size = Math.abs(left);
  const digits = step === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return `${left.toFixed(digits)} ${units[step]}`.trim();
}

const bytesText = (bytes) => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const countText = (count) => scaled(count, 1000, ["", "k", "M", "G", "T", "P"]);
const nsText = (ns) => scaled(ns, 1000, ["ns", "µs", "ms", "s"]);
const msText = (ms) => nsText(ms * 1e6);
const percentText = (share) => `${(100 * share).toFixed(share > 0 && share < 0.0095 ? 1 : 0)} %`;
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

// A round step for an axis of about `count` ticks; a power of two if `binary` (for bytes).
function tickStep(span, count, binary = false) {
  const rough = Math.max(span / Math.max(1, count), Number.MIN_VALUE);
  if (binary) return 2 ** Math.ceil(Math.log2(rough));
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
}

// A tooltip next to the pointer; it stays inside the window.
class Tip {
  constructor(parent) {
    this.node = el("div.tip", { hidden: true, role: "tooltip" });
    parent.append(this.node);
  }

  show({ clientX, clientY }, text) {
    this.node.hidden = false;
    this.node.textContent = visible(text);
    const { width, height } = this.node.getBoundingClientRect();
    const left = clientX + 14 + width > window.innerWidth ? clientX - width - 10 : clientX + 14;
    const top = clientY + 14 + height > window.innerHeight ? clientY - height - 10 : clientY + 14;
    this.node.style.left = `${Math.max(4, left)}px`;
    this.node.style.top = `${Math.max(4, top)}px`;
  }

  hide() {
    this.node.hidden = true;
  }
}
