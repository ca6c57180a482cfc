// Shows the selected operator: its computation, how it is split, its cost, and other ways to split it.

function operatorView(section, page) {
  const body = el("div.body", { "aria-live": "polite" });
  section.append(operatorFinder(page), body);
  const draw = () => clear(body, page.op < 0 ? operatorHint() : operatorParts(page));
  page.on("method op", draw);
  draw();
}

function operatorHint() {
  const hint = "Click an operator in any picture, or type its name, to see how it is split";
  return el("p.soft", {}, `${hint} and what else it could be.`);
}

// A list of names to type or choose from.
function operatorFinder(page) {
  const { ops } = page.data.network;
  const number = new Map(ops.map((op, i) => [visible(op.name), i]));
  const input = el("input", {
    type: "search",
    list: "operators",
    placeholder: "name of an operator",
    "aria-label": "Operator",
  });
  input.addEventListener("change", () => {
    const op = number.get(input.value);
    if (op !== undefined && op !== page.op) page.choose(op);
  });
  page.on("op", () => (input.value = page.op < 0 ? "" : visible(ops[page.op].name)));
  const options = ops.filter((op) => op.name.length < 200).map((op) => el("option", { value: op.name }));
  return el("p", {}, input, el("datalist", { id: "operators" }, options));
}

function operatorParts(page) {
  const { method, op } = page;
  const { name, kind, line, module } = page.data.network.ops[op];
  const heading = el("h3.name", {}, cut(name, 200), el("span.soft", {}, ` ${kind}`));
  const within = module && module !== name ? el("p.soft.name", {}, `in ${cut(module, 200)}`) : null;
  const notation = el("p", {}, el("code.name", {}, cut(line, 400)));
  if (!method.tiles) return [heading, within, notation];
  const parts = [operatorFigures(page), dimensionTable(page), operatorAlternatives(page, method, op)];
  return [heading, within, notation, ...parts];
}

function operatorFigures(page) {
  const { method, op } = page;
  const { network } = page.data;
  const work = (key) => page.data.column(method.work[key])[op];
  const outputs = network.edges.filter(([from]) => from === op).map(([, , value]) => value);
  const crossing = (way) =>
    [...new Set(outputs)].reduce((sum, v) => sum + page.data.column(method.traffic.values[way])[v], 0);
  const rows = [
    ["split", method.tiles.texts[method.tiles.text_of[op]]],
    ["forward, busiest device", nsText(work("forward_ns"))],
    ["backward, busiest device", nsText(work("backward_ns"))],
    ["on the critical path", `${nsText(work("path_ns"))} of ${msText(method.path_ms)}`],
    ["output", `[${network.ops[op].shape.join(", ")}], crosses devices: ${bytesText(crossing("forward"))}`],
    ["its gradient crosses", bytesText(crossing("backward"))],
    ["parameters", countText(network.ops[op].params)],
    ["synchronising them", bytesText(work("synced_bytes"))],
  ];
  return el(
    "div.scroll",
    {},
    el("table.figures", {}, rows.map(([what, text]) => figureRow(what, text))),
  );
}

function figureRow(what, text) {
  return el("tr", {}, el("th", {}, what), el("td.name", {}, cut(text, 300)));
}

const KINDS = { S: "sample", A: "attribute", P: "parameter", R: "reduction", "-": "taken whole" };

function dimensionTable(page) {
  const { dims, kinds } = page.data.network.ops[page.op];
  const { tilings, tiling_of: of } = page.method.tiles;
  const tiling = tilings[of[page.op]];
  const rows = dims.map(([letter, size], d) =>
    el(
      "tr",
      {},
      el("td.mono", {}, letter),
      el("td.number", {}, String(size)),
      el("td.number", {}, String(partsOf(tiling, d))),
      el("td", {}, KINDS[kinds[d]]),
    ),
  );
  if (!rows.length) return null;
  const head = ["dimension", "size", "parts", "can be split by"].map((text, i) =>
    el(i === 1 || i === 2 ? "th.number" : "th", {}, text),
  );
  return el("div.scroll", {}, el("table", {}, el("tr", {}, head), rows));
}

function partsOf(tiling, d) {
  if (tiling.cuts) return tiling.cuts[d].length - 1;
  return new Set(tiling.boxes.map(([lo]) => lo[d])).size;
}

// Other splits were timed for some groups of the plan that the page opens with. For others, the page of `raddle serve`
// asks its server (page.explain, live.js); a page from a file shows the command to run.
function operatorAlternatives(page, method, op) {
  const group = method.groups.find(({ members }) => members.includes(op));
  if (group) return alternativesOf(page, group, op);
  const name = page.data.network.ops[op].name;
  const box = el("div.alternatives");
  if (page.explain) {
    const ask = async () => {
      clear(box, el("p.soft", {}, "timing other ways to split it …"));
      try {
        clear(box, explainedParts(await page.explain(method.label, name)));
      } catch (error) {
        clear(box, el("p.warn", {}, error.message));
      }
    };
    return clear(box, el("button", { onclick: ask }, "What else could it be?"));
  }
  const line = `raddle explain ${method.file} '${name.replaceAll("'", "'\\''")}'`;
  return clear(
    box,
    el("p.soft", {}, "Other ways to split it were not timed here; with the plan's file, this does: "),
    el("p", {}, el("code.name", {}, cut(line, 300)), " ", copyButton("Copy", () => line)),
  );
}

function alternativesOf(page, group, op) {
  const { ops } = page.data.network;
  const others = group.members.filter((member) => member !== op).map((member) => ops[member].name);
  const together = others.length
    ? el("p.soft.name", {}, `Split together with ${listed(others)}.`)
    : null;
  const sentence = el("p", {}, group.sentence);
  return el("div.alternatives", {}, together, sentence, alternativeTable(group.alternatives));
}

function listed(names, most = 4) {
  const more = names.length > most ? ` and ${names.length - most} more` : "";
  return names.slice(0, most).map((name) => cut(name, 60)).join(", ") + more;
}

function alternativeTable(rows) {
  if (!rows.length) return null;
  const head = ["next best", "a step", "memory, about", "because"].map((text, i) =>
    el(i === 1 || i === 2 ? "th.number" : "th", {}, text),
  );
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      el("td.mono.name", {}, cut(row.tiles, 80)),
      el("td.number", {}, `${row.difference_ms < 0 ? "−" : "+"}${msText(Math.abs(row.difference_ms))}`),
      el("td.number", {}, bytesText(row.memory_bytes)),
      el("td", {}, (row.why ?? []).join(", ")),
    ),
  );
  return el("div.scroll", {}, el("table", {}, el("tr", {}, head), body));
}

function explainedParts(result) {
  const notes = (result.notes ?? []).map((note) => el("p.soft.name", {}, cut(note, 400)));
  const rows = result.alternatives ?? [];
  const faster = result.faster || "none";
  const said = rows.length ? `Of ${result.timed} other ways, ${faster} would be faster.` : "";
  return [said && el("p", {}, said), alternativeTable(rows), ...notes];
}
