// Starts the page: unpacks its data and shows them. Also has the button that changes between a dark and a light theme.

let chosenTheme = null; // null: the system's theme

function themeButton(page) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const apply = (theme) => {
    root.dataset.theme = theme ?? chosenTheme ?? (dark.matches ? "dark" : "light");
    page.notify("theme");
  };
  const flip = () => {
    chosenTheme = root.dataset.theme === "dark" ? "light" : "dark";
    apply();
  };
  document.getElementById("headline").prepend(
    el("button.theme", { onclick: flip, title: "Dark or light", "aria-label": "Dark or light" }, "◐"),
  );
  dark.addEventListener("change", () => apply(), { signal: page.gone.signal });
  window.onbeforeprint = () => apply("light");
  window.onafterprint = () => apply();
  apply();
}

async function start() {
  const given = document.getElementById("data").textContent;
  if (given) show(await unpack(given));
}

start();
