// Moves the time span that timeline and memory share, by gestures, and computes the ticks of its axis.

const LEAST_SPAN = 100; // ns
const BEYOND = 0.1; // visible share of a step before it begins and after it ends

// The value, limited to the range from `least` to `most`.
const between = (least, value, most) => Math.max(least, Math.min(value, most));

// The longer of the predicted and the measured step.
function wholeSpan({ timeline, measured }) {
  return Math.max(timeline.period_ns, measured?.timeline?.period_ns ?? 0);
}

// Shows the times from `from` to `to` (ns since the step began), moved or cut so that the step stays in view.
function lookWithin(page, from, to) {
  const whole = wholeSpan(page.method);
  const length = between(LEAST_SPAN, to - from, whole * (1 + 2 * BEYOND));
  const first = between(-BEYOND * whole, (from + to - length) / 2, whole * (1 + BEYOND) - length);
  page.look(first, first + length);
}

// Moves the span by a share of its length.
function panSpan(page, share) {
  const [from, to] = page.span;
  lookWithin(page, from + share * (to - from), to + share * (to - from));
}

// Zooms around the time `at`, which keeps its place on the screen.
function zoomSpan(page, factor, at = (page.span[0] + page.span[1]) / 2) {
  const [from, to] = page.span;
  const length = between(LEAST_SPAN, (to - from) * factor, wholeSpan(page.method) * (1 + 2 * BEYOND));
  const first = at - ((at - from) / (to - from)) * length;
  lookWithin(page, first, first + length);
}

function fitSpan(page) {
  page.resetSpan();
  page.look(...page.span);
}

// Width of the left column in pixels. Timeline and memory have the same, so that their times are aligned.
const labelColumn = (width) => (width < 640 ? 88 : 148);

const TIME_UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]; // prettier-ignore

// Round times in view, with texts that have enough digits to differ.
function timeTicks([from, to], width) {
  const step = tickStep(to - from, width / 110);
  const largest = Math.max(Math.abs(from), Math.abs(to));
  const [unit, name] = TIME_UNITS.find(([ns]) => ns <= largest) ?? TIME_UNITS.at(-1);
  const digits = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  const ticks = [];
  for (let n = Math.ceil(from / step); n * step <= to; n++) {
    ticks.push({ time: n * step, text: `${((n * step) / unit).toFixed(digits)} ${name}` });
  }
  return ticks;
}

// Calls `draw` once per frame, however many events there are.
function oncePerFrame(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
}

// Dragging pans, two fingers and Ctrl + wheel zoom, a double click shows all; the plain wheel scrolls the page.
// `plot()` is the part of the canvas that shows time: {left, width}. `tap(event)` is called for a press without a
// drag, `scroll(pixels)` for the vertical part of a drag with the mouse (touch scrolls natively).
function spanGestures(canvas, page, plot, { tap = () => {}, scroll = () => {} } = {}) {
  const pressed = new Map();
  let dragged = false;
  const place = (event) => event.clientX - canvas.getBoundingClientRect().left - plot().left;
  const timeAt = (x) => page.span[0] + (x / plot().width) * (page.span[1] - page.span[0]);
  const pan = (pixels) => panSpan(page, -pixels / plot().width);

  const pinch = (event, before) => {
    const other = [...pressed].find(([id]) => id !== event.pointerId)[1];
    const distance = (p) => Math.max(20, Math.hypot(p.clientX - other.clientX, p.clientY - other.clientY));
    pan((event.clientX - before.clientX) / 2);
    zoomSpan(page, distance(before) / distance(event), timeAt((place(event) + place(other)) / 2));
  };

  const move = (event) => {
    const before = pressed.get(event.pointerId);
    if (!before) return;
    const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
    if (!dragged && Math.hypot(dx, dy) < 4) return;
    if (!dragged) canvas.setPointerCapture(event.pointerId);
    dragged = true;
    canvas.classList.add("dragged");
    if (pressed.size === 2) pinch(event, before);
    else if (dx) pan(dx);
    if (event.pointerType === "mouse") scroll(-dy);
    pressed.set(event.pointerId, event);
  };

  const release = (event) => {
    if (!pressed.delete(event.pointerId) || pressed.size) return;
    canvas.classList.remove("dragged");
    if (!dragged && event.type === "pointerup") tap(event);
  };

  const wheel = (event) => {
    const pixels = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    const sideways = event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      zoomSpan(page, Math.exp(between(-60, event.deltaY * pixels, 60) * 0.008), timeAt(place(event)));
    } else if (event.shiftKey || Math.abs(sideways) > Math.abs(event.deltaY)) {
      pan(-sideways * pixels);
    } else {
      return;
    }
    event.preventDefault();
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (!pressed.size) dragged = false;
    pressed.set(event.pointerId, event);
  });
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("wheel", wheel, { passive: false });
  canvas.addEventListener("dblclick", () => fitSpan(page));
  // Two fingers always zoom the timeline, even if they first move up or down.
  const keep = (event) => event.touches.length > 1 && event.preventDefault();
  canvas.addEventListener("touchmove", keep, { passive: false });
}

// Places a tooltip next to the pointer, inside the window.
function placeTip(tip, x, y) {
  const { width, height } = tip.getBoundingClientRect();
  const right = x + 14 + width <= document.documentElement.clientWidth;
  tip.style.left = `${right ? x + 14 : Math.max(4, x - 14 - width)}px`;
  tip.style.top = `${between(4, y + 14, Math.max(4, window.innerHeight - height - 4))}px`;
}
