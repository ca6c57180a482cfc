// Shows the result of the shown plan in one line, and a few sentences that explain it.

function headlineView(section, page) {
  const what = el("p.what.soft");
  const line = el("h1");
  const facts = el("p.facts");
  const why = el("div.why");
  section.append(what, line, facts, why);
  const draw = () => {
    const { data, method } = page;
    clear(what, whatText(data, method));
    clear(line, el("span", {}, headlineText(method)));
    clear(facts, headlineFacts(data, method).map((fact) => el("span.fact", {}, fact)));
    clear(why, (method.sentences ?? []).map((text, i) => el(i ? "p.soft.name" : "p.name", {}, text)));
  };
  page.on("method", draw);
  draw();
}

// method: an entry of data.methods, a plan with its predicted metrics or a method that failed (`error`).
function whatText(data, method) {
  const name = (text, most) => el("b.name", { title: cut(text, 500) }, cut(text, most));
  return el(
    "span",
    {},
    name(data.model, 60),
    ` · batch ${method.batch ?? data.batch} · `,
    name(method.label, 60),
    " on ",
    name(data.cluster.name, 40),
    ` · ${plural(data.cluster.devices.length, "device")} · `,
    name(`${method.precision} with ${method.optimizer}`, 60),
    ", simulated",
  );
}

function headlineText(method) {
  if (method.error) return "It cannot be applied";
  const { speedup, label } = method;
  const step = `${msText(method.step_ms)} a step`;
  if (label === "data") return `Data parallel: ${step}`;
  if (speedup === null) return step;
  if (speedup > 1.005) return `${speedup.toFixed(2)} × faster than data parallel`;
  if (speedup < 0.995) return `${speedup.toFixed(2)} × the speed of data parallel`;
  return `As fast as data parallel: ${step}`;
}

function headlineFacts(data, method) {
  if (method.error) return [method.error];
  const { peak_bytes: peak, memory_bytes: memory } = method.fullest;
  const facts = [
    `${msText(method.step_ms)} a step`,
    `${countText(method.samples_per_s)} samples/s`,
    `${bytesText(peak)} of ${bytesText(memory)}${method.fits ? "" : ": does not fit"}`,
    `${bytesText(method.comm_bytes)} sent a step`,
  ];
  if (method.bound) {
    facts.push(`${percentText(method.step_ms / method.bound.ms - 1)} above the lower bound`);
  }
  if (method.measured) facts.push(`measured ${msText(method.measured.step_ms)}`);
  return facts;
}
