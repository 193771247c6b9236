// The charts, drawn by Chart.js from points of the history.
import { bytes, clock, duration, number } from "/format.js";

/// Bytes are scaled to MiB, for round numbers on the axis.
const mebibytes = (value) => bytes(value * 1048576);

const kSpanMin = 30;  // seconds

const SPECS = [
  { id: "gradients", title: "Gradients per second", format: number, lines: [["gradients", "gradients/s", 0]], fill: true },
  { id: "loss", title: "Loss of each rank", format: number, reports: "loss" },
  { id: "traffic", title: "Traffic per second", format: mebibytes, scale: 1 / 1048576, lines: [["pull_bytes", "pulled", 0], ["push_bytes", "pushed", 1]] },
  { id: "staleness", title: "Staleness", format: number, lines: [["staleness_median", "median", 2], ["staleness_99", "99 %", 4]] },
  { id: "apply", title: "From first slice to all shards", format: duration, lines: [["apply_seconds_median", "median", 3], ["apply_seconds_99", "99 %", 4]] },
  { id: "memory", title: "Memory", format: mebibytes, scale: 1 / 1048576, lines: [["resident_bytes", "resident", 6], ["held_bytes", "held for peers", 5]] },
];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const seriesColour = (index) => css(`--series-${index % 8}`);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  Object.assign(element, attributes);
  element.append(...children);
  return element;
}

class TimeChart {
  constructor(spec, parent) {
    this.spec = spec;
    this.legend = make("div", { className: "legend" });
    this.canvas = make("canvas", { id: `chart-${spec.id}` });
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", spec.title);
    parent.append(make("article", { className: "card" },
      make("div", { className: "chart-head" }, make("h2", { textContent: spec.title }), this.legend),
      make("div", { className: "plot" }, this.canvas)));
    this.chart = new Chart(this.canvas, { type: "line", data: { datasets: [] }, options: this.options() });
  }

  options() {
    const format = this.spec.format;
    return {
      animation: false, parsing: false, normalized: true, responsive: true, maintainAspectRatio: false,
      interaction: { mode: "index", intersect: false, axis: "x" },
      elements: { point: { radius: 0, hitRadius: 8 }, line: { borderWidth: 1.8, cubicInterpolationMode: "monotone" } },
      plugins: {
        legend: { display: false },
        tooltip: {
          callbacks: {
            title: (items) => items.length ? clock(items[0].parsed.x) : "",
            label: (item) => ` ${item.dataset.label}: ${format(item.parsed.y)}`,
          },
        },
      },
      scales: {
        x: { type: "linear", grid: { display: false, drawBorder: false },
             ticks: { maxTicksLimit: 5, maxRotation: 0, autoSkip: true, callback: (value) => clock(value, this.span <= 3600) } },
        y: { beginAtZero: true, grace: "8%", grid: { drawBorder: false, drawTicks: false }, ticks: { maxTicksLimit: 5, callback: format } },
      },
    };
  }

  /// Shows lines, [{label, colour, points}], over a time range.
  show(lines, begin, end) {
    const { chart } = this;
    this.span = end - begin;
    chart.data.datasets = lines.map((line) => ({
      label: line.label, data: line.points, borderColor: line.colour, spanGaps: true,
      pointRadius: line.points.length < 3 ? 2 : 0, pointBackgroundColor: line.colour,
      backgroundColor: line.colour + "22", fill: Boolean(this.spec.fill),
    }));
    const { x, y } = chart.options.scales;
    x.min = begin; x.max = end;
    x.ticks.color = y.ticks.color = css("--quiet");
    y.grid.color = css("--line");
    y.beginAtZero = !this.spec.reports;
    chart.update("none");
    const names = lines.map((line) => line.label).join("|") + css("--ink");
    if (names !== this.named) {
      this.named = names;
      this.legend.replaceChildren(...lines.map((line) => {
        const mark = make("i");
        mark.style.background = line.colour;
        return make("span", {}, mark, line.label);
      }));
    }
  }
}

export class Charts {
  constructor(parent) {
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 11;
    this.charts = SPECS.map((spec) => new TimeChart(spec, parent));
    this.range = 600;
  }

  /// history: {series, seconds, minutes, reports} as in /api/history.json, except that reports is a Map by rank of Maps
  /// by name.
  draw(history) {
    const fine = history.seconds, coarse = history.minutes;
    const last = fine.length ? fine[fine.length - 1][0] : Date.now() / 1000;
    const first = this.range > 600 && coarse.length ? coarse[0][0] : fine.length ? fine[0][0] : last;
    // Make the data of a young daemon fill the chart as well.
    const begin = Math.max(last - this.range, Math.min(first, last - kSpanMin));
    const points = this.range > 600 ? joined(coarse, fine) : fine;
    const shown = points.filter((point) => point[0] >= begin);
    for (const chart of this.charts) {
      const lines = chart.spec.reports ? reportLines(history.reports, chart.spec.reports, begin)
                                       : seriesLines(chart.spec, history.series, shown);
      chart.show(lines, begin, last);
    }
  }
}

/// The minutes, followed by the seconds not yet covered by them.
function joined(coarse, fine) {
  const end = coarse.length ? coarse[coarse.length - 1][0] : 0;
  return [...coarse, ...fine.filter((point) => point[0] > end)];
}

function seriesLines({ lines, scale = 1 }, names, points) {
  return lines.map(([name, label, colour]) => {
    const at = names.indexOf(name) + 1;
    return { label, colour: seriesColour(colour), points: points.map((point) => ({ x: point[0], y: point[at] === null ? null : point[at] * scale })) };
  });
}

function reportLines(reports, name, begin) {
  const ranks = [...reports].filter(([, series]) => series.has(name)).sort(([one], [other]) => one - other);
  return ranks.map(([rank, series]) => ({
    label: `rank ${rank}`, colour: seriesColour(Number(rank)),
    points: series.get(name).filter((point) => point[0] >= begin).map(([time, , value]) => ({ x: time, y: value })),
  }));
}
