// Offers the shown plan as a file and as text, and the command that runs it, to copy or to save.

function copyingView(section, page) {
  const line = el("code.name");
  const text = el("pre.name", { tabindex: 0, "aria-label": "The plan as text" });
  const plan = () => `${JSON.stringify(page.method.plan, null, 1)}\n`;
  section.append(
    el(
      "p.buttons",
      {},
      copyButton("Copy the plan (JSON)", plan),
      el("button", { onclick: () => download(page.method.file, plan()) }, "Save the plan"),
      copyButton("Copy its text", () => page.method.text),
      copyButton("Copy the torchrun line", () => page.method.torchrun),
    ),
    el("p", {}, line),
    el("details", {}, el("summary", {}, "The plan as text"), text),
  );
  const draw = () => {
    section.hidden = !page.method.plan;
    if (section.hidden) return;
    clear(line, document.createTextNode(cut(page.method.torchrun, 400)));
    clear(text, document.createTextNode(visible(page.method.text)));
  };
  page.on("method", draw);
  draw();
}

function copyButton(label, text) {
  const button = el("button.copy", {}, label);
  button.onclick = async () => {
    const done = await copyText(text());
    clear(button, document.createTextNode(done ? "Copied" : "It could not be copied"));
    setTimeout(() => clear(button, document.createTextNode(label)), 1500);
  };
  return button;
}

// Browsers may deny the clipboard to pages from disk; then a text field is used.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea.away");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
