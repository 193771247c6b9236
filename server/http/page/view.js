// Renders the status document: everything on the page except the charts.
import { bytes, clock, duration, number, plural } from "/format.js";
import { seriesColour } from "/charts.js";

const at = (id) => document.getElementById(id);

function node(tag, text = "", className = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

function table(id, heads, rows) {
  const head = document.createElement("tr");
  head.append(...heads.map((text) => node("th", text)));
  at(id).replaceChildren(head, ...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((cell) => {
      const place = document.createElement("td");
      place.append(cell);
      return place;
    }));
    return row;
  }));
}

function swatch(colour, text) {
  const whole = node("span"), mark = node("i", "", "swatch");
  mark.style.background = colour;
  whole.append(mark, text);
  return whole;
}

/// The headline: [level, title, reason].
export function headline(status, daemons, silentSeconds) {
  if (silentSeconds > 5) return ["bad", "No connection to the daemon", `for ${duration(silentSeconds)}; retrying`];
  const { durability, waiting, trainers } = status;
  const error = durability.error || durability.log?.error;
  if (error) return ["bad", "Saving fails", error];
  if (status.state === "stopping") return ["warn", "Stopping", "finishing and saving work in progress"];
  if (status.state === "moved") return ["warn", "Moved", `the model is now at ${status.moved_to.join(" ")}`];
  const name = status.model?.name ?? "a model";
  if (status.state === "standby") return ["good", `Standby of ${name}`, "in sync: takes over if the primary fails"];
  if (status.state === "following") return ["warn", "Following", "not in sync yet: cannot take over"];
  if (status.state === "waiting") return ["warn", "Waiting", status.replica_set.waits];
  if (status.state !== "serving") return ["warn", "Waiting for a model", status.model ? `the first trainer initializes ${name}` : "the first trainer defines it"];
  const away = trainers.filter((trainer) => !trainer.connected);
  if (away.length) return ["warn", `Serving ${name}`, `rank ${away.map((each) => each.rank).join(", ")} is not connected`];
  let awaited = null;
  for (const each of waiting.flatMap((wait) => wait.for)) if (!awaited || each.waited_seconds > awaited.waited_seconds) awaited = each;
  if (awaited && awaited.waited_seconds > 5) return ["warn", `Serving ${name}`, `waiting for rank ${awaited.rank} for ${duration(awaited.waited_seconds)}`];
  const gone = daemons.filter((each) => each.polled && !each.answers);
  if (gone.length) return ["warn", `Serving ${name}`, `away: ${gone.map((each) => `daemon ${each.partition} at ${each.address}`).join(", ")}`];
  const size = status.world_size ? `${trainers.length} of ${status.world_size}` : String(trainers.length);
  const lost = status.trainers_lost ? `, ${plural(status.trainers_lost, "trainer")} lost` : "";
  return ["good", `Serving ${name}`, `${size} trainers joined${lost}`];
}

function showState(status, daemons, silentSeconds) {
  const [level, title, reason] = headline(status, daemons, silentSeconds);
  at("state").dataset.level = level;
  at("state-title").textContent = title;
  at("state-reason").textContent = reason;
  document.title = `${title} · psd`;
}

function showTiles(status, point) {
  const value = (name) => point?.[name] ?? null;
  const samples = status.samples;
  const tiles = [
    ["gradients", "Gradients", number(value("gradients")), "/s", `${number(status.counters.gradients)} total`],
    ["samples", "Samples", number(value("samples")), "/s", samples ? `${number(samples.done)} of ${number(samples.epoch * samples.epochs)} done` : "steps × batch"],
    ["pulled", "Pulled", bytes(value("pull_bytes")), "/s", `${bytes(status.counters.pull_bytes)} total`],
    ["pushed", "Pushed", bytes(value("push_bytes")), "/s", `${bytes(status.counters.push_bytes)} total`],
    ["staleness", "Staleness, median", number(value("staleness_median") === null ? null : Math.round(value("staleness_median"))), "", `99 % ≤ ${number(value("staleness_99") === null ? null : Math.ceil(value("staleness_99")))}`],
    ["apply", "Apply, median", duration(value("apply_seconds_median")), "", `99 % ≤ ${duration(value("apply_seconds_99"))}`],
    ["rounds", "Rounds", number(status.histograms.round_seconds.count), "", status.histograms.round_seconds.count ? `${duration(status.histograms.round_seconds.sum / status.histograms.round_seconds.count)} each` : "no synchronous group"],
    ["resident", "Memory", bytes(status.resident_bytes), "", `up ${duration(status.uptime_seconds)}`],
  ];
  at("tiles").replaceChildren(...tiles.map(([id, name, text, unit, more]) => {
    const tile = node("div", "", "tile"), big = node("div", text, "value");
    tile.id = `tile-${id}`;
    if (unit) big.append(node("small", unit));
    tile.append(node("div", name, "name"), big, node("div", more, "more"));
    return tile;
  }));
}

function doing(trainer) {
  if (!trainer.connected) return node("span", "not connected", "badge bad");
  if (trainer.waits_for) return node("span", `waits for ${trainer.waits_for}`, "badge warn");
  return node("span", "computes", "badge good");
}

const kReportsShown = 6;

/// Number of buckets up to the largest value in any of the histograms, which share their bounds.
const bucketsUsed = (histograms) => Math.max(1, ...histograms.map(({ buckets }) => buckets.findLastIndex((each) => each.count > 0) + 1));

/// Renders the first `count` buckets, with heights relative to the largest.
function bars({ buckets }, count) {
  const shown = buckets.slice(0, count), most = Math.max(1, ...shown.map((each) => each.count));
  const all = node("span", "", "bars");
  const below = (index) => (shown[index].at_most === null ? `> ${shown[index - 1].at_most}` : `${shown[index].at_most > 1 ? "≤ " : ""}${shown[index].at_most}`);
  all.append(...shown.map((each) => {
    const bar = node("i");
    bar.style.height = each.count ? `${Math.max(8, 100 * each.count / most).toFixed(0)}%` : "0";
    return bar;
  }));
  all.title = shown.map((each, index) => `${below(index)}: ${number(each.count)}`).join("\n");
  all.setAttribute("role", "img");
  all.setAttribute("aria-label", `gradients by staleness: ${all.title.replaceAll("\n", ", ")}`);
  return all;
}

function stalenessOf(trainer, count) {
  const whole = node("span", String(trainer.staleness));
  whole.append(bars(trainer.staleness_histogram, count));
  return whole;
}

function showTrainers(status, actions) {
  const reported = [...new Set(status.trainers.flatMap((trainer) => (trainer.reports ?? []).map((each) => each.name)))].slice(0, kReportsShown);
  const trainers = [...status.trainers].sort((one, other) => one.rank - other.rank);
  at("trainers-count").textContent = status.world_size ? `${trainers.length} of ${status.world_size}` : String(trainers.length);
  at("trainers-empty").hidden = trainers.length > 0;
  at("trainers").hidden = trainers.length === 0;
  const buckets = bucketsUsed(trainers.map((trainer) => trainer.staleness_histogram));
  const heads = ["rank", "process", "doing", "step", ...reported.map((name) => name.replace(/_per_second$/, "/s").replace(/_seconds$/, "")), "batch", "staleness", "pulled", "pushed", "last seen"];
  if (actions.remove) heads.push("");
  table("trainers", heads, trainers.map((trainer) => {
    const value = (name) => trainer.reports.find((each) => each.name === name)?.value;
    const cells = [
      swatch(seriesColour(trainer.rank), trainer.rank), `${trainer.pid}@${trainer.host}`, doing(trainer), String(trainer.step),
      ...reported.map((name) => (name.endsWith("_seconds") ? duration : number)(value(name))), String(trainer.batch), stalenessOf(trainer, buckets), bytes(trainer.pulled_bytes),
      bytes(trainer.pushed_bytes), `${duration(trainer.last_seen_seconds)} ago`];
    if (actions.remove) {
      const button = node("button", "Remove", "small danger");
      button.type = "button";
      button.addEventListener("click", () => actions.remove(trainer));
      cells.push(button);
    }
    return cells;
  }));
}

function showWaiting(status) {
  const several = severalGroups(status);
  const waits = status.waiting.map((wait) => {
    const row = node("div", "", "wait");
    row.append(node("div", `${several ? `${wait.group} · ` : ""}${wait.policy}, ${wait.what}`, "quiet"));
    const who = wait.ranks.length > 1 ? `ranks ${wait.ranks.join(", ")} wait` : wait.ranks.length ? `rank ${wait.ranks[0]} waits` : "no trainer is waiting yet";
    row.append(node("div", who + (wait.for.length ? " for " + wait.for.map((each) => `rank ${each.rank} (${duration(each.waited_seconds)})`).join(", ") : "")));
    return row;
  });
  const others = status.trainers.filter((trainer) => trainer.waits_for === "model" || trainer.waits_for === "samples");
  for (const trainer of others) {
    const row = node("div", `rank ${trainer.rank} waits for ${trainer.waits_for === "model" ? "the model's initial values" : "samples"}`, "wait");
    waits.push(row);
  }
  at("waiting").replaceChildren(...(waits.length ? waits : [node("p", "No trainer is waiting.", "none")]));
}

const ranksText = (ranks) => (ranks.length ? ranks.join(", ") : "–");

/// Whether parameters are in several groups; the name of a single group carries no information.
const severalGroups = (status) => new Set([...status.shards, ...status.row_shards, ...status.rounds].map((each) => each.group)).size > 1;

/// The ranks that a group's open round waits for, and for how long.
function awaitedIn(status, group) {
  return status.waiting.filter((wait) => wait.group === group).flatMap((wait) => wait.for.map((each) => `${each.rank} (${duration(each.waited_seconds)})`));
}

function graceOf(rounds) {
  const used = rounds.grace_seconds === null ? "" : `${duration(rounds.grace_seconds)} used`;
  const left = rounds.grace_left_seconds === null ? "" : `${duration(rounds.grace_left_seconds)} left`;
  return [used, left].filter(Boolean).join(", ") || "–";
}

function leftOutOf(rounds) {
  if (!rounds.left_out.length) return "–";
  const whole = node("span");
  whole.append(...rounds.left_out.map(({ rank, rounds: count, running }) => {
    const row = running > 1 ? `, the last ${running} in a row` : "";
    return node("span", `rank ${rank} of ${plural(count, "round")}${row}`, `badge ${running ? "bad" : "warn"}`);
  }));
  return whole;
}

/// One row per group whose policy has rounds; each fragment is a group.
function showRounds(status) {
  at("rounds-card").hidden = status.rounds.length === 0;
  const several = severalGroups(status);
  const heads = ["policy", "closed", "in last", "late", "took", "grace", "contributed", "missing", "left out"];
  table("rounds", several ? ["group", ...heads] : heads, status.rounds.map((each) => {
    const cells = [
      each.generation === null ? each.policy : `${each.policy}, generation ${each.generation}`, number(each.closed),
      ranksText(each.in) + (each.missing.length ? `, without ${ranksText(each.missing)}` : ""), ranksText(each.late),
      each.closed ? duration(each.open_seconds) : "–", graceOf(each), ranksText(each.contributed),
      awaitedIn(status, each.group).join(", ") || "–", leftOutOf(each)];
    return several ? [each.group, ...cells] : cells;
  }));
}

function gauge(name, used, limit, format = bytes) {
  const share = limit > 0 ? Math.min(1, used / limit) : 0;
  const whole = node("div", "", "gauge"), row = node("div", "", "row"), track = node("div", "", "track"), fill = node("span");
  row.append(node("span", name), node("span", limit ? `${format(used)} of ${format(limit)}` : format(used), "quiet"));
  fill.style.width = `${(share * 100).toFixed(1)}%`;
  if (share > 0.9) fill.className = "bad"; else if (share > 0.7) fill.className = "warn";
  track.append(fill);
  whole.append(row, track);
  return whole;
}

function showMemory(status) {
  const limits = status.limits;
  at("memory").replaceChildren(
    gauge("incoming messages", status.in_flight_bytes, limits.in_flight_bytes),
    gauge("gathered gradients", status.staged_bytes, limits.staged_bytes),
    gauge("pull snapshots", status.snapshot_bytes, limits.snapshot_bytes),
    gauge("queued answers", status.outgoing_bytes, limits.all_outgoing_bytes),
    gauge("rings", status.ring_bytes, limits.all_rings_bytes),
    gauge("waiting for the log", status.log_pending_bytes, limits.log_pending_bytes),
    ...(status.arriving_bytes > 0 ? [gauge("incoming model", status.arriving_bytes, limits.arriving_bytes)] : []));
}

const kStripFrom = 17;

function showShards(status) {
  const shards = [...status.shards.map((each) => ({ ...each, size: each.elements, unit: "elements" })),
                  ...status.row_shards.map((each) => ({ ...each, size: each.rows, unit: "rows" }))];
  const most = Math.max(1, ...shards.map((each) => each.version));
  at("shards-count").textContent = shards.length ? String(shards.length) : "";
  if (!shards.length) return at("shards").replaceChildren(node("p", "No model yet.", "none"));
  const several = severalGroups(status);
  const text = (each) => `${each.id}${several ? ` · ${each.group}` : ""} · ${number(each.size)} ${each.unit} on ${each.device}`;
  if (shards.length < kStripFrom) {
    at("shards").replaceChildren(...shards.map((each) => {
      const row = gauge(text(each), each.version, 0, (version) => `version ${version}`);
      row.querySelector(".track span").style.width = `${(100 * each.version / most).toFixed(1)}%`;
      return row;
    }));
    return undefined;
  }
  const strip = node("div", "", "strip");
  strip.append(...shards.slice(0, 1024).map((each) => {
    const mark = node("span");
    mark.title = `${text(each)}, version ${each.version}`;
    mark.style.opacity = String(0.2 + 0.8 * each.version / most);
    return mark;
  }));
  return at("shards").replaceChildren(strip);
}

function showTables(status) {
  at("tables-card").hidden = status.tables.length === 0;
  table("tables", ["table", "dim", "rows", "memory", "pulled", "pushed", "new", "evicted"], status.tables.map((each) => [
    each.name, String(each.dim), number(each.rows), bytes(each.row_bytes + each.index_bytes), number(each.pulled_rows),
    number(each.pushed_rows), number(each.new_rows), number(each.evicted_rows)]));
}

/// The daemon's standby, or its own state as a standby.
function standby(group) {
  if (group.role !== "primary") return `${group.waits || `this one, of ${group.primary}`}; ${bytes(group.lag_bytes)} to apply`;
  if (!group.follower) return "none: no follower";
  return `${group.follower}${group.standby === group.follower ? "" : ", not in sync yet"}; ${bytes(group.lag_bytes)} behind`;
}

function showDurability(status) {
  at("checkpoint").hidden = status.durability.type === "none";
  const { type, path, last_checkpoint: last, checkpoints, checkpoint_failures: failures, error, log } = status.durability;
  const rows = [["durability", type === "none" ? "none: the model is lost when the daemon ends" : `${type} in ${path}`]];
  if (type !== "none") {
    rows.push(["checkpoints", `${checkpoints}${failures ? `, ${failures} failed` : ""}`]);
    rows.push(["newest", last ? `${duration(last.age_seconds)} ago, ${bytes(last.written_bytes)} in ${duration(last.duration_seconds)}` : "none yet"]);
  }
  if (log) rows.push(["log", `${number(log.records)} records, ${bytes(log.written_bytes)}`]);
  if (status.replica_set) rows.push(["standby", standby(status.replica_set)]);
  if (status.replica_set?.engine) rows.push(["engine", status.replica_set.engine]);
  if (error || log?.error) rows.push(["error", error || log.error]);
  at("durability").replaceChildren(...rows.flatMap(([name, text]) => [node("dt", name), node("dd", text, name === "error" || name === "engine" ? "bad" : "")]));
}

function answering(daemon) {
  if (!daemon.polled) return node("span", daemon.why, "badge");
  if (daemon.answers) return node("span", daemon.state, `badge ${["serving", "standby"].includes(daemon.state) ? "good" : "warn"}`);
  const silent = daemon.silent_seconds ? `away, since ${duration(daemon.silent_seconds)}` : "away";
  const badge = node("span", silent, "badge bad");
  badge.title = daemon.why;
  return badge;
}

/// A link to the daemon's page, only if its address is an HTTP URL: it was reported by another daemon.
function pageOf(daemon) {
  if (daemon.here || !/^https?:\/\//.test(daemon.page)) return daemon.address;
  const link = node("a", daemon.address);
  link.href = daemon.page;
  return link;
}

function standbyOf(daemon) {
  if (!daemon.term || !daemon.answers) return "–";
  if (daemon.role === "primary") return daemon.standby_in_sync ? `in sync, ${bytes(daemon.lag_bytes)} behind` : "none in sync";
  return `${bytes(daemon.lag_bytes)} to apply`;
}

function showDaemons(daemons) {
  at("daemons-card").hidden = daemons.length < 2;
  const away = daemons.filter((each) => each.polled && !each.answers).length;
  at("daemons-count").textContent = `${daemons.length}${away ? `, ${away} away` : ""}`;
  table("daemons", ["partition", "address", "", "role", "term", "standby", "gradients", "trainers", "memory"], daemons.map((each) => [
    String(each.partition), pageOf(each), answering(each), `${each.role || "–"}${each.here ? ", this one" : ""}`, each.term ? String(each.term) : "–", standbyOf(each),
    each.answers ? `${number(each.gradients_per_second)}/s` : "–", each.answers ? String(each.trainers) : "–", each.state ? bytes(each.resident_bytes) : "–"]));
}

const kLevels = { lost: "bad", failed: "bad", refused: "warn", disconnected: "warn", removed: "warn" };

function showEvents(events) {
  at("events-card").hidden = events.length === 0;
  at("events").replaceChildren(...[...events].reverse().map((event) => {
    const item = document.createElement("li"), time = node("time", clock(event.time));
    time.dateTime = new Date(event.time * 1000).toISOString();
    const kind = node("span");
    kind.append(node("span", event.kind, `badge ${kLevels[event.kind] ?? ""}`));
    item.append(time, kind, node("span", event.text));
    return item;
  }));
}

export function show(status, point, events, daemons, silentSeconds, actions) {
  showState(status, daemons, silentSeconds);
  at("model").textContent = status.model?.name ?? "psd";
  const partition = status.partition ? `partition ${status.partition.index} of ${status.partition.of} · ` : "";
  const model = status.model ? `${number(status.model.parameters)} parameters in ${plural(status.model.tensors, "tensor")} · ` : "";
  at("where").textContent = `${partition}${model}${status.policy} · ${status.optimizer}`;
  showTiles(status, point);
  showTrainers(status, actions);
  showWaiting(status);
  showRounds(status);
  showMemory(status);
  showShards(status);
  showTables(status);
  showDurability(status);
  showEvents(events ?? []);
  showDaemons(daemons);
  at("footer").textContent = `psd ${status.version} · pid ${status.pid} on ${status.host} · ${status.addresses.join(" · ")} · ${plural(status.threads, "event loop")}`;
}
