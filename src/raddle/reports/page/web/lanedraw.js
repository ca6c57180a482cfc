// Draws one frame of the timeline: axis, labels, the pixels of the rows in view, and marks on top of them.

// TimelineView.draw (timeline.js) lists the properties of a frame.
function drawTimeline(context, frame) {
  const { palette, ratio, size, page, plot, rows, top } = frame;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = css(palette.card);
  context.fillRect(0, 0, ...size);
  const ticks = timeTicks(page.span, plot.width);
  const inView = rows.filter((row) => row.top + row.height > top && row.top < top + plot.height);
  drawRows(context, frame, inView, ticks);
  drawOutside(context, frame);
  const marks = periodMarks(frame);
  drawPeriodLines(context, frame, marks);
  drawOutlines(context, frame);
  drawFade(context, frame);
  drawLabels(context, frame, inView);
  drawAxis(context, frame, ticks);
  drawPeriodTexts(context, frame, marks);
}

const timeToX = ({ page, plot }, time) =>
  plot.left + ((time - page.span[0]) / (page.span[1] - page.span[0])) * plot.width;

// Composes the pixels of the rows in view, then writes names into wide slices. `shift`: where in its pattern the first
// pixel is, so that patterns move with the slices. `wide`: the slices that have room for a name.
function drawRows(context, frame, inView, ticks) {
  const { page, plot, ratio, palette, top, font } = frame;
  const [from, to] = page.span;
  const picture = lanePicture(context, plot.width * ratio, plot.height * ratio, pixelWord(palette.card));
  const buffers = picture.buffers;
  const perPixel = (to - from) / buffers.width;
  const period = PATTERN_PERIOD * ratio;
  const shift = ((Math.round(from / perPixel) % period) + period) % period;
  const view = { from, perPixel, ratio, shift, top, font };
  buffers.track.fill(pixelWord(palette.paper));
  for (const { time } of ticks) {
    buffers.track[Math.floor((time - from) / perPixel)] = pixelWord(palette.line);
  }
  const wide = [];
  for (const row of inView) {
    const patterned = markRow(row, view, buffers, wide);
    const band = row.kind === "measured" ? 0 : frame.band;
    copyRow(row, view, buffers, palette, picture, { top: (row.top - top) * ratio, band, patterned });
  }
  context.putImageData(picture.image, plot.left * ratio, plot.top * ratio);
  context.save();
  context.beginPath();
  context.rect(plot.left, plot.top, plot.width, plot.height);
  context.clip();
  drawNames(context, wide, view, palette, plot);
  context.restore();
}

// The pixels below the axis; the image is reused from frame to frame.
function lanePicture(context, width, height, background) {
  let picture = lanePicture.kept;
  if (picture?.image.width !== width || picture.image.height !== height) {
    const image = context.createImageData(width, height);
    const words = new Uint32Array(image.data.buffer);
    picture = lanePicture.kept = { image, words, height, buffers: lineBuffers(width) };
  }
  picture.words.fill(background);
  return picture;
}

// Greys out the time before the step begins and after it ends.
function drawOutside(context, frame) {
  const { page, plot, palette } = frame;
  const right = plot.left + plot.width;
  const begin = between(plot.left, timeToX(frame, 0), right);
  const end = between(plot.left, timeToX(frame, wholeSpan(page.method)), right);
  context.fillStyle = css(palette.card, 0.7);
  context.fillRect(plot.left, plot.top, begin - plot.left, plot.height);
  context.fillRect(end, plot.top, right - end, plot.height);
}

// The predicted and the measured end of the step, if they are in view, from left to right.
function periodMarks(frame) {
  const { palette, measured, page, plot } = frame;
  const mark = (what, time, colour, dash) => ({
    x: timeToX(frame, time),
    text: `${what} ${nsText(time)}`,
    colour: css(colour),
    dash,
  });
  const marks = [mark(measured ? "predicted" : "step", page.method.timeline.period_ns, palette.ink, [])];
  if (measured) marks.push(mark("measured", measured.timeline.period_ns, palette.accent, [4, 3]));
  return marks
    .filter(({ x }) => x >= plot.left && x <= plot.left + plot.width + 1)
    .sort((a, b) => a.x - b.x);
}

function drawPeriodLines(context, { plot }, marks) {
  context.lineWidth = 1.5;
  for (const { x, colour, dash } of marks) {
    context.strokeStyle = colour;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x, plot.top);
    context.lineTo(x, plot.top + plot.height);
    context.stroke();
  }
  context.setLineDash([]);
}

function drawOutlines(context, frame) {
  if (frame.hovered) drawOutline(context, frame, frame.hovered, css(frame.palette.ink), 1.5);
  if (frame.focused) drawOutline(context, frame, frame.focused, css(frame.palette.ink), 2.5);
}

// Frames a slice: `place` is its index in the row.
function drawOutline(context, frame, { row, place }, colour, thick) {
  const { plot, top, palette } = frame;
  const left = Math.max(plot.left - 2, timeToX(frame, row.start[place]));
  const right = Math.min(plot.left + plot.width + 2, timeToX(frame, row.end[place]));
  if (right < left) return;
  const y = plot.top + row.top - top;
  const box = [left - thick / 2, y - thick / 2, Math.max(2, right - left) + thick, row.height + thick];
  context.strokeStyle = css(palette.paper);
  context.lineWidth = thick + 2;
  context.strokeRect(...box);
  context.strokeStyle = colour;
  context.lineWidth = thick;
  context.strokeRect(...box);
}

// If there are more rows below, the last lines fade out, because scroll bars are often hidden.
function drawFade(context, { plot, palette, rows, top }) {
  const last = rows.at(-1);
  if (last.top + last.height <= top + plot.height) return;
  const bottom = plot.top + plot.height;
  const fade = context.createLinearGradient(0, bottom - 24, 0, bottom);
  fade.addColorStop(0, css(palette.card, 0));
  fade.addColorStop(1, css(palette.card));
  context.fillStyle = fade;
  context.fillRect(plot.left, bottom - 24, plot.width, 24);
}

function drawLabels(context, frame, inView) {
  const { plot, palette, top, page, font, focused, size } = frame;
  context.fillStyle = css(palette.card);
  context.fillRect(0, plot.top, plot.left - 2, plot.height);
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (const row of inView) {
    const middle = plot.top + row.top - top + row.height / 2;
    if (row.kind === "device") drawDeviceMark(context, deviceStyle(page.data.cluster, row.device), middle);
    const chosen = focused?.row === row;
    context.font = `${chosen ? "bold " : ""}${row.kind === "device" ? 12 : 11}px ${font}`;
    context.fillStyle = css(row.kind === "device" || chosen ? palette.ink : palette.soft);
    const name = row.kind === "measured" ? "measured" : row.name;
    const indent = row.kind === "link" ? 0 : 16;
    const room = plot.left - indent - 8;
    context.fillText(cut(name, Math.floor(room / 5.6)), indent, middle, room);
  }
  context.fillStyle = css(palette.card);
  context.fillRect(0, 0, size[0], plot.top);
}

function drawDeviceMark(context, style, middle) {
  context.fillStyle = patternFill(context, style);
  context.fillRect(0, Math.round(middle) - 5, 10, 10);
}

function drawAxis(context, frame, ticks) {
  const { plot, palette, font, size } = frame;
  context.fillStyle = css(palette.line);
  context.fillRect(plot.left, plot.top - 1, plot.width, 1);
  context.font = `11px ${font}`;
  context.textBaseline = "alphabetic";
  context.textAlign = "center";
  for (const { time, text } of ticks) {
    const x = timeToX(frame, time);
    context.fillStyle = css(palette.line);
    context.fillRect(Math.floor(x), plot.top - 6, 1, 5);
    context.fillStyle = css(palette.soft);
    const half = context.measureText(text).width / 2;
    context.fillText(text, between(half, x, size[0] - half), plot.top - 9);
  }
}

// If there are two texts, the first is left of its line and the second right, so that they do not touch.
function drawPeriodTexts(context, { size, plot }, marks) {
  marks.forEach(({ x, text, colour }, n) => {
    const width = context.measureText(text).width;
    const crowded = marks.length > 1 && n === 0 && x - width - 6 > plot.left;
    const leftward = crowded || x + width + 6 > size[0];
    context.fillStyle = colour;
    context.fillRect(x - 0.75, 4, 1.5, plot.top - 4);
    context.textAlign = leftward ? "right" : "left";
    context.fillText(text, leftward ? x - 5 : x + 5, 12);
  });
}
