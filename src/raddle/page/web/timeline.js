function timelineView(section, page) {
  section.append(el("p", {}, "not there yet"));
}
