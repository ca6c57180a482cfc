// Paints the rows of a timeline as pixels; a slice is a bar of it, the interval of one task. Thousands of slices take
// little time: each slice marks the pixels of one line of its row, and this line is then copied down the row, with the
// pattern of each slice. The look of a slice is the number of its activity in LOOKS (lanes.js). DOING (colours.js) has
// the colour and the pattern of each activity; INKS (colours.js) has for each pattern whether it inks a pixel. A slice
// is lit, or pale if it does not belong to the selection.

const PATTERN_PERIOD = 12; // pixels, in both directions, after which every pattern in DOING repeats
const LEVELS = [0.55, 0.7, 0.85, 1]; // strength of a pixel's colour, by the share of its time that is busy
// Style 0: nothing runs. The other styles: each look, lit or pale (the factor 2), with each level.
const STYLES_COUNT = 1 + LOOKS.length * 2 * LEVELS.length;
const WIDE = 44; // pixels; a slice of this width has room for a text

// The style of a pixel: the look of its slice, whether it is pale, and the level (how busy it is).
const styleNumber = (look, pale, level) => 1 + (look * 2 + pale) * LEVELS.length + level;

// A colour as one 32-bit integer, as image data store it.
const pixelWord = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

const isLight = ([r, g, b]) => r * 0.3 + g * 0.6 + b * 0.1 > 150;

// The colours of the theme. words: for each pixel of a pattern's period and each style, the colour as one integer.
// looks, inks: by look, the colour of a slice and of the text in it.
function lanePalette() {
  const named = (names) => Object.fromEntries(names.map((name) => [name, themeColour(`--${name}`)]));
  const theme = named(["paper", "card", "line", "ink", "soft", "critical", "accent", "warn"]);
  const looks = LOOKS.map((activity) => themeColour(DOING[activity].variable));
  const words = new Uint32Array(PATTERN_PERIOD ** 2 * STYLES_COUNT);
  for (let y = 0; y < PATTERN_PERIOD; y++) {
    for (let x = 0; x < PATTERN_PERIOD; x++) {
      const at = (y * PATTERN_PERIOD + x) * STYLES_COUNT;
      LOOKS.forEach((activity, look) => {
        fillStyles(words, at, look, inkedColour(looks[look], activity, x, y), theme.paper);
      });
    }
  }
  return { ...theme, looks, words, inks: looks.map((colour) => (isLight(colour) ? "#10151c" : "#ffffff")) };
}

// The colour of pixel x, y: darker or paler than `colour` where the activity's pattern has ink.
function inkedColour(colour, activity, x, y) {
  if (!INKS[DOING[activity].pattern](x, y)) return colour;
  return mixed(colour, isLight(colour) ? [0, 0, 0] : [255, 255, 255], 0.45);
}

function fillStyles(words, at, look, colour, paper) {
  for (const pale of [0, 1]) {
    LEVELS.forEach((strength, level) => {
      const shown = mixed(paper, colour, strength * (pale ? 0.28 : 1));
      words[at + styleNumber(look, pale, level)] = pixelWord(shown);
    });
  }
}

// Buffers in which the lines of a frame are composed; `width` is in pixels of the canvas.
function lineBuffers(width) {
  return {
    width,
    track: new Uint32Array(width), // colour of a row where nothing runs
    line: new Uint32Array(width),
    style: new Uint8Array(width),
    busy: new Float32Array(width), // share of a pixel's time in which something runs
    weight: new Float32Array(width), // weight of the slice that gives a pixel its colour
    shown: new Uint8Array(width), // look and paleness of that slice
    critical: new Uint8Array(width),
  };
}

// Marks the pixels of a row's slices, and adds slices with room for a text to `wide`.
// view: from (ns), perPixel (ns), ratio (pixels of the canvas per CSS pixel). row.layer: the predicted or the measured
// timeline, as arrays by slice (timelineLayer in lanes.js).
function markRow(row, view, buffers, wide) {
  const { slices, start, end, layer } = row;
  const { width, busy, weight, critical } = buffers;
  busy.fill(0);
  weight.fill(0);
  critical.fill(0);
  const to = view.from + width * view.perPixel;
  for (let i = firstEndingAfter(row, view.from); i < slices.length && start[i] < to; i++) {
    const slice = slices[i];
    const left = (start[i] - view.from) / view.perPixel;
    let right = (end[i] - view.from) / view.perPixel;
    if (right - left >= WIDE * view.ratio) wide.push({ row, slice, left, right });
    if (right - left > 4 * view.ratio) right -= 0.7 * view.ratio; // a gap between neighbours
    markSlice(buffers, left, right, layer.look[slice] * 2 + 1 - layer.lit[slice]);
    if (layer.critical[slice]) critical.fill(1, Math.max(0, Math.floor(left)), Math.floor(right) + 1);
  }
  return settleStyles(buffers);
}

// left, right: in pixels, with fractions; shown: look * 2, plus 1 if the slice is pale.
function markSlice(buffers, left, right, shown) {
  const first = Math.max(0, Math.floor(left));
  const last = Math.min(buffers.width - 1, Math.floor(right));
  if (last < first) return; // only the gap after the slice is in view
  markPixel(buffers, first, Math.min(right, first + 1) - Math.max(left, first), shown);
  if (last === first) return;
  buffers.busy.fill(1, first + 1, last);
  buffers.weight.fill(1, first + 1, last);
  buffers.shown.fill(shown, first + 1, last);
  markPixel(buffers, last, Math.min(right, last + 1) - last, shown);
}

// The longest slice in a pixel gives the pixel its colour; a pale slice (odd `shown`) only if there is no lit one.
function markPixel({ busy, weight, shown: shownIn }, x, share, shown) {
  const weighed = shown % 2 ? share * 1e-4 : share + 1e-3;
  busy[x] += share;
  if (weighed <= weight[x]) return;
  weight[x] = weighed;
  shownIn[x] = shown;
}

// Computes the styles of a row's pixels. Returns whether one has a pattern, so that the lines of the row differ.
function settleStyles({ width, style, busy, weight, shown }) {
  let patterned = false;
  for (let x = 0; x < width; x++) {
    if (weight[x] === 0) {
      style[x] = 0;
      continue;
    }
    const level = busy[x] < 0.3 ? 0 : busy[x] < 0.6 ? 1 : busy[x] < 0.9 ? 2 : 3;
    style[x] = 1 + shown[x] * LEVELS.length + level;
    patterned ||= PATTERNED[shown[x] >> 1];
  }
  return patterned;
}
const PATTERNED = LOOKS.map((activity) => DOING[activity].pattern !== "solid"); // by look

// Copies a marked row into the picture, from line `top` on. Its lowest `band` CSS pixels mark slices on the
// critical path. Patterns move with the slices: `view.shift` is where in its pattern the first pixel is.
function copyRow(row, view, buffers, palette, picture, { top, band, patterned }) {
  const { width, line } = buffers;
  const height = row.height * view.ratio;
  for (let y = Math.max(0, -top); y < height && top + y < picture.height; y++) {
    const cssY = Math.floor(y / view.ratio);
    const changed = y % view.ratio === 0 && (patterned || cssY === row.height - band);
    if (changed || y === Math.max(0, -top)) {
      composeLine(buffers, palette, cssY, view, cssY >= row.height - band);
    }
    picture.words.set(line, (top + y) * width);
  }
}

function composeLine({ width, track, line, style, critical }, { words, critical: mark }, y, view, inBand) {
  const row = (y % PATTERN_PERIOD) * PATTERN_PERIOD;
  const markWord = pixelWord(mark);
  line.set(track);
  for (let x = 0, phase = view.shift; x < width; x++) {
    if (style[x]) line[x] = words[(row + Math.floor(phase / view.ratio)) * STYLES_COUNT + style[x]];
    if (inBand && critical[x]) line[x] = markWord;
    if (++phase === PATTERN_PERIOD * view.ratio) phase = 0;
  }
}

// Writes names into slices that are wide enough. A text on a pattern gets a background of the plain colour.
function drawNames(context, wide, view, palette, plot) {
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (const { row, slice, left, right } of wide) {
    const x = Math.max(0, left / view.ratio) + 4;
    const room = Math.min(plot.width, right / view.ratio) - 5 - x;
    if (row.kind === "measured" || room < WIDE - 12) continue;
    const look = row.layer.look[slice];
    const lit = row.layer.lit[slice];
    const text = cut(row.layer.names[row.layer.title[slice]], Math.floor(room / 6));
    const middle = plot.top + row.top - view.top + row.height / 2 + (row.kind === "device" ? -0.5 : 0.5);
    context.font = `${row.kind === "device" ? 11 : 10}px ${view.font}`;
    if (lit && PATTERNED[look]) {
      context.fillStyle = css(palette.looks[look]);
      const width = Math.min(room, context.measureText(text).width);
      context.fillRect(plot.left + x - 2, middle - 5, width + 4, 10);
    }
    context.fillStyle = lit ? palette.inks[look] : css(palette.soft);
    context.fillText(text, plot.left + x, middle, room);
  }
}
