"use strict";
// The page of a live.Record. A stream of server-sent events brings a view first, then what follows it.

const shown = 30;       // seconds in the chart
const kept = 600;       // samples
const listed = 50;      // events
const mib = 1 << 20;
const at = (id) => document.getElementById(id);

let setup = null, samples = [], events = [], buttons = new Map();

// node makes an element of HTML, or of SVG inside of one.
function node(parent, name, attributes = {}, text) {
  const space = parent.namespaceURI;
  const n = document.createElementNS(space, name);
  for (const [k, v] of Object.entries(attributes)) n.setAttribute(k, v);
  if (text !== undefined) n.textContent = text;
  parent.append(n);
  return n;
}

const colour = (rail) => `var(--r${rail % 8})`;
const rate = (x) => (x / mib).toFixed(1);
const time = (us) => us < 1000 ? `${us.toFixed(1)} \u00b5s` : `${(us / 1000).toFixed(1)} ms`;
const count = (n) => n.toLocaleString("en");

function state(text, off) {
  at("state").textContent = text;
  at("state").className = off ? "off" : "";
}

// The stream. EventSource connects again by itself if the program is still there.
const stream = new EventSource("stream");
stream.addEventListener("view", (m) => {
  const v = JSON.parse(m.data);
  ({ setup, samples, events } = v);
  const had = document.activeElement.dataset; // of a button that build replaces when the stream connects again
  build();
  const button = had && buttons.get(`${had.rail} ${had.action}`);
  if (button) button.focus();
  draw();
  list();
  if (v.ended) end(v.ended);
});
stream.addEventListener("update", (m) => {
  const u = JSON.parse(m.data);
  if (u.sample) {
    samples.push(u.sample);
    if (samples.length > kept) samples.splice(0, samples.length - kept);
    draw();
  }
  if (u.event) {
    events.push(u.event);
    if (events.length > listed) events.shift();
    list();
  }
  if (u.ended) end(u.ended);
});
stream.onopen = () => state("live", false);
stream.onerror = () => state("not connected", true);

function end(text) {
  stream.close();
  state("ended", true);
  for (const b of buttons.values()) b.disabled = true;
  events.push({ at: samples.length ? samples.at(-1).at : 0, text });
  list();
}

// build makes what does not change with samples.
function build() {
  state("live", false);
  document.title = at("title").textContent = setup.title;
  at("rails").replaceChildren();
  buttons = new Map();
  setup.rails.forEach((r, i) => {
    const card = node(at("rails"), "article", { id: `rail${i}`, "aria-label": `Rail ${i}` });
    card.style.setProperty("--colour", colour(i));
    const head = node(card, "h3");
    node(head, "span", {}, `Rail ${i}`);
    node(head, "span", { class: "rate" });
    node(card, "p");
    node(card, "ul", { class: "lanes" });
    for (const a of setup.actions || []) {
      const b = node(card, "button", { type: "button", "aria-pressed": "false", "data-rail": i, "data-action": a.name }, a.on);
      b.onclick = () => act(i, a.name, b.getAttribute("aria-pressed") !== "true");
      buttons.set(`${i} ${a.name}`, b);
    }
  });
  const keys = at("keys");
  keys.replaceChildren();
  if (!setup.actions) return;
  keys.append("Keys: ");
  node(keys, "kbd", {}, `1\u2013${setup.rails.length}`);
  keys.append(" choose a rail. Then ");
  setup.actions.forEach((a) => {
    node(keys, "kbd", {}, a.key);
    keys.append(` ${a.on.toLowerCase()}. `);
  });
}

async function act(rail, action, on) {
  try {
    const answer = await fetch("act", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ rail, action, on }),
    });
    if (!answer.ok) throw new Error((await answer.text()).trim());
  } catch (e) {
    events.push({ at: samples.length ? samples.at(-1).at : 0, bad: true, text: `${action} of rail ${rail}: ${e.message}` });
    list();
  }
}

let chosen = 0;
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey || !setup) return;
  const digit = Number(e.key);
  if (digit >= 1 && digit <= setup.rails.length) {
    chosen = digit - 1;
    const first = setup.actions && buttons.get(`${chosen} ${setup.actions[0].name}`);
    if (first) first.focus();
    return;
  }
  const a = (setup.actions || []).find((a) => a.key === e.key);
  if (a) buttons.get(`${chosen} ${a.name}`).click();
});
document.addEventListener("focusin", (e) => {
  if (e.target.dataset.rail !== undefined) chosen = Number(e.target.dataset.rail);
});

function draw() {
  const s = samples.at(-1);
  if (!s) return;
  at("clock").textContent = `${s.at.toFixed(1)} s${setup.seconds ? ` of ${setup.seconds} s` : ""}`;
  totals(s);
  topology(s);
  chart(s);
  s.rails.forEach((r, i) => card(s, r, i));
}

function totals(s) {
  const dl = at("totals");
  dl.replaceChildren();
  const put = (name, value) => {
    const d = node(dl, "div");
    node(d, "dt", {}, name);
    node(d, "dd", {}, value);
  };
  put("Total rate", `${rate(s.bytes_per_second)} MiB/s`);
  put(setup.checked ? "Arrived, every byte compared" : "Arrived", `${count(Math.round(s.bytes / mib))} MiB`);
  put("Messages", count(s.messages));
  if (s.p50_us) put("Latency p50 / p99", `${time(s.p50_us)} / ${time(s.p99_us)}`);
  put("Retransmits", count(s.rails.reduce((n, r) => n + r.retransmits, 0)));
}

// status is the state of a rail in words.
function status(r) {
  const words = [r.up === r.lanes ? "up" : r.up === 0 ? "down" : `${r.up} of ${r.lanes} lanes up`];
  return words.concat(r.faults || []).join(", ");
}

function card(s, r, i) {
  const c = at(`rail${i}`), info = setup.rails[i];
  c.querySelector(".rate").textContent = `${rate(r.bytes_per_second)} MiB/s`;
  const p = c.querySelector("p");
  p.replaceChildren();
  const sick = r.up < r.lanes || (r.faults || []).length > 0;
  node(p, "span", { class: sick ? "bad" : "good" }, status(r));
  p.append(`, ${info.device} \u2192 ${info.peer}, ${count(r.retransmits)} retransmits`);
  const lanes = c.querySelector(".lanes");
  lanes.replaceChildren();
  for (const l of (s.lanes || []).filter((l) => l.rail === i)) {
    const li = node(lanes, "li");
    node(li, "span", { class: l.state === "up" ? "" : "bad" }, `lane ${l.lane}`);
    node(li, "span", {}, l.state === "up" ? rate(l.bytes_per_second) : l.state);
  }
  for (const a of setup.actions || []) {
    const b = buttons.get(`${i} ${a.name}`), on = (r.faults || []).includes(a.name);
    b.setAttribute("aria-pressed", String(on));
    b.textContent = on ? a.off : a.on;
  }
}

// topology draws the two hosts, a line for each lane of each rail, as wide as it is busy.
function topology(s) {
  const svg = at("topology"), band = 84, height = 24 + band * s.rails.length;
  svg.replaceChildren(svg.firstElementChild);
  svg.setAttribute("viewBox", `0 0 900 ${height}`);
  const fastest = Math.max(1, ...(s.lanes || []).map((l) => l.bytes_per_second));
  setup.hosts.forEach((name, k) => {
    const x = k === 0 ? 12 : 748;
    node(svg, "rect", { class: "box", x, y: 12, width: 140, height: height - 24, rx: 8 });
    node(svg, "text", { x: x + (k === 0 ? 12 : 128), y: 34, "text-anchor": k === 0 ? "start" : "end", "font-weight": 600 }, name);
  });
  s.rails.forEach((r, i) => {
    const y = 12 + band * i + band / 2, info = setup.rails[i];
    const lanes = (s.lanes || []).filter((l) => l.rail === i);
    if (!lanes.length) lanes.push({ bytes_per_second: r.bytes_per_second, state: r.up ? "up" : "down" });
    lanes.forEach((l, k) => {
      const spread = (k - (lanes.length - 1) / 2) * Math.min(11, 52 / lanes.length);
      const line = node(svg, "path", {
        class: l.state === "up" ? "lane" : "lane down",
        d: `M196 ${y} C 300 ${y + spread}, 300 ${y + spread}, 450 ${y + spread} S 600 ${y + spread}, 704 ${y}`,
        "stroke-width": 1 + 4 * l.bytes_per_second / fastest,
      });
      line.style.stroke = colour(i);
    });
    [[info.device, 108], [info.peer, 704]].forEach(([name, x]) => {
      node(svg, "rect", { class: "box", x, y: y - 14, width: 88, height: 28, rx: 5 });
      node(svg, "text", { x: x + 44, y: y + 5, "text-anchor": "middle" }, name);
    });
    if ((r.faults || []).includes("pulled")) {
      node(svg, "path", { class: "cut", d: `M440 ${y - 10} l20 20 M460 ${y - 10} l-20 20` });
    }
    node(svg, "text", { class: "soft", x: 450, y: y - 29, "text-anchor": "middle" },
      `rail ${i}: ${rate(r.bytes_per_second)} MiB/s, ${status(r)}`);
  });
}

// round returns the next of 1, 2, 2.5, 5, 10, 20 and so on.
function round(x) {
  const unit = 10 ** Math.floor(Math.log10(x));
  return unit * [1, 2, 2.5, 5, 10].find((k) => k * unit >= x * 0.999);
}

// chart draws the rate of each rail over the last seconds, and a line for each event.
function chart(s) {
  const svg = at("chart"), left = 60, right = 865, top = 12, bottom = 212;
  svg.replaceChildren(svg.firstElementChild);
  const from = Math.max(0, s.at - shown);
  const seen = samples.filter((x) => x.at >= from);
  const step = round(Math.max(mib, ...seen.flatMap((x) => x.rails.map((r) => r.bytes_per_second))) / mib / 4) * mib, most = 4 * step;
  const x = (t) => left + (right - left) * (t - from) / shown, y = (v) => bottom - (bottom - top) * v / most;
  for (let k = 0; k <= 4; k++) {
    const v = step * k;
    node(svg, "line", { class: "grid", x1: left, x2: right, y1: y(v), y2: y(v) });
    node(svg, "text", { class: "soft", x: left - 8, y: y(v) + 4, "text-anchor": "end" }, count(v / mib));
  }
  for (let t = Math.ceil(from / 5) * 5; t <= from + shown; t += 5) {
    node(svg, "text", { class: "soft", x: x(t), y: bottom + 20, "text-anchor": "middle" }, `${t} s`);
  }
  for (const e of events.filter((e) => e.at >= from && e.at <= from + shown)) {
    node(svg, "line", { class: e.bad ? "mark bad" : "mark", x1: x(e.at), x2: x(e.at), y1: top, y2: bottom });
  }
  setup.rails.forEach((_, i) => {
    const points = seen.map((p) => `${x(p.at).toFixed(1)},${y(p.rails[i].bytes_per_second).toFixed(1)}`).join(" ");
    node(svg, "polyline", { class: "curve", points }).style.stroke = colour(i);
  });
}

function list() {
  const ol = at("events");
  ol.replaceChildren();
  for (const e of events.slice().reverse()) {
    const li = node(ol, "li");
    node(li, "time", {}, `${e.at.toFixed(2)} s`);
    node(li, "span", { class: e.bad ? "bad" : "" }, e.text);
  }
}
