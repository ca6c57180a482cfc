// Builds the panel of `raddle serve` above the report: to choose and start a report, watch its progress, and open
// stored reports.

const LIVE_POLL = { running: 500, idle: 2000 }; // ms between requests for the state
const LIVE_CHART = { height: 132, left: 62, right: 14, top: 12, bottom: 22 }; // px: the height, and its margins

// offer: the choices (models, clusters, methods); job: the report being made, or the last one; shown: the name of the
// shown report; reached: whether the server answers; parts: elements of the panel.
const live = { offer: null, job: null, shown: null, reached: true, parts: {} };

async function liveGet(path) {
  return liveAnswer(await fetch(path, { cache: "no-store" }));
}

async function livePost(path, body) {
  const key = sessionStorage.getItem("key") ?? "";
  const headers = { "Content-Type": "application/json", "X-Raddle-Key": key };
  return liveAnswer(await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

// The printed address contains the key. It is stored for this tab, and removed from the address bar.
function liveKey() {
  const key = location.hash.match(/^#key=(.+)$/)?.[1];
  if (!key) return;
  sessionStorage.setItem("key", key);
  history.replaceState(null, "", location.pathname);
}

async function liveAnswer(response) {
  const content = await response.json();
  if (!response.ok) throw new Error(content.error);
  return content;
}

// -- choosing -------------------------------------------------------------------------------------------

function liveForm(offer) {
  const first = offer.clusters[0];
  const text = (name, given) =>
    el("input", { name, autocomplete: "off", autocapitalize: "off", spellcheck: "false", ...given });
  const field = (label, hint, input) =>
    el("label.field", {}, el("span", {}, label), input, el("small", {}, hint));
  const options = (id, values) => el("datalist", { id }, values.map((value) => el("option", { value })));
  const form = el(
    "form.choose",
    { novalidate: true, "aria-label": "A new report" },
    el("h2", {}, "New report"),
    el(
      "div.fields",
      {},
      field("Model", "zoo, or file.py:function", text("model", { list: "models", placeholder: "vgg16" })),
      field("Cluster", "preset, or file.yaml", text("cluster", { list: "clusters", placeholder: first })),
      field("Batch", "of all devices", text("batch", { inputmode: "numeric", placeholder: "its own" })),
      field("Seconds", "a search", text("budget", { inputmode: "decimal", value: offer.budget })),
    ),
    options("models", offer.models),
    options("clusters", offer.clusters),
    liveMethods("Methods", offer.methods),
    liveMethods("Searches", offer.searches),
    el("div.row", {}, el("button.main", { type: "submit" }, "Start"), el("p.said", { role: "alert" })),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    liveStart(form);
  });
  return form;
}

function liveMethods(title, names) {
  const box = (value) => el("input", { type: "checkbox", name: "method", value, checked: true });
  const boxes = names.map(box);
  const flip = () => {
    const all = boxes.every((box) => box.checked);
    for (const one of boxes) one.checked = !all;
  };
  return el(
    "fieldset",
    {},
    el("legend", {}, title, el("button.plain", { type: "button", onclick: flip }, "all or none")),
    el("div.chips", {}, boxes.map((one, i) => el("label.chip", {}, one, names[i]))),
  );
}

// Text that is not a number is sent unchanged, and the server's error message explains what is wrong.
function liveNumber(text, empty) {
  const trimmed = text.trim();
  return trimmed === "" ? empty : Number.isFinite(Number(trimmed)) ? Number(trimmed) : trimmed;
}

async function liveStart(form) {
  const { model, cluster, batch, budget } = form.elements;
  const wanted = {
    model: model.value,
    cluster: cluster.value,
    batch: liveNumber(batch.value, null),
    budget: liveNumber(budget.value, live.offer.budget),
    methods: [...form.querySelectorAll("[name=method]:checked")].map((box) => box.value),
  };
  await liveTry(async () => liveTake((await livePost("/api/start", wanted)).job));
}

// Any error is shown as one sentence next to the button, and the form stays as it is.
async function liveTry(what) {
  const said = live.parts.form.querySelector(".said");
  clear(said);
  try {
    await what();
  } catch (error) {
    clear(said, document.createTextNode(visible(liveSentence(error.message))));
  }
}

const liveSentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// -- watching -------------------------------------------------------------------------------------------

async function livePoll() {
  try {
    const { job } = await liveGet("/api/state");
    if (!live.reached) live.offer = await liveGet("/api/offer");
    live.reached = true;
    await liveTake(job);
  } catch {
    live.reached = false;
    liveDrawJob();
  }
  setTimeout(livePoll, live.job?.state === "running" ? LIVE_POLL.running : LIVE_POLL.idle);
}

// Shows the state of the job; when it has ended, also the list of reports and the new report.
async function liveTake(job) {
  const before = live.job;
  live.job = job;
  liveDrawJob();
  const ended = before?.number === job?.number && before?.state === "running" && job?.state !== "running";
  if (!ended) return;
  await liveShelf();
  if (job.report) await liveShow(job.report);
}

// Posts a command about the running job ("/api/stop" or "/api/cancel"), and shows the job's new state.
const liveTell = (path) => liveTry(async () => liveTake((await livePost(path, {})).job));

function liveJobBox() {
  const parts = {
    title: el("h2", { role: "status" }),
    step: el("p.step"),
    bar: el("progress", { "aria-label": "Progress" }),
    chart: el("div.chart"),
    stop: el("button", { onclick: () => liveTell("/api/stop") }),
    cancel: el("button", { onclick: () => liveTell("/api/cancel") }, "Cancel"),
  };
  const row = el("div.row", {}, parts.stop, parts.cancel);
  const box = el("section.job", { "aria-label": "Running", hidden: true }, [
    parts.title, parts.bar, parts.step, parts.chart, row,
  ]);
  return { box, row, ...parts };
}

function liveDrawJob() {
  const { box, title, step, bar, chart, row, stop } = live.parts.job;
  const job = live.job;
  const running = job?.state === "running";
  box.hidden = live.reached && (!job || job.state === "cancelled");
  live.parts.form.querySelector(".main").disabled = running;
  if (!live.reached) {
    row.hidden = bar.hidden = true;
    liveText(title, "The server does not answer");
    liveText(step, "Start `raddle serve` again; this page waits for it, and what you have chosen stays.");
    return;
  }
  if (!job) return;
  row.hidden = bar.hidden = !running;
  box.classList.toggle("failed", job.state === "failed");
  liveText(title, liveTitle(job));
  liveText(step, running ? liveStep(job) : liveSentence(job.error ?? ""));
  step.hidden = !step.textContent;
  if (job.of) {
    bar.max = job.of;
    bar.value = Math.min(job.done, job.of);
  } else bar.removeAttribute("value");
  stop.disabled = job.stopping || !job.stoppable;
  liveText(stop, job.stopping ? "Stopping…" : "Stop: keep the best so far");
  const drawn = job.history.length > 0 && job.state !== "failed";
  clear(chart, drawn && liveChart(job, chart.clientWidth || 300));
}

function liveTitle(job) {
  const what = `${cut(job.model, 40)} on ${cut(job.cluster, 30)}`;
  const took = job.seconds < 60 ? `${Math.round(job.seconds)} s` : liveClock(job.seconds);
  if (job.state === "running") return `${what}, ${took}`;
  return job.state === "done" ? `${what}: done in ${took}` : `${what} could not be reported`;
}

const liveClock = (s) => `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")} min`;
const liveStep = (job) => (job.of ? job.step : `${job.step} …`);

// Changes the text only if it differs, so that screen readers announce only changes.
function liveText(node, text) {
  if (node.textContent !== visible(text)) node.textContent = visible(text);
}

// The best step of each search over time; job.history: [seconds, ms of the best step, method]. The lower bound is known
// only when the report is done.
function liveChart(job, width) {
  const { height, left, right, top, bottom } = LIVE_CHART;
  const bound = job.lower_bound_ms || null;
  const values = [...job.history.map(([, best]) => best), ...(bound ? [bound] : [])];
  const begun = job.history[0][0];
  const until = Math.max(job.seconds, begun + 1);
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const margin = Math.max((high - low) * 0.12, high * 0.02); // wide enough for ticks to differ in three digits
  [low, high] = [Math.max(0, low - margin), high + margin];
  const x = (s) => left + ((s - begun) / (until - begun)) * (width - left - right);
  const y = (ms) => top + ((high - ms) / (high - low)) * (height - top - bottom);
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `The best step found so far: ${msText(job.history.at(-1)[1])}`,
  });
  for (const ms of liveTicks(low, high, 3)) {
    picture.append(
      svg("line.grid", { x1: left, x2: width - right, y1: y(ms), y2: y(ms) }),
      svg("text", { x: left - 8, y: y(ms) + 4, "text-anchor": "end" }, msText(ms)),
    );
  }
  for (const s of liveTicks(0, until - begun, Math.min(6, width / 90))) {
    picture.append(svg("text", { x: x(begun + s), y: height - 5, "text-anchor": "middle" }, `${s} s`));
  }
  liveLines(job, until).forEach(({ points }, number) => {
    const [[first], last] = [points[0], points.at(-1)];
    let path = `M${x(first)} ${y(points[0][1])}`;
    for (const [s, ms] of points.slice(1)) path += `H${x(s)}V${y(ms)}`;
    picture.append(
      svg(`path.best.line${number % 3}`, { d: path }),
      svg(`circle.line${number % 3}`, { cx: x(last[0]), cy: y(last[1]), r: 3 }),
    );
  });
  if (bound) picture.append(svg("line.bound", { x1: left, x2: width - right, y1: y(bound), y2: y(bound) }));
  return el("div", {}, picture, liveKeys(job, until, bound));
}

// One line per method, from its first point until the next method begins.
function liveLines(job, until) {
  const lines = [];
  for (const [s, best, method] of job.history) {
    if (lines.at(-1)?.method !== method) {
      lines.at(-1)?.points.push([s, lines.at(-1).points.at(-1)[1]]);
      lines.push({ method, points: [] });
    }
    lines.at(-1).points.push([s, best]);
  }
  lines.at(-1).points.push([until, lines.at(-1).points.at(-1)[1]]);
  return lines;
}

function liveKeys(job, until, bound) {
  const keys = liveLines(job, until).map(({ method, points }, number) =>
    el("span", {}, el(`i.dot.line${number % 3}`), `${method} ${msText(points.at(-1)[1])}`),
  );
  const floor = bound ? `no plan takes less than ${msText(bound)}` : "lower bound: known at the end";
  return el("div.keys", {}, keys, el("span", {}, el(`i.dash${bound ? "" : ".unknown"}`), floor));
}

function liveTicks(low, high, count) {
  const step = tickStep(high - low, count);
  const ticks = [];
  for (let n = Math.ceil(low / step); n * step <= high; n++) ticks.push(Number((n * step).toPrecision(6)));
  return ticks;
}

// -- stored reports --------------------------------------------------------------------------------------------

// Fills the list of stored reports.
async function liveShelf(reports) {
  reports ??= (await liveGet("/api/reports")).reports;
  const list = live.parts.list;
  const empty = el("p.soft", {}, "None yet: a report comes here when it is done, until you delete it.");
  clear(list, reports.length ? el("ul", {}, reports.map(liveKept)) : empty);
  liveMark();
}

function liveKept(report) {
  const { name, model, cluster, batch, best, step_ms: step, speedup, time } = report;
  const faster = speedup?.toFixed(2) > 1 ? `, ${speedup.toFixed(2)} × data` : "";
  const figures = step === null ? "no plan" : `${best} ${msText(step)}${faster}`;
  const alone = { href: `/reports/${name}.html`, target: "_blank", rel: "noopener", title: "On its own" };
  return el(
    "li",
    { "data-report": name },
    el(
      "button.show",
      { onclick: () => liveTry(() => liveShow(name, true)), title: name },
      el("b.name", {}, `${cut(model, 36)} on ${cut(cluster, 28)}`),
      el("small", {}, `${figures} · batch ${batch} · ${liveWhen(time)}`),
    ),
    el("a", alone, "Open"),
    liveDelete(name, `${model} on ${cluster}`),
  );
}

// Deleting takes two clicks, because it cannot be undone.
function liveDelete(name, what) {
  const button = el("button.plain", { "aria-label": `Delete ${cut(what)}` }, "Delete");
  const reset = () => {
    button.textContent = "Delete";
    button.classList.remove("sure");
  };
  button.onblur = reset;
  button.onclick = () => {
    if (button.classList.contains("sure")) {
      liveTry(async () => {
        await liveShelf((await livePost("/api/delete", { report: name })).reports);
        live.parts.list.focus(); // the button that had the focus is gone
      });
      return;
    }
    button.textContent = "Really?";
    button.classList.add("sure");
  };
  return button;
}

function liveWhen(seconds) {
  const when = new Date(seconds * 1000);
  const today = when.toDateString() === new Date().toDateString();
  const day = when.toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" });
  const time = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  return today ? time : `${day} ${time}`;
}

// Shows a stored report on this page; look: scroll to it.
async function liveShow(name, look = false) {
  const response = await fetch(`/reports/${name}.html`, { cache: "no-store" });
  if (!response.ok) throw new Error("this report is not kept any more: load the page again.");
  const mark = '<script type="application/octet-stream" id="data">';
  const text = await response.text();
  const start = text.indexOf(mark) + mark.length;
  const data = await unpack(text.slice(start, text.indexOf("</" + "script>", start)));
  data.report = live.shown = name;
  show(data);
  history.replaceState(null, "", `#${name}`);
  liveMark();
  if (look) document.getElementById("page").scrollIntoView({ behavior: "smooth" });
}

// Marks the shown report in the list.
function liveMark() {
  for (const item of live.parts.list.querySelectorAll("li")) {
    const shown = item.dataset.report === live.shown;
    item.querySelector(".show").setAttribute("aria-pressed", String(shown));
  }
}

// The view of an operator calls this for the costs of other splits, if the page does not have them.
Page.prototype.explain = async function (label, opName) {
  return livePost("/api/explain", { report: this.data.report, method: label, op: opName });
};

// -- the panel ------------------------------------------------------------------------------------------

async function liveBegin() {
  liveKey();
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = () => {
    if (!live.shown) document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
  };
  dark.addEventListener("change", theme); // until there is a report, which has its own theme button
  theme();
  live.offer = await liveGet("/api/offer");
  const form = liveForm(live.offer);
  const job = liveJobBox();
  const list = el("div.list", { tabindex: "-1" });
  live.parts = { form, job, list };
  const folder = el("p.soft", {}, "in ", el("span.name", {}, live.offer.folder));
  const title = el("h2", {}, "Kept reports");
  const kept = el("section.kept", { "aria-label": "Kept reports" }, title, folder, list);
  const panel = el("div.live", { id: "live" }, [
    el("div.pair", {}, el("section.new", {}, form), kept),
    job.box,
  ]);
  const main = document.getElementById("page");
  main.before(panel);
  main.append(el("p.soft.nothing", {}, "Choose a model and a cluster, and start: the report comes here."));
  window.addEventListener("resize", liveDrawJob);
  await liveShelf();
  const asked = location.hash.slice(1);
  if (list.querySelector(`li[data-report="${CSS.escape(asked)}"]`)) await liveTry(() => liveShow(asked));
  livePoll();
}

liveBegin();
