"use strict";
// The charts of the page: which there are, and how uPlot draws them.

// How a line is drawn, on the canvas and in the legend.
const DASHES = [[undefined, "solid"], [[6, 3], "dashed"], [[2, 3], "dotted"]];

const scaled = (value, units) => {
  const [name, factor] = units.find(([, f]) => Math.abs(value) >= f) || units[units.length - 1];
  const number = value / factor;
  return `${number.toFixed(Math.abs(number) < 10 && number % 1 ? 1 : 0)} ${name}`;
};
const bytes = (value) => scaled(value, [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]);
const bits = (value) => scaled(value, [["Gbps", 1e9], ["Mbps", 1e6], ["kbps", 1e3], ["bps", 1]]);
const seconds = (value) => value < 100
  ? `${value < 10 ? value.toFixed(1) : value.toFixed(0)} s`
  : value < 6000 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const plain = (value) => Number(value.toPrecision(4)).toString();
const shown = (show, value) => value === null || value === undefined ? "–" : show(value);

const mean = (name) => (row) => row.replies ? row[name] / row.replies : 0;
const positive = (name) => (row) => row[name] || null;
const PHASES = [
  ["training", "blue", mean("train_seconds")],
  ["compressing", "gold", mean("encode_seconds")],
  ["decoding", "green", (row) => row.decode_seconds],
  ["testing", "purple", (row) => row.test_seconds],
];
const rest = (row) => Math.max(0, row.seconds - PHASES.reduce((sum, p) => sum + p[2](row), 0));

// Each: title, caption, how numbers are shown, and its lines (name, colour, value of a row).
const CHARTS = [
  { name: "accuracy", title: "Accuracy", show: percent,
    says: "Of the averaged model on held-out data.",
    lines: [["accuracy", "blue", (row) => row.accuracy]] },
  { name: "loss", title: "Loss", show: plain,
    says: "Of the averaged model on held-out data, in nats for tasks that classify.",
    lines: [["loss", "red", (row) => row.loss]] },
  { name: "traffic", title: "Bytes of a round", show: bytes, logarithmic: true,
    says: "All clients together, before and after compression.",
    lines: [["up", "blue", positive("sent_up")], ["up, raw", "blue", positive("raw_up"), 1],
      ["down", "red", positive("sent_down")], ["down, raw", "red", positive("raw_down"), 2]] },
  { name: "energy_fraction", title: "Energy fraction", show: percent,
    says: "The share of an update that arrives in its round: the median client's.",
    lines: [["energy", "green", (row) => row.energy_fraction]] },
  { name: "residual_ratio", title: "Residual ratio", show: plain,
    says: "The norm of a client's residual over that of its step: the median client's.",
    lines: [["residual", "purple", (row) => row.residual_ratio]] },
  { name: "time", title: "Where a round's time goes", show: seconds, stacked: true,
    says: "Links and waiting for slower clients are what is left of the round.",
    lines: [...PHASES, ["links, waiting", "soft", rest]]
      .map(([name, colour, value]) => [name, colour, (row) => row.round ? value(row) : null]) },
  { name: "replies", title: "Replies and refusals", show: plain,
    says: "Clients whose updates counted, and clients that the round went on without.",
    lines: [["counted", "green", (row) => row.round ? row.replies : null],
      ["without", "red", (row) => row.round ? without(row) : null, 1]] },
];

function without(row) {
  return Object.values(row.refused).reduce((sum, count) => sum + count, 0);
}

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

class Chart {
  constructor(about, place) {
    this.about = about;
    this.figure = place.appendChild(document.createElement("figure"));
    this.figure.id = about.name;
    const title = this.figure.appendChild(document.createElement("h3"));
    title.textContent = about.title;
    this.plot = this.figure.appendChild(document.createElement("div"));
    this.plot.className = "plot";
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "group");
    this.plot.setAttribute("aria-label", `${about.title}: chart`);
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("mouseleave", () => this.showLast());
    const caption = this.figure.appendChild(document.createElement("figcaption"));
    caption.textContent = about.says;
    this.said = this.figure.appendChild(document.createElement("p"));
    this.said.className = "hidden";
    this.said.setAttribute("aria-live", "polite");
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }

  // Draws rows across rounds, or across the bytes that were sent until the end of each.
  draw(rows, axis) {
    this.rows = rows;
    const values = this.about.lines.map((line) => rows.map((row) => line[2](row) ?? null));
    if (!values.some((column) => column.some((value) => value !== null))) {
      this.clear(rows.length > 1 ? "Not measured in this run" : "No rounds yet");
      return;
    }
    let sent = 0;
    const across = rows.map((row) => (sent += row.sent_up + row.sent_down, axis === "bytes" ? sent : row.round));
    this.values = values;
    const data = [across, ...(this.about.stacked ? stacked(values) : values)];
    if (this.chart && this.axis === axis) {
      this.chart.setData(data);
    } else {
      this.clear("");
      this.axis = axis;
      this.chart = new uPlot(this.options(axis), data, this.plot);
    }
    requestAnimationFrame(() => this.showLast());  // after uPlot has set its own legend
  }

  // Has the legend say how the last round ended, while nobody points at another.
  showLast() {
    if (this.chart && this.chart.cursor.idx == null) this.chart.setLegend({ idx: this.rows.length - 1 });
  }

  clear(why) {
    if (this.chart) this.chart.destroy();
    this.chart = null;
    this.plot.replaceChildren();
    if (!why) return;
    const empty = this.plot.appendChild(document.createElement("p"));
    empty.className = "empty";
    empty.textContent = why;
  }

  options(axis) {
    const { about } = this;
    const grid = { stroke: variable("rule"), width: 1 };
    const look = { stroke: variable("soft"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const show = (value) => shown(about.show, value);
    const x = axis === "bytes" ? bytes : plain;
    const series = about.lines.map(([label, colour, , dash], i) => ({
      label, width: 2, stroke: variable(colour), dash: DASHES[dash || 0][0],
      fill: about.stacked ? variable(colour) : undefined, points: about.stacked ? { show: false } : { size: 5 },
      value: (_, __, ___, at) => show(at === null ? null : this.values[i][at]),
    }));
    const range = about.stacked ? (_, __, high) => [0, 1.05 * high || 1] : room;
    const scales = { x: { time: false }, y: about.logarithmic ? { distr: 3 } : { range } };
    return {
      width: this.plot.clientWidth, height: 230, scales, padding: [10, 20, 0, 0],
      series: [{ label: axis === "bytes" ? "sent" : "round", value: (_, v) => shown(x, v) }, ...series],
      axes: [
        { ...look, values: (_, ticks) => ticks.map((v) => axis === "bytes" ? bytes(v) : v % 1 ? "" : plain(v)) },
        { ...look, size: 62, values: (_, ticks) => ticks.map((v) => v === null ? "" : show(v)) },
      ],
      cursor: { drag: { x: true, y: false }, points: { size: 7 } },
      legend: { markers: { width: 2, dash: (_, i) => DASHES[(about.lines[i - 1] || [])[3] || 0][1] } },
    };
  }

  resize() {
    if (this.chart) this.chart.setSize({ width: this.plot.clientWidth, height: 230 });
  }

  key(event) {
    if (!this.chart) return;
    const last = this.chart.data[0].length - 1;
    const at = this.chart.cursor.idx ?? last + 1;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const idx = Math.min(Math.max(to, 0), last);
    this.chart.setCursor({ left: this.chart.valToPos(this.chart.data[0][idx], "x"), top: 0 });
    const told = this.about.lines.map(([name], i) => `${name} ${shown(this.about.show, this.values[i][idx])}`);
    this.said.textContent = `round ${this.rows[idx].round}: ${told.join(", ")}`;
  }
}

// Leaves room above and below; what is never negative does not go below zero.
function room(_, low, high) {
  if (low === null) return [0, 1];
  const more = (high - low || Math.abs(high) || 1) * 0.08;
  return [low >= 0 ? Math.max(0, low - more) : low - more, high + more];
}

// Each line lies on the sum of those after it, so that uPlot, which fills to the bottom, draws the first above.
function stacked(values) {
  const sums = [];
  let above = values[0].map(() => 0);
  for (const column of [...values].reverse()) {
    above = column.map((value, i) => value === null ? null : value + (above[i] || 0));
    sums.unshift(above);
  }
  return sums;
}
