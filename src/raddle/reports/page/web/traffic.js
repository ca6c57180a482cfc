// Draws the bytes from device to device in a step: a heat map whose rows and columns are sorted by node.

function trafficView(section, page) {
  const words = el("p.soft");
  const label = "Bytes sent between every pair of devices";
  const canvas = el("canvas.heat", { role: "img", "aria-label": label });
  const scale = el("div.keys");
  const box = el("div.heatbox", {}, canvas);
  const tip = new Tip(section);
  section.append(words, box, scale);
  const draw = () => {
    section.hidden = !page.method.traffic;
    if (section.hidden) return;
    const pairs = trafficPairs(page);
    clear(words, trafficText(page, pairs));
    clear(scale, heatScale(pairs.most));
    paintHeat(canvas, page, pairs);
  };
  canvas.addEventListener("pointermove", (event) => heatTip(event, canvas, page, tip));
  canvas.addEventListener("pointerleave", () => tip.hide());
  page.on("method theme resize", draw);
  draw();
}

// Columns by pair of devices: source, target, bytes; heaviest: the number of the pair with the most bytes, or -1.
function trafficPairs(page) {
  const { traffic, plan } = page.method;
  const column = (key) => page.data.column(traffic[key]);
  const [source, target, bytes] = ["source", "target", "bytes"].map(column);
  let [total, most, heaviest] = [0, 0, -1];
  bytes.forEach((amount, i) => {
    total += amount;
    if (amount > most) [most, heaviest] = [amount, i];
  });
  return { source, target, bytes, total, most, heaviest, count: plan.devices };
}

// together: whether the devices of pair i are on one node; cluster.devices[d] is [kind, node, bytes of memory].
function trafficText(page, { source, target, total, most, heaviest }) {
  const text = (words) => document.createTextNode(words);
  if (heaviest < 0) return text("Nothing is sent between devices.");
  const { devices } = page.data.cluster;
  const pairs = page.data.column(page.method.traffic.bytes);
  const together = (i) => devices[source[i]][1] === devices[target[i]][1];
  const apart = pairs.reduce((sum, amount, i) => sum + (together(i) ? 0 : amount), 0);
  const nodes = page.data.cluster.nodes > 1 ? `, ${bytesText(apart)} of it between nodes` : "";
  const largest = `most from device ${source[heaviest]} to ${target[heaviest]}: ${bytesText(most)}`;
  const rings = page.method.timeline.titles.some(([kind]) => kind === "reduce");
  const how = rings ? " Sums of gradients go around a ring." : "";
  return text(`${bytesText(total)} a step${nodes}; ${largest}.${how}`);
}

// One hue, from no bytes to the most. More bytes are darker (or brighter), which colour-blind readers see too.
function heatColour(share) {
  if (share <= 0) return themeColour("--paper");
  return mixed(mixed(themeColour("--paper"), themeColour("--reduce"), 0.2), themeColour("--reduce"), share);
}

function heatScale(most) {
  if (!most) return [];
  const steps = [0, 0.25, 0.5, 0.75, 1];
  const style = (share) => ({ colour: heatColour(share), pattern: "solid" });
  return steps.map((share) => swatch(style(share), bytesText(most * share)));
}

const HEAT_MARGIN = 34;

function heatCell(width, count) {
  const cell = Math.max(1, Math.min(34, (width - HEAT_MARGIN - 1) / count)); // a hidden canvas has no width
  return cell >= 4 ? Math.floor(cell) : cell;
}

function paintHeat(canvas, page, { source, target, bytes, most, count }) {
  const width = canvas.parentElement.clientWidth;
  const cell = heatCell(width, count);
  const size = HEAT_MARGIN + cell * count + 1;
  canvas.style.width = `${size}px`;
  fitCanvas(canvas, size, (context) => {
    context.translate(HEAT_MARGIN, HEAT_MARGIN);
    context.fillStyle = css(themeColour("--paper"));
    context.fillRect(0, 0, cell * count, cell * count);
    bytes.forEach((amount, i) => {
      context.fillStyle = css(heatColour(amount / most));
      context.fillRect(target[i] * cell, source[i] * cell, cell, cell);
    });
    heatGrid(context, page.data.cluster, count, cell);
    heatLabels(context, count, cell);
  });
}

function heatGrid(context, cluster, count, cell) {
  for (let d = 0; d <= count; d++) {
    const border = d === 0 || d === count || cluster.devices[d][1] !== cluster.devices[d - 1][1];
    if (!border && cell < 8) continue;
    context.fillStyle = css(themeColour(border ? "--soft" : "--line"));
    context.fillRect(d * cell, 0, 1, cell * count);
    context.fillRect(0, d * cell, cell * count, 1);
  }
}

function heatLabels(context, count, cell) {
  context.fillStyle = css(themeColour("--soft"));
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  const every = Math.ceil(18 / cell);
  for (let d = 0; d < count; d += every) {
    context.textAlign = "right";
    context.fillText(String(d), -5, (d + 0.5) * cell);
    context.textAlign = "center";
    context.fillText(String(d), (d + 0.5) * cell, -9);
  }
  context.textAlign = "left";
  context.fillText("from ↓ to →", 1 - HEAT_MARGIN, -25);
}

function heatTip(event, canvas, page, tip) {
  const { source, target, bytes, count, total } = trafficPairs(page);
  const box = canvas.getBoundingClientRect();
  const cell = heatCell(canvas.parentElement.clientWidth, count);
  const device = (distance) => Math.floor((distance - HEAT_MARGIN) / cell);
  const [to, from] = [device(event.clientX - box.left), device(event.clientY - box.top)];
  if (from < 0 || to < 0 || from >= count || to >= count || from === to) return tip.hide();
  const at = source.findIndex((s, i) => s === from && target[i] === to);
  const amount = at < 0 ? 0 : bytes[at];
  const share = percentText(amount / (total || 1));
  tip.show(event, `device ${from} → device ${to}\n${bytesText(amount)} a step (${share})`);
}
