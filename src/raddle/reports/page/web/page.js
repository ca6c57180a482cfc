// Builds the page of a report, with one section per view, such as the timeline. Views listen to the selection: a
// method, an operator, a time span.

const VIEWS = [
  { id: "headline", view: headlineView },
  { id: "methods", title: "Methods", view: barsView },
  { id: "timeline", title: "Timeline", view: timelineView },
  { id: "memory", title: "Memory", view: memoryView },
  { id: "network", title: "Operators", view: networkView },
  { id: "operator", title: "Operator", view: operatorView },
  { id: "strips", title: "Who computes what", view: stripsView },
  { id: "traffic", title: "Bytes between devices", view: trafficView },
  { id: "search", title: "Search", view: searchView },
  { id: "copying", title: "Take it with you", view: copyingView },
];

// A page has `data`, `method` (the shown entry of data.methods), `op` (the number of the chosen operator, or -1),
// `span` ([from, to] in ns), and `on(event, listener)`; events are "method", "op", "span", "theme" and "resize".
class Page {
  constructor(data) {
    this.data = data;
    this.number = data.opens ?? data.best;
    this.op = -1;
    this.listeners = {};
    this.gone = new AbortController(); // removes listeners outside its sections
    this.resetSpan();
  }

  get method() {
    return this.data.methods[this.number];
  }

  on(events, listener) {
    for (const event of events.split(" ")) (this.listeners[event] ??= []).push(listener);
  }

  notify(event) {
    for (const listener of this.listeners[event] ?? []) listener();
  }

  select(number) {
    if (number === this.number || !this.data.methods[number].timeline) return;
    this.number = number;
    this.resetSpan();
    this.notify("method");
  }

  // Choosing the chosen operator again unselects it.
  choose(op) {
    this.op = op === this.op ? -1 : op;
    this.notify("op");
  }

  resetSpan() {
    this.span = [0, this.method.timeline ? wholeSpan(this.method) : 1];
  }

  look(from, to) {
    this.span = [from, to];
    this.notify("span");
  }
}

function show(data) {
  window.raddle?.gone.abort(); // on a live page: the report that was shown before
  const page = new Page(data);
  document.title = `${cut(data.model, 60)} on ${cut(data.cluster.name, 40)} · raddle`;
  const sections = VIEWS.map(({ id, title, view }) => {
    const section = el(`section.${id}`, { id, "aria-label": title ?? "Summary" });
    if (title) section.append(el("h2", {}, title));
    return [section, view];
  });
  clear(document.getElementById("page"), sections.map(([section]) => section));
  for (const [section, view] of sections) view(section, page);
  window.onresize = () => page.notify("resize");
  themeButton(page);
  window.raddle = page; // for the browser's console, and for tests
  document.documentElement.dataset.ready = "yes";
}
