"use strict";
// The page: asks the server for the run every two seconds, and fills header, charts and tables.

const PAUSE = 2000;  // ms between two requests
const MOST = 200;  // lines of a table

const byId = (id) => document.getElementById(id);
const rows = [];

// ---- numbers

const scaled = (value, units) => {
  const [name, factor] = units.find(([, f]) => Math.abs(value) >= f) || units[units.length - 1];
  const number = value / factor;
  return `${number.toFixed(Math.abs(number) < 10 && number % 1 ? 1 : 0)} ${name}`;
};
const bytes = (value) => scaled(value, [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]);
const bits = (value) => scaled(value, [["Gbps", 1e9], ["Mbps", 1e6], ["kbps", 1e3], ["bps", 1]]);
const seconds = (value) => `${value.toFixed(value < 10 ? 1 : 0)} s`;
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const plain = (value) => Number(value.toPrecision(4)).toString();
const shown = (show, value) => value === null || value === undefined ? "–" : show(value);
const total = (name) => rows.reduce((sum, row) => sum + row[name], 0);

// ---- charts: title, how numbers are shown, and lines (name, colour, value of a row)

const mean = (name) => (row) => row.replies ? row[name] / row.replies : null;
const CHARTS = [
  { name: "accuracy", title: "Accuracy on held-out data", show: percent,
    lines: [["accuracy", "blue", (row) => row.accuracy]] },
  { name: "loss", title: "Loss on held-out data", show: plain,
    lines: [["loss", "red", (row) => row.loss]] },
  { name: "traffic", title: "Bytes of a round, all clients", show: bytes, logarithmic: true,
    lines: [["up", "blue", (row) => row.sent_up || null], ["up, raw", "indigo", (row) => row.raw_up || null],
      ["down", "red", (row) => row.sent_down || null], ["down, raw", "gold", (row) => row.raw_down || null]] },
  { name: "energy_fraction", title: "Energy fraction of the median client's update", show: percent,
    lines: [["energy", "green", (row) => row.energy_fraction]] },
  { name: "time", title: "Time of a round", show: seconds,
    lines: [["round", "ink", (row) => row.round ? row.seconds : null], ["training", "blue", mean("train_seconds")],
      ["compressing", "gold", mean("encode_seconds")], ["testing", "purple", (row) => row.test_seconds]] },
];
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function makeChart(about) {
  const figure = byId("charts").appendChild(document.createElement("figure"));
  figure.id = about.name;
  figure.append(element("h3", about.title));
  const grid = { stroke: variable("rule"), width: 1 };
  const look = { stroke: variable("soft"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
  const value = (_, x) => shown(about.show, x);
  const chart = new uPlot({
    width: figure.clientWidth - 26, height: 230,
    scales: { x: { time: false }, y: about.logarithmic ? { distr: 3 } : {} },
    series: [{ label: "round" }, ...about.lines.map(([label, colour]) =>
      ({ label, width: 2, stroke: variable(colour), points: { size: 5 }, value }))],
    axes: [look, { ...look, size: 62, values: (_, ticks) => ticks.map((x) => x === null ? "" : about.show(x)) }],
  }, [[]], figure);
  new ResizeObserver(() => chart.setSize({ width: figure.clientWidth - 26, height: 230 })).observe(figure);
  return chart;
}

function draw(chart, about) {
  const values = about.lines.map(([, , of]) => rows.map((row) => of(row) ?? null));
  chart.setData([rows.map((row) => row.round), ...values]);
}

// ---- header and tables

function element(kind, text, name) {
  const made = document.createElement(kind);
  made.textContent = text;  // never as HTML: clients choose their names
  if (name) made.className = name;
  return made;
}

function facts(state) {
  const last = rows[rows.length - 1];
  if (!last) return [];
  const up = total("sent_up"), down = total("sent_down");
  const smaller = (raw, sent) => sent ? `${(raw / sent).toFixed(1)}x smaller` : "";
  const missed = Object.values(last.refused).reduce((sum, n) => sum + n, 0);
  return [
    ["Round", state.rounds ? `${last.round} of ${state.rounds}` : `${last.round}`, last.uncounted && "does not count"],
    ["Accuracy", shown(percent, last.accuracy), `loss ${shown(plain, last.loss)}`],
    ["Sent up", bytes(up), smaller(total("raw_up"), up)],
    ["Sent down", bytes(down), smaller(total("raw_down"), down)],
    ...(last.epsilon == null ? [] : [["Privacy spent", `ε ${plain(last.epsilon)}`, `at δ ${last.delta}`]]),
    ["Updates", `${last.replies} of ${last.replies + missed}`, ""],
    ["Time", seconds(total("seconds")), ""],
  ];
}

function say(text, kind) {
  byId("status").textContent = text;
  byId("status").className = kind;
}

function drawHeader(state) {
  document.title = byId("name").textContent = state.name || "fedsz";
  byId("about").textContent = [state.task, state.dataset, state.model, state.policy && `policy ${state.policy}`]
    .filter(Boolean).join(" · ");
  const ended = rows.length ? `round ${rows[rows.length - 1].round} was the last to end` : "no rounds yet";
  say(state.text || (state.finished ? "finished" : ended), state.finished ? "over" : "live");
  byId("notices").replaceChildren(...state.notices.map((text) => element("li", text)));
  byId("notices").hidden = !state.notices.length;
  byId("facts").replaceChildren(...facts(state).map(([name, value, more]) => {
    const fact = document.createElement("div");
    const says = element("dd", value);
    says.append(element("small", more || ""));
    fact.append(element("dt", name), says);
    return fact;
  }));
}

function fill(name, lines) {
  byId(name).tBodies[0].replaceChildren(...lines.slice(0, MOST).map((cells) => {
    const line = document.createElement("tr");
    line.append(...cells.map((cell, i) => element("td", cell, byId(name).tHead.rows[0].cells[i].className)));
    return line;
  }));
}

// A bound to four digits.
const brief = (bound) =>
  bound.replace(/[\d.]+(e[-+]?\d+)?$/i, (number) => Number(Number(number).toPrecision(4)).toString());

function drawDecisions() {
  fill("decisions", rows.filter((row) => row.decision).reverse().map((row) => {
    const { update, bound, downlink, codec, why } = row.decision;
    const reason = row.uncounted ? `does not count: ${row.uncounted}; ${why}` : why;
    return [row.round, update, brief(bound), brief(downlink), codec, reason || "as the options say"];
  }));
}

// Those that rounds went on without come first.
function drawClients(clients) {
  const missed = (client) => client.failures || 0;
  clients.sort((a, b) => missed(b) - missed(a) || (a.name < b.name ? -1 : 1));
  fill("clients", clients.map((client) => [client.name,
    client.state || (client.last_round == null ? "no update yet" : `last in round ${client.last_round}`),
    client.bandwidth ? bits(client.bandwidth) : "–", client.replies || 0, bytes(client.sent_bytes || 0),
    missed(client) || "–", client.reason || ""]));
  byId("clients-title").textContent = clients.length ? `Clients (${clients.length})` : "Clients";
}

// ---- the server

const charts = CHARTS.map(makeChart);

async function ask() {
  const answer = await fetch(`api/run?after=${rows.length}`).catch(() => null);
  if (answer && answer.ok) {
    const { state, rounds, clients } = await answer.json();
    rows.push(...rounds);
    if (rounds.length) {
      charts.forEach((chart, i) => draw(chart, CHARTS[i]));
      drawDecisions();
    }
    drawHeader(state);
    drawClients(clients);
  } else {
    say("no link to the server of this page; trying again", "lost");
  }
  setTimeout(ask, PAUSE);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
ask();
