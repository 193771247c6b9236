// The charts, drawn by Chart.js from the history's points.
import { bytes, clock, duration, number } from "/format.js";
import { h, render } from "/dom.js";
import { averaged, joined, lineOf, meanOf, range, valueAt } from "/series.js";

/// Bytes are scaled to MiB, for round numbers on the axis.
const mebibytes = (value) => bytes(value * 1048576);

const kSpanMin = 30;  // seconds
const kRanksMax = 8;  // with more ranks the chart of reports begins with their mean

const SPECS = [
  { id: "gradients", title: "Gradients per second", format: number, rate: true, lines: [["gradients", "gradients/s", 0]], fill: true },
  { id: "reports", title: "Reported by trainers", format: number, reports: true },
  { id: "rate", title: "Learning rate", format: number, lines: [["learning_rate", "largest of all groups", 3]] },
  { id: "staleness", title: "Staleness", format: number, lines: [["staleness_median", "median", 2], ["staleness_99", "99 %", 4]] },
  { id: "traffic", title: "Traffic per second", format: mebibytes, rate: true, scale: 1 / 1048576, lines: [["pull_bytes", "pulled", 0], ["push_bytes", "pushed", 1]] },
  { id: "apply", title: "Apply latency", format: duration, lines: [["apply_seconds_median", "median", 3], ["apply_seconds_99", "99 %", 4]] },
  { id: "memory", title: "Memory", format: mebibytes, scale: 1 / 1048576, lines: [["resident_bytes", "resident", 6], ["held_bytes", "buffers", 5]] },
  { id: "waiting", title: "Trainers", format: number, lines: [["trainers", "joined", 0], ["trainers_waiting", "waiting", 1]] },
];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const seriesColour = (index) => css(`--series-${index % 8}`);

/// The moment at the pointer: the time of the nearest point of any line, and the lines that have a value there.
Chart.Interaction.modes.moment = (chart, event) => {
  const wanted = chart.scales.x.getValueForPixel(event.x);
  let nearest = null;
  for (const { data } of chart.data.datasets) {
    for (const point of data) if (point.y !== null && (nearest === null || Math.abs(point.x - wanted) < Math.abs(nearest - wanted))) nearest = point.x;
  }
  chart.$moment = nearest;
  return chart.data.datasets.flatMap(({ data }, datasetIndex) => {
    if (nearest === null || valueAt(data, nearest) === null) return [];
    let index = 0;
    data.forEach((point, other) => { if (Math.abs(point.x - nearest) < Math.abs(data[index].x - nearest)) index = other; });
    return [{ element: chart.getDatasetMeta(datasetIndex).data[index], datasetIndex, index }];
  });
};

/// Vertical lines where events were.
const marks = {
  id: "marks",
  beforeDatasetsDraw(chart) {
    const { ctx, chartArea: { top, bottom }, scales: { x } } = chart;
    ctx.save();
    ctx.setLineDash([3, 3]);
    for (const { time, level } of chart.$marks ?? []) {
      if (time < x.min || time > x.max) continue;
      const place = Math.round(x.getPixelForValue(time)) + 0.5;
      ctx.strokeStyle = level ? css(`--${level}`) : css("--mark");
      ctx.beginPath();
      ctx.moveTo(place, top);
      ctx.lineTo(place, bottom);
      ctx.stroke();
    }
    ctx.restore();
  },
};

const kMarkPixels = 4;

/// The events within a few pixels of the moment.
function eventsAt(chart) {
  const { x } = chart.scales, place = x.getPixelForValue(chart.$moment);
  return (chart.$marks ?? []).filter(({ time }) => Math.abs(x.getPixelForValue(time) - place) <= kMarkPixels).slice(-3).map(({ text }) => text);
}

class TimeChart {
  constructor(spec, parent) {
    this.spec = spec;
    const card = document.createElement("article");
    card.className = "card";
    parent.append(card);
    render(card,
      h("div", { class: "chart-head" }, h("h2", {}, spec.title), h("div", { class: "choices" }), h("div", { class: "legend" })),
      h("div", { class: "plot" }, h("canvas", { id: `chart-${spec.id}`, role: "img", "aria-label": spec.title }), h("p", { class: "no-data" }, "no data")));
    this.choices = card.querySelector(".choices");
    this.legend = card.querySelector(".legend");
    this.canvas = card.querySelector("canvas");
    this.empty = card.querySelector(".no-data");
    this.chart = new Chart(this.canvas, { type: "line", data: { datasets: [] }, options: this.options(), plugins: [marks] });
  }

  options() {
    const format = this.spec.format;
    return {
      animation: false, parsing: false, normalized: true, responsive: true, maintainAspectRatio: false,
      interaction: { mode: "moment", intersect: false },
      elements: { point: { radius: 0, hitRadius: 8 }, line: { borderWidth: 1.8, cubicInterpolationMode: "monotone" } },
      plugins: {
        legend: { display: false },
        tooltip: {
          callbacks: {
            title: () => clock(this.chart.$moment),
            label: (item) => ` ${item.dataset.label}: ${format(valueAt(item.dataset.data, this.chart.$moment))}`,
            footer: () => eventsAt(this.chart),
          },
          footerFont: { weight: "normal" },
        },
      },
      scales: {
        x: { type: "linear", grid: { display: false, drawBorder: false },
             ticks: { maxTicksLimit: 5, maxRotation: 0, autoSkip: true, callback: (value) => clock(value, this.span <= 3600) } },
        y: { grid: { drawBorder: false, drawTicks: false }, ticks: { maxTicksLimit: 5, callback: format } },
      },
    };
  }

  /// Shows lines, [{label, colour, points}], and events, [{time, text, level}], over a time range.
  show(lines, events, begin, end) {
    const { chart } = this;
    this.span = end - begin;
    const some = lines.some((line) => line.points.some((point) => point.y !== null));
    this.empty.hidden = some;
    this.canvas.style.visibility = some ? "visible" : "hidden";
    chart.$marks = events;
    chart.data.datasets = lines.map((line) => ({
      label: line.label, data: line.points, borderColor: line.colour, spanGaps: true,
      pointRadius: line.points.length < 3 ? 2 : 0, pointBackgroundColor: line.colour,
      backgroundColor: line.colour + "22", fill: Boolean(this.spec.fill),
    }));
    const { x, y } = chart.options.scales;
    x.min = begin; x.max = end;
    [y.suggestedMin, y.suggestedMax] = range(lines);
    x.ticks.color = y.ticks.color = css("--quiet");
    y.grid.color = css("--line");
    chart.update("none");
    render(this.legend, lines.map((line) => h("span", { key: line.label }, h("i", { style: { background: line.colour } }), line.label)));
  }
}

export class Charts {
  /// `changed()`: called when something else is to be shown.
  constructor(parent, changed) {
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 11;
    this.charts = SPECS.map((spec) => new TimeChart(spec, parent));
    this.changed = changed;
    this.range = 600;
    this.report = null;  // the name chosen; null: the loss
    this.mean = null;    // whether the ranks' mean is chosen; null: if they are many
    for (const button of document.querySelectorAll("[data-range]")) {
      button.addEventListener("click", () => {
        for (const other of document.querySelectorAll("[data-range]")) other.setAttribute("aria-pressed", String(other === button));
        this.range = Number(button.dataset.range);
        changed();
      });
    }
  }

  /// history: {series, seconds, minutes, reports} as in /api/history.json, except that reports is a Map by rank of Maps
  /// by name. events: [{time, text, level}].
  draw(history, events) {
    const fine = history.seconds, coarse = history.minutes;
    const last = fine.length ? fine[fine.length - 1][0] : Date.now() / 1000;
    const first = this.range > 600 && coarse.length ? coarse[0][0] : fine.length ? fine[0][0] : last;
    // Make the data of a young daemon fill the chart as well.
    const begin = Math.max(last - this.range, Math.min(first, last - kSpanMin));
    for (const chart of this.charts) {
      const lines = chart.spec.reports ? this.reportLines(chart, history.reports, begin) : this.seriesLines(chart.spec, history, begin);
      chart.show(lines, events, begin, last);
    }
  }

  seriesLines({ lines, rate, scale = 1 }, { series, seconds, minutes }, begin) {
    return lines.map(([name, label, colour]) => {
      const fine = lineOf(series, name, seconds, scale), points = rate ? averaged(fine) : fine;
      const whole = this.range > 600 ? joined(lineOf(series, name, minutes, scale), points) : points;
      return { label, colour: seriesColour(colour), points: whole.filter((point) => point.x >= begin) };
    });
  }

  reportLines(chart, reports, begin) {
    const all = [...new Set([...reports.values()].flatMap((series) => [...series.keys()]))].sort();
    const name = all.includes(this.report) ? this.report : all.includes("loss") ? "loss" : all[0];
    const ranks = [...reports].filter(([, series]) => series.has(name)).sort(([one], [other]) => one - other);
    const mean = this.mean ?? ranks.length > kRanksMax;
    this.showChoices(chart, all, name, mean);
    const lines = ranks.map(([rank, series]) => ({
      label: `rank ${rank}`, colour: seriesColour(Number(rank)),
      points: series.get(name).map(([time, , value]) => ({ x: time, y: value })),
    }));
    const shown = mean && lines.length ? [{ label: "mean of ranks", colour: seriesColour(0), points: meanOf(lines.map((line) => line.points)) }] : lines;
    return shown.map((line) => ({ ...line, points: line.points.filter((point) => point.x >= begin) }));
  }

  showChoices({ choices }, all, name, mean) {
    const press = (text, value) => h("button", { key: text, type: "button", "aria-pressed": String(mean === value),
                                                 onclick: () => { this.mean = value; this.changed(); } }, text);
    render(choices, all.length > 0 && [
      h("select", { id: "report", "aria-label": "Reported value", onchange: (event) => { this.report = event.target.value; this.changed(); } },
        all.map((each) => h("option", { key: each, value: each, selected: each === name }, each))),
      h("span", { class: "ranges", role: "group", "aria-label": "Lines" }, press("ranks", false), press("mean", true))]);
  }
}
