// Shows how the shown plan was found: the best step over time, and the lower bound.

function searchView(section, page) {
  const words = el("p");
  const label = "Best step found over the search's time";
  const canvas = el("canvas.progress", { role: "img", "aria-label": label });
  const tried = el("details");
  section.append(words, canvas, tried);
  const draw = () => {
    const { search, bound } = page.method;
    section.hidden = !search && !bound;
    if (section.hidden) return;
    clear(words, document.createTextNode(searchText(page.method)));
    canvas.hidden = !search || search.history.length < 1;
    tried.hidden = !search || !search.tried.length;
    if (!canvas.hidden) paintSearch(canvas, page);
    if (!tried.hidden) {
      clear(tried, el("summary", {}, `${plural(search.tried.length, "start")} tried`), triedTable(search));
    }
  };
  page.on("method theme resize", draw);
  draw();
}

// proposals: changes that the search tried; start: the plan that it began with; stopped: a word for why it ended, such
// as "budget"; bound: the lower bound of a step.
function searchText({ search, bound, step_ms: step, search_s: seconds }) {
  const limit = bound
    ? `No plan takes less than ${msText(bound.ms)} (${bound.why}): ` +
      `this one is ${percentText(step / bound.ms - 1)} above that.`
    : "";
  if (!search) return `This plan was not searched for. ${limit}`;
  const count = search.proposals ? ` after ${search.proposals} proposals` : "";
  const time = seconds ? ` in ${nsText(seconds * 1e9)}` : "";
  const as = search.searched_as ? ` Its times are with ${cut(search.searched_as, 200)}.` : "";
  return `Found from '${search.start}'${count}${time}; the search ended because of: ${search.stopped}.${as} ${limit}`;
}

function paintSearch(canvas, page) {
  const { search, bound, step_ms: step, search_s: seconds } = page.method;
  const points = search.history.map(([at, , best]) => [at, best]); // [seconds, proposals, ms of the best step]
  const data = page.data.methods.find((method) => method.label === "data" && !method.error);
  const last = Math.max(seconds ?? 0, points.at(-1)[0], 1e-3);
  const lines = [
    bound && { ms: bound.ms, text: `lower bound ${msText(bound.ms)}`, variable: "--soft", below: true },
    data && { ms: data.step_ms, text: `data parallel ${msText(data.step_ms)}`, variable: "--reduce" },
  ].filter((line) => line);
  const values = [...points.map(([, ms]) => ms), ...lines.map((line) => line.ms), step];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = (high - low || high) * 0.1;
  fitCanvas(canvas, 200, (context, width, height) => {
    const x = (at) => 64 + (at / last) * (width - 76);
    const y = (ms) => 12 + ((high + room - ms) / (high - low + 2 * room)) * (height - 40);
    searchAxes(context, { x, y, low: low - room, high: high + room, last, width, height });
    for (const line of lines) searchLine(context, x(0), x(last), y(line.ms), line);
    searchCurve(context, points, x, y, last);
  });
}

function searchAxes(context, { x, y, low, high, last, height }) {
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = css(themeColour("--soft"));
  context.textAlign = "right";
  context.textBaseline = "middle";
  const rise = tickStep(high - low, 4);
  for (let ms = Math.ceil(low / rise) * rise; ms <= high; ms += rise) {
    context.fillText(msText(ms), 58, y(ms));
    context.fillRect(61, Math.round(y(ms)), 3, 1);
  }
  context.textAlign = "center";
  const step = tickStep(last, 6);
  for (let at = 0; at <= last; at += step) context.fillText(nsText(at * 1e9), x(at), height - 10);
}

function searchLine(context, from, to, y, { text, variable, below }) {
  context.strokeStyle = css(themeColour(variable));
  context.fillStyle = css(themeColour(variable));
  context.lineWidth = 1.5;
  context.setLineDash([5, 4]);
  context.beginPath();
  context.moveTo(from, y);
  context.lineTo(to, y);
  context.stroke();
  context.setLineDash([]);
  context.textAlign = "right";
  context.fillText(text, to, below ? y + 9 : y - 8); // the curve comes from above
}

function searchCurve(context, points, x, y, last) {
  context.strokeStyle = css(themeColour("--accent"));
  context.lineWidth = 2;
  context.beginPath();
  points.forEach(([at, ms], i) => {
    if (i) context.lineTo(x(at), y(points[i - 1][1]));
    context[i ? "lineTo" : "moveTo"](x(at), y(ms));
  });
  context.lineTo(x(last), y(points.at(-1)[1]));
  context.stroke();
}

function triedTable(search) {
  const rows = search.tried.map((row) =>
    el(
      "tr",
      {},
      el("td.name", {}, cut(row.name, 60)),
      el("td.number", {}, msText(row.step_ms)),
      el("td.number", {}, triedDifference(row)),
      el("td", {}, triedVerdict(row)),
    ),
  );
  const head = ["start", "step", "against the plan", ""].map((text, i) =>
    el(i === 1 || i === 2 ? "th.number" : "th", {}, text),
  );
  return el("div.scroll", {}, el("table", {}, el("tr", {}, head), rows));
}

function triedDifference({ difference }) {
  if (difference === null) return "";
  return `${difference < 0 ? "−" : "+"}${percentText(Math.abs(difference))}`;
}

function triedVerdict(row) {
  if (row.taken) return "taken";
  if (row.fits === false) return `does not fit: ${bytesText(row.peak_bytes)}`;
  return row.simulated ? "" : "of one step on its own";
}
