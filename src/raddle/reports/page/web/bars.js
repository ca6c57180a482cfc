// Shows one bar per method: the time in which an average device computes, waits for data and is idle in a step. A click
// shows the method in all other views.

// By key of `method.average` (ms of a step, averaged over the devices): what a device does in this time.
const SHARES = {
  compute_ms: { variable: "--backward", pattern: "solid", text: "computing" },
  exposed_ms: { variable: "--reduce", pattern: "falling", text: "waiting for data" },
  idle_ms: { variable: "--idle", pattern: "dots", text: "idle" },
};
const shareStyle = ({ variable, pattern }) => ({ colour: themeColour(variable), pattern });

// Bars are cut off at this multiple of the fastest step. Otherwise one slow method would make all others tiny.
const LONGEST_BAR = 4;

function barsView(section, page) {
  const keys = el("div.keys");
  const list = el("div.bars", { role: "radiogroup", "aria-label": "Method that is shown" });
  section.append(keys, list);
  const draw = () => {
    clear(keys, barKeys(page.data.methods));
    clear(list, barRows(page));
    for (const row of list.children) paintBar(row, page);
  };
  list.addEventListener("keydown", (event) => barKey(event, list));
  page.on("method theme resize", () => {
    const focused = list.contains(document.activeElement);
    draw();
    if (focused) list.querySelector("[aria-checked=true]").focus();
  });
  draw();
}

function barKeys(methods) {
  const measured = methods.some((method) => method.measured);
  const bound = methods.some((method) => method.bound);
  return [
    ...Object.values(SHARES).map((share) => swatch(shareStyle(share), share.text)),
    bound && el("span.key", {}, el("span.mark.bound"), "lower bound"),
    measured && el("span.key", {}, el("span.mark.measured"), "measured"),
  ];
}

// Methods that fit come first, then those that do not fit, then those that cannot be applied. Within these, the
// fastest is first, by samples per second, because a plan of micro-batches may have a larger batch.
function barOrder(methods) {
  const rank = (m) => (methods[m].error ? 2 : methods[m].fits ? 0 : 1);
  const speed = (m) => methods[m].samples_per_s ?? 0;
  return methods.map((_, m) => m).sort((a, b) => rank(a) - rank(b) || speed(b) - speed(a) || a - b);
}

// m: the number of a method in page.data.methods.
function barRows(page) {
  const { methods } = page.data;
  return barOrder(methods).map((m) => {
    const method = methods[m];
    const shown = m === page.number;
    const verdict = barVerdict(method, page.data.batch);
    return el(
      `button.bar${shown ? ".shown" : ""}`,
      {
        role: "radio",
        "aria-checked": String(shown),
        tabindex: shown ? 0 : -1,
        "data-number": m,
        "aria-disabled": method.error ? "true" : null,
        "aria-label": `${cut(method.label, 60)}: ${barLabel(method)}`,
        onclick: () => page.select(m),
      },
      el("span.label.name", {}, cut(method.label, 32)),
      el("span.track", {}, method.error ? el("span.soft.name", {}, cut(method.error, 160)) : el("canvas")),
      el("span.step", {}, method.error ? "–" : msText(method.step_ms)),
      el("span.speedup.soft", {}, method.speedup ? `${method.speedup.toFixed(2)} ×` : ""),
      el(method.fits ? "span.verdict" : "span.verdict.warn", {}, verdict),
    );
  });
}

function barVerdict(method, batch) {
  if (method.error) return "cannot be applied";
  if (!method.fits) return `does not fit: ${bytesText(method.peak_bytes)}`;
  const texts = method.batch === batch ? [] : [`batch ${method.batch}`];
  if (method.measured) texts.push(`measured ${msText(method.measured.step_ms)}`);
  return texts.join(", ");
}

function barLabel(method) {
  if (method.error) return `cannot be applied. ${cut(method.error, 200)}`;
  const shares = Object.entries(SHARES).map(([key, { text }]) => `${text} ${msText(method.average[key])}`);
  return `${msText(method.step_ms)} a step, ${shares.join(", ")}${method.fits ? "" : ", does not fit"}`;
}

function paintBar(row, page) {
  const canvas = row.querySelector("canvas");
  if (!canvas) return;
  const { methods } = page.data;
  const method = methods[Number(row.dataset.number)];
  const steps = methods.filter((m) => !m.error).flatMap((m) => [m.step_ms, m.measured?.step_ms ?? 0]);
  const fastest = Math.min(...methods.filter((m) => !m.error).map((m) => m.step_ms));
  const longest = Math.min(Math.max(...steps), LONGEST_BAR * fastest);
  fitCanvas(canvas, 20, (context, width, height) => {
    const scale = width / longest;
    let x = 0;
    for (const [key, share] of Object.entries(SHARES)) {
      context.fillStyle = patternFill(context, shareStyle(share));
      context.fillRect(x, 2, method.average[key] * scale, height - 4);
      x += method.average[key] * scale;
    }
    if (method.step_ms > longest) breakBar(context, width, height);
    if (method.bound) mark(context, method.bound.ms * scale, height, "--ink", [2, 2]);
    if (method.measured) {
      mark(context, Math.min(width - 2, method.measured.step_ms * scale), height, "--critical", []);
    }
  });
}

function mark(context, x, height, variable, dash) {
  context.strokeStyle = css(themeColour(variable));
  context.lineWidth = 2;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x, 0);
  context.lineTo(x, height);
  context.stroke();
  context.setLineDash([]);
}

// Two slanted cuts show that the bar is longer than drawn.
function breakBar(context, width, height) {
  context.strokeStyle = css(themeColour("--card"));
  context.lineWidth = 3;
  for (const x of [width - 22, width - 14]) {
    context.beginPath();
    context.moveTo(x, height);
    context.lineTo(x + 8, 0);
    context.stroke();
  }
}

// Arrow keys move from method to method, as in any group of radio buttons.
function barKey(event, list) {
  const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const rows = [...list.children].filter((row) => !row.hasAttribute("aria-disabled"));
  const now = rows.findIndex((row) => row.getAttribute("aria-checked") === "true");
  rows[(now + step + rows.length) % rows.length]?.click();
}
