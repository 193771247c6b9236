// The table of trainers.
import { at, h, say } from "/dom.js";
import { bytes, duration, number } from "/format.js";
import { seriesColour } from "/charts.js";
import { showTable } from "/table.js";

const kReportsShown = 6;
const kDenseFrom = 13;  // trainers

/// Number of buckets up to the largest value in any of the histograms, which share their bounds.
const bucketsUsed = (histograms) => Math.max(1, ...histograms.map(({ buckets }) => buckets.findLastIndex((each) => each.count > 0) + 1));

/// The first `count` buckets, with heights relative to the largest.
function bars({ buckets }, count) {
  const shown = buckets.slice(0, count), most = Math.max(1, ...shown.map((each) => each.count));
  const below = (index) => (shown[index].at_most === null ? `> ${shown[index - 1].at_most}` : `${shown[index].at_most > 1 ? "≤ " : ""}${shown[index].at_most}`);
  const title = shown.map((each, index) => `${below(index)}: ${number(each.count)}`).join("\n");
  return h("span", { class: "bars", title, role: "img", "aria-label": `gradients by staleness: ${title.replaceAll("\n", ", ")}` },
    shown.map((each) => h("i", { style: { height: each.count ? `${Math.max(8, 100 * each.count / most).toFixed(0)}%` : "0px" } })));
}

/// What a trainer does: [text, level]. `stopped`: the daemons without which no trainer continues.
function doing(trainer, stopped) {
  if (!trainer.connected) return ["not connected", "bad"];
  if (trainer.waits_for) return [`waits for ${trainer.waits_for}`, "warn"];
  if (stopped.length) return [`waits for daemon ${stopped.map((each) => each.partition).join(", ")}`, "warn"];
  return ["computes", "good"];
}

/// Why there are none.
function reasonForNone(status) {
  if (status.state === "standby" || status.state === "following") return ["Trainers join at the primary."];
  if (status.counters.trainers_joined > 0) return ["All trainers have left."];
  return ["No trainers have joined. ", h("code", {}, `psd-trainer train --server ${status.addresses[0] ?? "…"} …`), " joins."];
}

function reportColumn(name) {
  const value = (trainer) => trainer.reports.find((each) => each.name === name)?.value;
  const format = name.endsWith("_seconds") ? duration : number;
  return { name: name.replace(/_per_second$/, "/s").replace(/_seconds$/, ""), cell: (trainer) => format(value(trainer)), by: value };
}

/// `remove(trainer)`: null if the caller may not.
export function showTrainers(status, stopped, remove, stale) {
  const reported = [...new Set(status.trainers.flatMap((trainer) => (trainer.reports ?? []).map((each) => each.name)))].slice(0, kReportsShown);
  const trainers = [...status.trainers].sort((one, other) => one.rank - other.rank);
  say("trainers-count", status.world_size ? `${trainers.length} of ${status.world_size}` : String(trainers.length));
  say("trainers-empty", reasonForNone(status));
  at("trainers-empty").hidden = trainers.length > 0;
  at("trainers").hidden = trainers.length === 0;
  at("trainers").classList.toggle("dense", trainers.length >= kDenseFrom);
  const buckets = bucketsUsed(trainers.map((trainer) => trainer.staleness_histogram));
  const columns = [
    { name: "rank", text: true, by: (trainer) => trainer.rank,
      cell: (trainer) => [h("i", { class: "swatch", style: { background: seriesColour(trainer.rank) } }), trainer.rank] },
    { name: "process", text: true, cell: (trainer) => `${trainer.pid}@${trainer.host}`, by: (trainer) => trainer.host },
    { name: "state", text: true, by: (trainer) => doing(trainer, stopped)[0],
      cell: (trainer) => { const [text, level] = doing(trainer, stopped); return h("span", { class: `badge ${level}` }, text); } },
    { name: "step", cell: (trainer) => trainer.step, by: (trainer) => trainer.step },
    ...reported.map(reportColumn),
    { name: "batch", cell: (trainer) => trainer.batch, by: (trainer) => trainer.batch },
    { name: "staleness", cell: (trainer) => [trainer.staleness, bars(trainer.staleness_histogram, buckets)], by: (trainer) => trainer.staleness },
    { name: "pulled", cell: (trainer) => bytes(trainer.pulled_bytes), by: (trainer) => trainer.pulled_bytes },
    { name: "pushed", cell: (trainer) => bytes(trainer.pushed_bytes), by: (trainer) => trainer.pushed_bytes },
    { name: "last seen", cell: (trainer) => `${duration(trainer.last_seen_seconds)} ago`, by: (trainer) => trainer.last_seen_seconds },
  ];
  if (remove) {
    columns.push({ name: "", cell: (trainer) => h("button", { type: "button", class: "small danger", disabled: stale, "aria-label": `Remove rank ${trainer.rank}`,
                                                              onclick: () => remove(trainer) }, "Remove") });
  }
  showTable("trainers", columns, trainers, (trainer) => `${trainer.rank} ${trainer.process}`);
}
