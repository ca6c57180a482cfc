// Makes tables for the page of an experiment. A table's head names the source of each column; a click on the head sorts
// by the column.

const SOURCES = {
  measured: "on this machine, by running it",
  simulated: "by raddle, on the cluster that is named",
  counted: "from a plan alone: bytes, flops, weights",
  printed: "in the paper",
};
const TALL = 24; // rows; a longer table scrolls under its head
const LONG = 40; // characters; longer cells are broken into lines

function sourceLabel(source) {
  return source && el(`span.source.${source}`, { title: `${source}: ${SOURCES[source]}` }, source);
}

// The element for a table {columns: [{name, source, number}], rows: [[cell]]}. A cell is [text], [text, number]
// (sorted by the number), or [text, null] if there is no value.
function tableBox({ columns, rows }, label) {
  const sort = { column: -1, falling: false };
  const body = el("tbody");
  const heads = columns.map((column, i) => tableHead(column, () => turn(i)));
  const fill = () => {
    heads.forEach((head, i) => markHead(head, i === sort.column, sort.falling));
    clear(body, sorted(rows, sort).map((row) => tableRow(row, columns)));
  };
  const turn = (i) => {
    if (sort.column !== i) Object.assign(sort, { column: i, falling: false });
    else if (!sort.falling) sort.falling = true;
    else sort.column = -1; // the original order
    fill();
  };
  fill();
  const table = el("table.figures", { "aria-label": label }, el("thead", {}, el("tr", {}, heads)), body);
  return el(rows.length > TALL ? "div.scroll.tall" : "div.scroll", {}, table);
}

function tableHead({ name, source, number }, turn) {
  return el(
    number ? "th.number" : "th",
    { scope: "col" },
    el("button.sort", { onclick: turn }, el("span.name", {}, cut(name, 120)), el("span.arrow")),
    sourceLabel(source),
  );
}

function markHead(head, on, falling) {
  head.querySelector(".arrow").textContent = on ? (falling ? "▼" : "▲") : "";
  if (on) head.setAttribute("aria-sort", falling ? "descending" : "ascending");
  else head.removeAttribute("aria-sort");
}

function tableRow(row, columns) {
  const cells = row.map(([text], i) => {
    const kind = columns[i].number ? ".number" : text.length > LONG ? ".long" : "";
    return el(`td.name${kind}`, { title: text.length > 200 && cut(text, 500) }, cut(text, 200));
  });
  return el("tr", {}, cells);
}

function sorted(rows, { column, falling }) {
  if (column < 0) return rows;
  const sign = falling ? -1 : 1;
  return [...rows].sort((a, b) => compareCells(a[column], b[column], sign));
}

// Numbers come before texts, and missing values last, in both directions.
function compareCells(a, b, sign) {
  const rank = (cell) => (cell.length === 1 ? 1 : cell[1] === null ? 2 : 0);
  if (rank(a) !== rank(b) || rank(a) === 2) return rank(a) - rank(b);
  return sign * (rank(a) ? a[0].localeCompare(b[0], "en", { numeric: true }) : a[1] - b[1]);
}
