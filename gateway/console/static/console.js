"use strict";
// The live charts of the overview, and the key that goes to the search.

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) return;
  const search = document.querySelector("[data-search]");
  if (search) {
    event.preventDefault();
    search.focus();
  }
});

const COLUMNS = ["time", "messages_stored", "messages_received", "messages_sent", "bytes_received", "bytes_sent", "connections"];
const CHARTS = {
  messages: [["Stored", 1], ["From devices", 2], ["To devices", 3]],
  bytes: [["From devices", 4], ["To devices", 5]],
  connections: [["Connections", 6]],
};
const KEPT = 720; // samples: an hour
const GAP_S = 12; // without a sample: the line has a gap
const REFRESHED = 3; // the state of the page comes again after so many samples
const UNITS = ["", "k", "M", "G"];

function short(value) {
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return (Math.abs(value) < 10 && value % 1 ? value.toFixed(1) : value.toFixed(0)) + UNITS[unit];
}

const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

class LiveCharts {
  constructor(place) {
    this.url = place.dataset.live;
    this.state = document.getElementById("live-state");
    this.boxes = [...place.querySelectorAll("[data-chart]")];
    this.rows = [];
    this.plots = [];
    this.taken = 0;
    this.source = null;
    new ResizeObserver(() => this.fit()).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
    document.addEventListener("visibilitychange", () => this.look());
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", () => this.look());
    this.build();
    this.look();
  }

  // A page that nobody sees costs the node nothing.
  look() {
    if (document.hidden) this.close();
    else if (!this.source) this.open();
  }

  open() {
    this.rows = [];
    this.source = new EventSource(this.url);
    this.source.onmessage = (event) => this.take(JSON.parse(event.data));
    this.source.onopen = () => {
      this.rows = [];
      this.state.textContent = "";
    };
    this.source.onerror = () => {
      const ended = this.source && this.source.readyState === EventSource.CLOSED;
      this.state.textContent = ended ? "The live figures have ended. Load the page again." : "The node does not answer. Trying again.";
      if (ended) this.close();
    };
  }

  close() {
    if (this.source) this.source.close();
    this.source = null;
  }

  take(rows) {
    if (!rows.length) return;
    this.rows.push(...rows);
    this.rows.splice(0, this.rows.length - KEPT);
    const latest = this.rows[this.rows.length - 1];
    for (const each of document.querySelectorAll("[data-latest]")) {
      each.textContent = Math.round(latest[COLUMNS.indexOf(each.dataset.latest)]).toLocaleString("en");
    }
    for (const { plot, columns } of this.plots) plot.setData(this.data(columns));
    this.taken += 1;
    if (this.taken % REFRESHED === 0) htmx.trigger("#state", "refresh");
  }

  data(columns) {
    const found = [[], ...columns.map(() => [])];
    let before = 0;
    for (const row of this.rows) {
      if (before && row[0] - before > GAP_S) {
        found[0].push(before + 1);
        columns.forEach((_, at) => found[at + 1].push(null));
      }
      before = row[0];
      found[0].push(row[0]);
      columns.forEach((column, at) => found[at + 1].push(row[column]));
    }
    return found;
  }

  build() {
    for (const { plot } of this.plots) plot.destroy();
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--weak"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
    this.plots = this.boxes.map((box) => {
      const series = CHARTS[box.dataset.chart];
      const columns = series.map(([, column]) => column);
      const options = {
        width: Math.max(box.clientWidth, 100),
        height: 200,
        scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1)] } },
        axes: [{ ...axis, values: (_, times) => times.map(clock) }, { ...axis, size: 48, values: (_, values) => values.map(short) }],
        series: [{ label: "UTC", value: (_, time) => (time == null ? "–" : clock(time)) }, ...series.map(([label], at) => ({ label, stroke: color(`--series-${at + 1}`), width: 2, value: (_, value) => (value == null ? "–" : short(value)) }))],
      };
      return { plot: new uPlot(options, this.data(columns), box), columns, box };
    });
  }

  fit() {
    for (const { plot, box } of this.plots) {
      const width = Math.max(box.clientWidth, 100);
      if (width !== plot.width) plot.setSize({ width, height: 200 });
    }
  }
}

const place = document.querySelector("[data-live]");
if (place) new LiveCharts(place);
