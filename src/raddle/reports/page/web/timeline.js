// Shows the timeline: when devices compute and links transfer. `lanes.js` has its rows, `lanepaint.js` their pixels,
// `lanedraw.js` a frame; this file handles the pointer, the keyboard and the selection.

const AXIS_HEIGHT = 40;
const FRAMES_KEPT = 200; // frames whose drawing times (ms) are remembered, for tests
const TIMELINE_KEYS =
  "Timeline of a step. Left and right arrows pan, plus and minus zoom, 0 shows all; up and down move " +
  "from lane to lane, N and P from slice to slice, Enter selects the slice's operator, Escape leaves it.";
const TIMELINE_HINT =
  "Drag to pan, Ctrl + wheel or pinch to zoom, double-click to see all. " +
  "Keys: ← → + − 0, ↑ ↓ for lanes, N P for slices, Enter to select.";

function timelineView(section, page) {
  const view = new TimelineView(section, page);
  page.on("method", () => view.showMethod());
  page.on("op", () => view.relight());
  page.on("span resize", () => view.move());
  page.on("theme", () => view.showTheme());
  section.timelineState = () => view.state();
  section.positionOf = (slice) => view.positionOf(slice);
}

class TimelineView {
  constructor(section, page) {
    this.page = page;
    this.section = section;
    this.frames = [];
    this.criticalOnly = false;
    this.withMeasured = true;
    this.redraw = oncePerFrame(() => this.draw());
    this.build();
    this.showMethod();
  }

  build() {
    const { page } = this;
    this.canvas = el("canvas.lanes", { tabindex: 0, role: "application", "aria-label": TIMELINE_KEYS });
    // Frames are written with putImageData, so a canvas in main memory avoids copies to a GPU.
    this.context = this.canvas.getContext("2d", { alpha: false, willReadFrequently: true });
    this.tall = el("div.lanes-all", {}, this.canvas);
    this.scroller = el("div.lanes-window", { onscroll: () => this.move() }, this.tall);
    this.tip = el("div.tip", { hidden: true });
    this.keys = el("div.keys");
    this.summary = el("p.soft");
    this.note = el("p.soft");
    this.said = el("p.lanes-said", { "aria-live": "polite" });
    this.section.append(
      this.summary, this.tools(), this.keys, this.scroller, this.said, this.note,
      el("p.soft.lanes-hint", {}, TIMELINE_HINT), this.tip,
    ); // prettier-ignore
    spanGestures(this.canvas, page, () => this.plot(), {
      tap: (event) => this.tapped(event),
      scroll: (pixels) => (this.scroller.scrollTop += pixels),
    });
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.leave());
    const options = { passive: true, signal: page.gone.signal };
    window.addEventListener("scroll", () => this.leave(), options);
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => this.redraw());
    this.canvas.addEventListener("blur", () => this.redraw());
  }

  tools() {
    const { page } = this;
    const button = (text, title, act) => el("button", { onclick: act, title, "aria-label": title }, text);
    this.criticalButton = el("button", { onclick: () => this.toggle("criticalOnly") }, "critical path");
    this.measuredButton = el("button", { onclick: () => this.toggle("withMeasured") }, "measured");
    return el(
      "div.lanes-tools", {},
      button("−", "Zoom out", () => zoomSpan(page, 1.6)),
      button("+", "Zoom in", () => zoomSpan(page, 1 / 1.6)),
      button("fit", "Show the whole step", () => fitSpan(page)),
      this.criticalButton, this.measuredButton,
    ); // prettier-ignore
  }

  toggle(what) {
    this[what] = !this[what];
    if (what === "withMeasured") this.layOut();
    this.relight();
  }

  // What is shown

  showMethod() {
    const { timeline, measured } = this.page.method;
    this.section.hidden = !timeline;
    if (!timeline) return;
    this.predicted = timelineLayer(this.page.data, timeline);
    this.measured = measured?.timeline ? timelineLayer(this.page.data, measured.timeline) : null;
    this.measuredButton.hidden = !this.measured;
    this.scroller.scrollTop = 0;
    this.layOut();
    this.describe();
    this.relight();
  }

  layOut() {
    this.leave();
    this.focused = null; // {row, place}: the slice that the keyboard selects
    this.said.textContent = "";
    const measured = this.withMeasured ? this.measured : null;
    this.rows = timelineRows(this.page.data.cluster, this.predicted, measured);
  }

  describe() {
    const { timeline, plan } = this.page.method;
    const links = timeline.lanes.length - timeline.devices;
    this.summary.textContent =
      `One step of ${nsText(timeline.period_ns)}: ${plural(timeline.devices, "device")}, ` +
      `${plural(links, "link")} in use, ${plural(timeline.count, "slice")}.`;
    const fewer = timeline.devices < plan.devices;
    this.note.textContent = `The first ${timeline.devices} of ${plan.devices} devices are drawn.`;
    this.note.hidden = !fewer;
    if (this.palette) this.showKeys();
  }

  showKeys() {
    const titles = [...this.predicted.timeline.titles, ...(this.measured?.timeline.titles ?? [])];
    const used = new Set(titles.map(doing));
    const keys = LOOKS.filter((look) => used.has(look)).map((look) => {
      const { variable, pattern, text } = DOING[look];
      return swatch({ colour: themeColour(variable), pattern }, text);
    });
    const critical = swatch({ colour: this.palette.critical, pattern: "solid" }, "on the critical path");
    critical.classList.add("lanes-critical-key");
    clear(this.keys, keys, critical);
  }

  showTheme() {
    this.palette = lanePalette();
    this.font = getComputedStyle(document.body).fontFamily;
    if (!this.predicted) return;
    this.showKeys();
    this.draw(); // at once, because a printed page has no next frame
  }

  // Decides again which slices are pale, after a change of the selection.
  relight() {
    if (!this.predicted) return;
    this.criticalButton.setAttribute("aria-pressed", this.criticalOnly);
    this.measuredButton.setAttribute("aria-pressed", this.withMeasured);
    lightSlices(this.predicted, this.page.op, this.criticalOnly);
    if (this.measured) lightSlices(this.measured, this.page.op, false);
    this.redraw();
  }

  // Sizes and positions

  measure() {
    const last = this.rows.at(-1);
    const all = AXIS_HEIGHT + last.top + last.height + 6;
    const height = Math.min(all, Math.max(240, Math.round(window.innerHeight * 0.6)));
    this.tall.style.height = `${all}px`;
    this.scroller.style.height = `${height}px`;
    this.canvas.style.height = `${height}px`;
    this.width = Math.max(labelColumn(0) + 60, this.canvas.clientWidth);
    this.height = height;
    this.ratio = (window.devicePixelRatio || 1) > 1 ? 2 : 1;
    const [w, h] = [this.width * this.ratio, this.height * this.ratio];
    if (this.canvas.width !== w) this.canvas.width = w;
    if (this.canvas.height !== h) this.canvas.height = h;
  }

  plot() {
    const left = labelColumn(this.width);
    return { left, top: AXIS_HEIGHT, width: this.width - left - 8, height: this.height - AXIS_HEIGHT };
  }

  xOf(time) {
    const [from, to] = this.page.span;
    const { left, width } = this.plot();
    return left + ((time - from) / (to - from)) * width;
  }

  // The slice at a position on the screen, as {row, place (its index in the row)}, or null.
  at({ clientX, clientY }) {
    const box = this.canvas.getBoundingClientRect();
    const plot = this.plot();
    const [x, y] = [clientX - box.left - plot.left, clientY - box.top - plot.top];
    if (y < 0 || x < 0 || x > plot.width) return null;
    const down = y + this.scroller.scrollTop;
    const row = this.rows.find(({ top, height }) => top - 1 <= down && down < top + height + 1);
    const [from, to] = this.page.span;
    const perPixel = (to - from) / plot.width;
    const place = row ? placeAt(row, from + x * perPixel, 2.5 * perPixel) : -1;
    return place < 0 ? null : { row, place };
  }

  // The middle of a predicted slice on the screen, or null if it is not in view; for tests.
  positionOf(slice) {
    const { start, duration, lane } = this.predicted;
    const row = this.rows.find(({ kind, number }) => kind !== "measured" && number === lane[slice]);
    const plot = this.plot();
    const x = this.xOf(start[slice] + duration[slice] / 2);
    const y = AXIS_HEIGHT + row.top + row.height / 2 - this.scroller.scrollTop;
    if (x < plot.left || x > plot.left + plot.width || y < AXIS_HEIGHT || y > this.height) return null;
    const box = this.canvas.getBoundingClientRect();
    return { x: box.left + x, y: box.top + y };
  }

  state() {
    const [from, to] = this.page.span;
    const { lanes, count } = this.predicted.timeline;
    const hovered = this.hovered && this.titleOf(this.hovered);
    return { from, to, lanes: lanes.length, slices: count, frames: [...this.frames], hovered };
  }

  // [kind, name, phase, number of the operator or -1, micro-batch] of a slice.
  titleOf({ row: { layer, slices }, place }) {
    return layer.timeline.titles[layer.title[slices[place]]];
  }

  // Pointers

  hover(event) {
    if (event.buttons) return this.leave();
    const hit = this.at(event);
    if (!hit) return this.leave();
    const same = this.hovered?.row === hit.row && this.hovered.place === hit.place;
    this.hovered = hit;
    this.canvas.classList.add("over");
    if (!same) {
      const [name, ...lines] = this.lines(hit);
      clear(this.tip, el("b.name", {}, cut(name, 120)), el("div", {}, lines.join("\n")));
      this.tip.hidden = false;
      this.redraw();
    }
    placeTip(this.tip, event.clientX, event.clientY);
  }

  lines({ row, place }) {
    return sliceLines(row, row.slices[place], this.page.method.plan.microbatches);
  }

  leave() {
    if (!this.hovered) return;
    this.hovered = null;
    this.tip.hidden = true;
    this.canvas.classList.remove("over");
    this.redraw();
  }

  // Called when the time span or the rows have moved.
  move() {
    this.leave();
    this.redraw();
  }

  tapped(event) {
    const hit = this.at(event);
    if (hit) this.select(hit);
    if (event.pointerType !== "mouse") this.hover(event);
  }

  select(hit) {
    const [, , , op] = this.titleOf(hit);
    if (op >= 0) this.page.choose(op);
  }

  // Keys

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const act = this.actions()[key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  actions() {
    const { page, focused } = this;
    const middle = focused && (focused.row.start[focused.place] + focused.row.end[focused.place]) / 2;
    const inView = middle !== null && page.span[0] <= middle && middle <= page.span[1];
    const zoom = (factor) => () => zoomSpan(page, factor, inView ? middle : undefined);
    const [closer, farther] = [zoom(1 / 1.4), zoom(1.4)];
    const step = (by) => () => this.focusSlice(by);
    const fit = () => fitSpan(page);
    return {
      ArrowLeft: () => panSpan(page, -0.1), ArrowRight: () => panSpan(page, 0.1),
      "+": closer, "=": closer, w: closer, "-": farther, s: farther, 0: fit, Home: fit,
      ArrowUp: () => this.focusRow(-1), ArrowDown: () => this.focusRow(1),
      n: step(1), "]": step(1), p: step(-1), "[": step(-1),
      Enter: () => this.focused && this.select(this.focused),
      // choosing the chosen operator again unselects it
      Escape: () => (page.op >= 0 ? page.choose(page.op) : this.leaveFocus()),
    }; // prettier-ignore
  }

  leaveFocus() {
    this.focused = null;
    this.said.textContent = "";
    this.redraw();
  }

  // Focuses the slice that runs at the same time in the next row that has slices.
  focusRow(by) {
    const { rows, focused } = this;
    let next = focused ? rows.indexOf(focused.row) + by : 0;
    while (rows[next] && !rows[next].slices.length) next += by;
    if (!rows[next]) return;
    const time = focused ? focused.row.start[focused.place] : this.page.span[0];
    this.focus(rows[next], firstEndingAfter(rows[next], time));
  }

  focusSlice(by) {
    if (!this.focused) return this.focusRow(1);
    this.focus(this.focused.row, this.focused.place + by);
  }

  focus(row, wanted) {
    const place = between(0, wanted, row.slices.length - 1);
    this.focused = { row, place };
    this.said.textContent = this.lines(this.focused).join(" · ");
    this.showFocused();
    this.redraw();
  }

  showFocused() {
    const { row, place } = this.focused;
    const [from, to] = this.page.span;
    const [start, end] = [row.start[place], row.end[place]];
    if (end < from || start > to) {
      lookWithin(this.page, (start + end - to + from) / 2, (start + end + to - from) / 2);
    }
    const room = this.plot().height;
    const { scrollTop } = this.scroller;
    this.scroller.scrollTop = between(row.top + row.height + 4 - room, scrollTop, row.top - 4);
  }

  // Drawing
  draw() {
    if (!this.palette || !this.page.method.timeline) return;
    const began = performance.now();
    this.measure();
    drawTimeline(this.context, {
      page: this.page,
      rows: this.rows,
      palette: this.palette, // colours of the theme (lanePalette)
      plot: this.plot(), // the part that shows time: left, top, width, height
      size: [this.width, this.height], // CSS pixels, like plot
      ratio: this.ratio, // pixels of the canvas per CSS pixel
      top: Math.round(this.scroller.scrollTop), // how far the rows are scrolled
      font: this.font,
      band: this.criticalOnly ? 4 : 2, // CSS pixels at the bottom of a slice that mark the critical path
      measured: this.withMeasured ? this.measured : null,
      hovered: this.hovered, // {row, place}, as in `at`
      focused: document.activeElement === this.canvas ? this.focused : null,
    });
    this.frames.push(performance.now() - began);
    if (this.frames.length > FRAMES_KEPT) this.frames.shift();
  }
}
