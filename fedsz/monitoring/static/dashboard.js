"use strict";
// The page: asks the server for the run, listens for rounds, and fills header, charts and tables.

const FEW = 50;  // lines of a table, until a reader asks for all
const CLIENTS_PAUSE = 2000;  // ms between two requests for the clients

const byId = (id) => document.getElementById(id);
const charts = CHARTS.map((about) => new Chart(about, byId("charts")));
let rows = [];
let state = {};
let clients = [];
let sort = { column: 7, down: true };
const all = { decisions: false, clients: false };

function element(kind, text, name) {
  const made = document.createElement(kind);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

// ---- header

function total(name) {
  return rows.reduce((sum, row) => sum + row[name], 0);
}

function smaller(raw, sent) {
  return sent ? `${(raw / sent).toFixed(1)}x smaller` : "";
}

function facts() {
  const last = rows[rows.length - 1];
  if (!last) return [];
  const best = rows.reduce((a, row) => row.accuracy !== null && row.accuracy > (a ? a.accuracy : -1) ? row : a, null);
  const up = total("sent_up"), down = total("sent_down");
  const time = total("seconds"), trained = rows.filter((row) => row.round).length;
  return [
    ["Round", state.rounds ? `${last.round} of ${state.rounds}` : `${last.round}`, last.uncounted && "does not count"],
    ["Accuracy", shown(percent, last.accuracy), best && `best ${percent(best.accuracy)} in round ${best.round}`],
    ["Loss", shown(plain, last.loss), ""],
    ["Sent up", bytes(up), smaller(total("raw_up"), up)],
    ["Sent down", bytes(down), smaller(total("raw_down"), down)],
    ["Energy fraction", shown(percent, last.energy_fraction), shown((ratio) => `residual ratio ${ratio.toFixed(2)}`, last.residual_ratio)],
    ...(last.epsilon == null ? [] : [["Privacy spent", `ε ${plain(last.epsilon)}`, `at δ ${last.delta}`]]),
    ["Updates", `${last.replies} of ${last.replies + without(last)}`, refusals()],
    ["Time", seconds(time), trained ? `${seconds(time / trained)} a round` : ""],
  ];
}

function refusals() {
  const kinds = {};
  for (const row of rows) for (const [kind, n] of Object.entries(row.refused)) kinds[kind] = (kinds[kind] || 0) + n;
  return Object.entries(kinds).map(([kind, n]) => `${n} ${kind}`).join(", ") || "none refused";
}

function drawHeader() {
  document.title = state.name ? `${state.name} – fedsz` : "fedsz";
  byId("name").textContent = state.name || "fedsz";
  byId("about").textContent = [state.task, state.dataset, state.model, state.policy && `policy ${state.policy}`]
    .filter(Boolean).join(" · ");
  const ended = rows.length ? `round ${rows[rows.length - 1].round} was the last to end` : "no rounds yet";
  say(state.text || (state.finished ? "finished" : ended), state.finished ? "over" : "live");
  byId("notices").replaceChildren(...state.notices.map((text) => element("li", text)));
  byId("notices").hidden = !state.notices.length;
  byId("facts").replaceChildren(...facts().map(([name, value, more]) => {
    const fact = document.createElement("div");
    const says = element("dd", value);
    says.append(element("small", more || ""));
    fact.append(element("dt", name), says);
    return fact;
  }));
}

function say(text, kind) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
  status.className = kind;
}

// ---- tables

function fill(name, lines, count) {
  byId(name).tBodies[0].replaceChildren(...lines);
  const button = byId(`${name}-all`);
  button.hidden = count <= FEW;
  button.textContent = all[name] ? `Show the first ${FEW}` : `Show all ${count}`;
}

function few(name, list) {
  return all[name] ? list : list.slice(0, FEW);
}

function drawDecisions() {
  const decided = rows.filter((row) => row.decision).reverse();
  fill("decisions", few("decisions", decided).map((row) => {
    const { update, bound, downlink, codec, others, why } = row.decision;
    const line = document.createElement("tr");
    const head = element("th", row.round);
    head.scope = "row";
    const codecs = others ? `${codec}, ${others} others` : codec;
    const reason = row.uncounted ? `does not count: ${row.uncounted}; ${why}` : why;
    line.append(head, ...[update, brief(bound), brief(downlink), codecs].map((x) => element("td", x, "word")),
      element("td", reason || "as the options say", "word why"));
    return line;
  }), decided.length);
}

// A bound to four digits.
function brief(bound) {
  return bound.replace(/[\d.]+(e[-+]?\d+)?$/i, (number) => Number(Number(number).toPrecision(4)).toString());
}

const kinds = (client) => Object.entries(client.failures || {}).map(([kind, n]) => `${n} ${kind}`).join(", ");
const missed = (client) => Object.values(client.failures || {}).reduce((sum, n) => sum + n, 0);
const since = (client) => {
  if (client.state) return client.state;
  const last = rows.length ? rows[rows.length - 1].round : 0;
  if (client.last_round === null || client.last_round === undefined) return "no update yet";
  return client.last_round === last ? "in the last round" : `last in round ${client.last_round}`;
};

// Heading, its cell, what it is sorted by, and whether it holds words.
const COLUMNS = [
  ["client", (c) => c.name, (c) => c.name, true],
  ["state", since, since, true],
  ["link", (c) => c.bandwidth ? bits(c.bandwidth) : "–", (c) => c.bandwidth || 0],
  ["updates", (c) => c.replies || 0, (c) => c.replies || 0],
  ["sent", (c) => bytes(c.sent_bytes || 0), (c) => c.sent_bytes || 0],
  ["energy", (c) => shown(percent, c.energy_fraction), (c) => c.energy_fraction ?? -1],
  ["residual", (c) => shown((ratio) => ratio.toFixed(2), c.residual_ratio), (c) => c.residual_ratio ?? -1],
  ["without", (c) => missed(c) || "–", missed],
  ["why", (c) => c.reason ? `${kinds(c)}: ${c.reason}` : "", kinds, true],
];

function drawClients() {
  const sought = byId("find").value.toLowerCase();
  const [, , key] = COLUMNS[sort.column];
  const order = (a, b) => {
    const [x, y] = [key(a), key(b)];
    return (x < y ? -1 : x > y ? 1 : a.name < b.name ? -1 : 1) * (sort.down && x !== y ? -1 : 1);
  };
  const found = clients.filter((client) => client.name.toLowerCase().includes(sought)).sort(order);
  fill("clients", few("clients", found).map((client) => {
    const line = document.createElement("tr");
    line.append(...COLUMNS.map(([head, cell, , word], i) => {
      const made = element(i ? "td" : "th", cell(client), head === "why" ? "word why" : word ? "word" : "");
      if (!i) made.scope = "row";
      return made;
    }));
    return line;
  }), found.length);
  byId("clients-title").textContent = clients.length ? `Clients (${clients.length})` : "Clients";
}

function makeHeads() {
  const heads = byId("clients").tHead.rows[0];
  heads.replaceChildren(...COLUMNS.map(([head, , , word], i) => {
    const made = element("th", "", head === "why" ? "word why" : word ? "word" : "");
    made.scope = "col";
    if (i === sort.column) made.ariaSort = sort.down ? "descending" : "ascending";
    const button = made.appendChild(element("button", head));
    button.type = "button";
    button.addEventListener("click", () => {
      sort = { column: i, down: sort.column === i ? !sort.down : !word };
      makeHeads();
      drawClients();
      heads.cells[i].firstChild.focus();
    });
    return made;
  }));
}

// ---- the server

let asked = 0;
let waiting = false;
async function askForClients() {
  if (waiting) return;
  waiting = true;
  await new Promise((done) => setTimeout(done, Math.max(0, asked + CLIENTS_PAUSE - Date.now())));
  waiting = false;
  asked = Date.now();
  const answer = await fetch("api/clients").catch(() => null);
  if (answer && answer.ok) {
    clients = await answer.json();
    drawClients();
  }
}

function draw() {
  drawHeader();
  const axis = document.querySelector("input[name=axis]:checked").value;
  charts.forEach((chart) => chart.draw(rows, axis));
  drawDecisions();
}

function redraw() {
  charts.forEach((chart) => chart.clear(""));
  draw();
}

function take(news) {
  state = news.state;
  if (news.rounds.length) {
    rows.push(...news.rounds);
    draw();
  } else {
    drawHeader();
  }
  askForClients();
}

function listen() {
  const events = new EventSource(`api/events?after=${state.generation}-${rows.length}`);
  events.onmessage = (event) => take(JSON.parse(event.data));
  events.addEventListener("reset", () => location.reload());
  events.onerror = () => say("no link to the server of this page; trying again", "lost");
}

async function begin() {
  const answer = await fetch("api/run").catch(() => null);
  if (!answer || !answer.ok) {
    say("no link to the server of this page", "lost");
    setTimeout(begin, CLIENTS_PAUSE);
    return;
  }
  take(await answer.json());
  draw();
  listen();
}

makeHeads();
byId("axis").addEventListener("change", draw);
byId("find").addEventListener("input", drawClients);
for (const name of ["decisions", "clients"]) {
  byId(`${name}-all`).addEventListener("click", () => {
    all[name] = !all[name];
    name === "clients" ? drawClients() : drawDecisions();
  });
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
begin();
