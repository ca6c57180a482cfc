// Builds the page of an experiment (`raddle reproduce`): the paper's claims, the differences here, and its sections.

function show(data) {
  document.title = `${cut(data.title, 80)} · raddle`;
  const main = document.getElementById("page");
  const tip = new Tip(document.body);
  const draws = []; // functions that draw charts, called when the page is built and charts have a width
  const sections = data.sections.map((section, s) => sectionView(section, s, tip, draws));
  clear(main, summary(data), sections);
  const draw = () => draws.forEach((drawChart) => drawChart());
  draw();
  window.onresize = draw;
  window.raddle = { data, gone: new AbortController(), notify: () => {} }; // CSS changes the theme
  themeButton(window.raddle);
  document.documentElement.dataset.ready = "yes";
}

function summary(data) {
  const line = `raddle reproduce ${cut(data.name)}${data.quick ? " --quick" : ""}`;
  const facts = [
    data.machine,
    data.quick ? "quick: fewer sizes" : "full size",
    `done in ${nsText(data.seconds * 1e9)}`,
    `raddle ${data.version}`,
  ];
  return el(
    "section.headline.paper",
    { id: "headline", "aria-label": "Summary" },
    el("p.what.soft", {}, el("code.name", {}, line)),
    el("h1.name", {}, cut(data.title, 200)),
    el("p.facts", {}, facts.map((fact) => el("span.fact.name", {}, cut(fact, 200)))),
    el("div.sides", {}, side("The paper claims", data.claims), side("What differs here", data.differs)),
    sourceKeys(data.sections),
    contents(data.sections),
  );
}

function side(title, sentences) {
  if (!sentences.length) return null;
  return el("div", {}, el("h2", {}, title), el("ul", {}, sentences.map((text) => el("li.name", {}, text))));
}

// The source labels that this page uses, with explanations.
function sourceKeys(sections) {
  const parts = sections.flatMap((section) => section.parts);
  const seen = new Set(parts.flatMap((part) => part.table?.columns ?? []).map((column) => column.source));
  const used = Object.keys(SOURCES).filter((source) => seen.has(source));
  if (!used.length) return null;
  return el(
    "dl.sources",
    { "aria-label": "Where figures are from" },
    used.map((source) => el("div", {}, el("dt", {}, sourceLabel(source)), el("dd", {}, SOURCES[source]))),
  );
}

function contents(sections) {
  const items = sections.map(({ title, skipped }, s) =>
    el(
      "li",
      {},
      el("a.name", { href: `#part-${s + 1}` }, cut(title, 200)),
      skipped && el("span.soft", {}, " – skipped"),
    ),
  );
  return items.length > 1 && el("nav", { "aria-label": "Contents" }, el("ol.contents", {}, items));
}

function sectionView({ title, text, skipped, parts }, s, tip, draws) {
  return el(
    "section",
    { id: `part-${s + 1}`, "aria-label": cut(title, 200) },
    el("h2.name", {}, cut(title, 200)),
    skipped && el("p.skipped.name", {}, el("b.name", {}, "Skipped: "), skipped),
    text.map((words) => el("p.name", {}, words)),
    runs(parts).flatMap((run) => {
      const figures = run.map((part) => figureView(part, tip, draws));
      return run[0].is === "chart" ? el("div.charts", {}, figures) : figures;
    }),
  );
}

// Groups consecutive charts, which are shown side by side if there is room.
function runs(parts) {
  const groups = [];
  for (const part of parts) {
    if (part.is === "chart" && groups.at(-1)?.[0].is === "chart") groups.at(-1).push(part);
    else groups.push([part]);
  }
  return groups;
}

function figureView(part, tip, draws) {
  const title = cut(part.title, 200);
  const figure = el(`figure.${part.is}`, { "aria-label": title }, el("h3.name", {}, title));
  if (part.is === "table") figure.append(tableBox(part.table, title));
  else if (part.is === "drawing") figure.append(drawing(part.lines, title));
  else draws.push(plotBox(figure, part, tip));
  if (part.note) figure.append(el("figcaption.name.soft", {}, part.note));
  if (part.is === "chart") figure.append(figuresBelow(part.table, title));
  return figure;
}

function drawing(lines, title) {
  return el("pre.drawing", { tabindex: 0, role: "img", "aria-label": title }, lines.join("\n"));
}

// A chart may have thousands of points, so its table is built when it is opened.
function figuresBelow(table, title) {
  const details = el("details", {}, el("summary", {}, "As a table"));
  const open = () => details.append(tableBox(table, title));
  details.addEventListener("toggle", open, { once: true });
  return details;
}
