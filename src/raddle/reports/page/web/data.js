// Unpacks the data of the page, which html.py packed: compressed and in base64, the length of the JSON, the JSON, and
// columns of numbers.

async function unpack(base64) {
  const text = atob(base64.trim());
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  return unpackBytes(packed);
}

// Returns the JSON data (docs/page.md lists the keys), with data.column(c): the numbers of a column's description c.
async function unpackBytes(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const data = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const block = bytes.subarray(4 + length);
  const columns = new Map();
  data.column = (column) => {
    if (!columns.has(column)) columns.set(column, readColumn(block, column));
    return columns.get(column);
  };
  return data;
}

// See columns.py. A column is stored byte plane by byte plane, the lowest byte first, after the smallest value was
// subtracted; with `delta` it has differences.
function readColumn(block, { at, n, width, least, delta }) {
  const numbers = new Float64Array(n);
  for (let byte = 0, scale = 1; byte < width; byte++, scale *= 256) {
    const plane = at + byte * n;
    for (let i = 0; i < n; i++) numbers[i] += block[plane + i] * scale;
  }
  for (let i = 0, last = 0; i < n; i++) {
    numbers[i] += least;
    if (delta) last = numbers[i] += last;
  }
  return numbers;
}
