// Sorts a timeline's slices into rows by time, so that a frame reads only the slices in view. A slice is the interval
// of one task, a lane is a device or a link; times are in ns. A title is [kind, name, phase, operator, micro-batch],
// for example ["run", "conv1", "forward", 0, 0].

const LOOKS = Object.keys(DOING);
const ROW_HEIGHTS = { device: 18, measured: 9, link: 13 };

// The columns of a timeline by slice, and the slices of each lane. Built once per timeline; only `lit` changes,
// with the selection.
function timelineLayer(data, timeline) {
  if (!timelineLayer.layers.has(timeline)) timelineLayer.layers.set(timeline, newLayer(data, timeline));
  return timelineLayer.layers.get(timeline);
}
timelineLayer.layers = new WeakMap();

// look: the number of a slice's activity in LOOKS; lit: 1, or 0 for a slice that is drawn pale.
function newLayer(data, timeline) {
  const columns = ["start", "duration", "lane", "lane2", "title", "source", "target", "bytes"];
  const layer = { timeline, names: timeline.titles.map((title) => visible(title[1])) };
  for (const name of columns) layer[name] = data.column(timeline[name]);
  const look = timeline.titles.map((title) => LOOKS.indexOf(doing(title)));
  layer.look = Uint8Array.from(layer.title, (title) => look[title]);
  layer.op = Int32Array.from(layer.title, (title) => timeline.titles[title][3]); // 3: the operator, or -1
  layer.lit = new Uint8Array(timeline.count).fill(1);
  layer.critical = new Uint8Array(timeline.count);
  for (const slice of data.column(timeline.critical)) layer.critical[slice] = 1;
  layer.lanes = slicesByLane(layer);
  return layer;
}

// A message is in the lanes of both links that it occupies.
function slicesByLane({ timeline, start, duration, lane, lane2 }) {
  const laneSlices = timeline.lanes.map(() => []);
  for (let slice = 0; slice < timeline.count; slice++) {
    laneSlices[lane[slice]].push(slice);
    if (lane2[slice] >= 0) laneSlices[lane2[slice]].push(slice);
  }
  return laneSlices.map((slices) => {
    const sorted = Int32Array.from(slices).sort((a, b) => start[a] - start[b]);
    return {
      slices: sorted,
      start: Float64Array.from(sorted, (slice) => start[slice]),
      end: Float64Array.from(sorted, (slice) => start[slice] + duration[slice]),
    };
  });
}

// Slices of other operators than the selected one are pale; with `criticalOnly`, also those off the critical path.
function lightSlices(layer, op, criticalOnly) {
  for (let slice = 0; slice < layer.lit.length; slice++) {
    const chosen = op < 0 || layer.op[slice] === op;
    layer.lit[slice] = chosen && (!criticalOnly || layer.critical[slice]) ? 1 : 0;
  }
}

// Rows from top to bottom: devices, each followed by its measured row, then links; with gaps between nodes. The node
// of a link is the first part of its name, such as "node0". cluster.devices[d] is [kind, node, bytes of memory].
function timelineRows(cluster, predicted, measured) {
  const rows = [];
  let [top, group] = [0, null];
  predicted.timeline.lanes.forEach((lane, number) => {
    const kind = lane.device >= 0 ? "device" : "link";
    const node = kind === "device" ? cluster.devices[lane.device][1] : lane.name.split(/[. ]/)[0];
    if (rows.length && node !== group) top += kind === "link" && rows.at(-1).kind !== "link" ? 14 : 6;
    group = node;
    top = addRow(rows, top, kind, lane, predicted, number) + 2;
    const beneath = kind === "device" && measured ? measuredLane(measured, lane.device) : -1;
    if (beneath >= 0) top = addRow(rows, top - 1, "measured", lane, measured, beneath) + 4;
  });
  return rows;
}

function addRow(rows, top, kind, { name, device }, layer, number) {
  rows.push({ kind, name, device, layer, number, top, height: ROW_HEIGHTS[kind], ...layer.lanes[number] });
  return top + ROW_HEIGHTS[kind];
}

// The number of the lane in which a device's computations were measured, or -1.
const measuredLane = ({ timeline }, device) =>
  timeline.lanes.findIndex((lane) => lane.device === device && lane.name.endsWith(", compute"));

// A binary search: slices of a row do not overlap, so their ends are sorted like their starts.
function firstEndingAfter({ end }, time) {
  let [low, high] = [0, end.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (end[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The index in a row of the slice at a time, or of the nearest slice at most `slack` away; or -1.
function placeAt(row, time, slack) {
  let [best, least] = [-1, slack];
  const { start, end } = row;
  for (let i = firstEndingAfter(row, time - slack); i < start.length && start[i] <= time + slack; i++) {
    const away = Math.max(start[i] - time, time - end[i], 0);
    if (away < least || (away === 0 && best < 0)) [best, least] = [i, away];
  }
  return best;
}

// The lines of a slice's tooltip.
function sliceLines({ layer, kind }, slice, microbatches) {
  const { timeline, source, target, bytes } = layer;
  const [, name, phase, , micro] = timeline.titles[layer.title[slice]];
  const what = DOING[LOOKS[layer.look[slice]]].text;
  const lanes = [layer.lane[slice], layer.lane2[slice]].filter((lane) => lane >= 0);
  const carried = bytes[slice] > 0 ? [bytesText(bytes[slice])] : [];
  if (source[slice] >= 0 && source[slice] !== target[slice]) {
    carried.push(`device ${source[slice]} → device ${target[slice]}`);
  }
  return [
    name,
    `${what}${phase && phase !== what ? ` (${phase})` : ""}${kind === "measured" ? ", measured" : ""}`,
    lanes.map((lane) => timeline.lanes[lane].name).join(" and "),
    `starts at ${nsText(layer.start[slice])}, takes ${nsText(layer.duration[slice])}`,
    carried.join(", "),
    microbatches > 1 ? `micro-batch ${micro}` : "",
    layer.critical[slice] ? "on the critical path" : "",
  ].filter((line) => line);
}
