// Renders the status document: the headline, the tiles, and through the other files the cards.
import { at, h, render, say } from "/dom.js";
import { bytes, daemonName, duration, number, plural } from "/format.js";
import { showConfig, showDaemons, showDurability, showMemory, showRounds, showShards, showTables, showVersions, showWaiting }
  from "/cards.js";
import { averaged } from "/series.js";
import { showTrainers } from "/trainers.js";

const kStillSeconds = 3;

const answerless = (daemons) => daemons.filter((each) => each.polled && !each.answers);

/// The daemons whose absence stops the training: a trainer needs every partition. `recent`: the newest points.
export function stoppedBy(status, daemons, recent) {
  const still = recent.slice(-kStillSeconds).every((point) => !point.gradients);
  if (!status.trainers.length || recent.length < kStillSeconds || !still) return [];
  const primaries = daemons.filter((each) => each.answers && each.role === "primary");
  const served = new Set(primaries.map((each) => each.partition));
  return answerless(daemons).filter((each) => !served.has(each.partition));
}

/// The headline: [level, title, reason].
function headline({ status, daemons, silentSeconds, stale }, stopped) {
  if (stale) return ["bad", "No response from the daemon", `for ${duration(silentSeconds)}; retrying`];
  const { durability, waiting, trainers } = status;
  const error = durability.error || durability.log?.error;
  if (error) return ["bad", "Saving fails", error];
  if (status.state === "stopping") return ["warn", "Stopping", "finishing and saving work in progress"];
  if (status.state === "moved") return ["warn", "Moved", `the model is now at ${status.moved_to.join(" ")}`];
  const name = status.model?.name ?? "a model";
  if (status.state === "standby") {
    return ["good", `Standby of ${name}`,
            `in sync with its primary ${status.replica_set.primary}; takes over if it fails`];
  }
  if (status.state === "following") return ["warn", "Following", "not in sync yet: cannot take over"];
  if (status.state === "waiting") return ["warn", "Waiting", status.replica_set.waits];
  if (status.state !== "serving") {
    return ["warn", "Waiting for a model",
            status.model ? `the first trainer initializes ${name}` : "the first trainer defines it"];
  }
  if (stopped.length) {
    return ["bad", "Training is stalled", `no response from ${stopped.map(daemonName).join(", ")}`];
  }
  if (status.publish?.error) return ["warn", "Publishing is failing", status.publish.error];
  const disconnected = trainers.filter((trainer) => !trainer.connected);
  if (disconnected.length) {
    return ["warn", `Serving ${name}`, `rank ${disconnected.map((each) => each.rank).join(", ")} is not connected`];
  }
  let awaited = null;
  for (const each of waiting.flatMap((wait) => wait.for)) {
    if (!awaited || each.waited_seconds > awaited.waited_seconds) awaited = each;
  }
  if (awaited && awaited.waited_seconds > 5) {
    return ["warn", `Serving ${name}`, `waiting for rank ${awaited.rank} for ${duration(awaited.waited_seconds)}`];
  }
  const unreachable = answerless(daemons);
  if (unreachable.length) return ["warn", `Serving ${name}`, `unreachable: ${unreachable.map(daemonName).join(", ")}`];
  return ["good", `Serving ${name}`, trainersText(status)];
}

function trainersText({ trainers, world_size: size, trainers_lost: count, counters }) {
  const lost = count ? `, ${plural(count, "trainer")} lost` : "";
  if (!trainers.length) {
    return (counters.trainers_joined ? "all trainers have left" : "no trainers have joined") + lost;
  }
  return `${size ? `${trainers.length} of ${size} trainers` : plural(trainers.length, "trainer")} joined${lost}`;
}

export function showState(level, title, reason) {
  at("state").dataset.level = level;
  say("state-title", title);
  say("state-reason", reason);
  document.title = `${title} · psd`;
}

function showTiles(status, recent) {
  const measured = (name) => recent.map((point) => point[name] ?? null).filter((value) => value !== null);
  // As in the charts.
  const rate = (name) => averaged(recent.map((point) => ({ x: point.time, y: point[name] }))).at(-1)?.y ?? null;
  const newest = (name) => measured(name).at(-1) ?? null;
  const rounded = (name, round) => (newest(name) === null ? null : round(newest(name)));
  const { samples, counters, histograms: { round_seconds: rounds } } = status;
  const samplesDone = samples && `${number(samples.done)} of ${number(samples.epoch * samples.epochs)} done`;
  const tiles = [
    ["gradients", "Gradients", number(rate("gradients")), "/s", `${number(counters.gradients)} total`],
    ["samples", "Samples", number(rate("samples")), "/s", samplesDone ?? "steps × batch"],
    ["pulled", "Pulled", bytes(rate("pull_bytes")), "/s", `${bytes(counters.pull_bytes)} total`],
    ["pushed", "Pushed", bytes(rate("push_bytes")), "/s", `${bytes(counters.push_bytes)} total`],
    ["staleness", "Staleness", number(rounded("staleness_median", Math.round)), "",
     `median; 99 % ≤ ${number(rounded("staleness_99", Math.ceil))}`],
    ["apply", "Apply latency", duration(newest("apply_seconds_median")), "",
     `median; 99 % ≤ ${duration(newest("apply_seconds_99"))}`],
    (rounds.count || status.rounds.length > 0) && ["rounds", "Rounds", number(rounds.count), "",
      rounds.count ? `${duration(rounds.sum / rounds.count)} each` : "none closed yet"],
    ["resident", "Memory", bytes(status.resident_bytes), "", `up ${duration(status.uptime_seconds)}`],
  ].filter(Boolean);
  at("tiles").style.setProperty("--tiles", tiles.length);
  render(at("tiles"), tiles.map(([id, name, text, unit, more]) => h("div", { key: id, id: `tile-${id}`, class: "tile" },
    h("div", { class: "name" }, name), h("div", { class: "value" }, text, unit && h("small", {}, unit)),
    h("div", { class: "more" }, more))));
}

/// `state`: {status, daemons, recent: newest points by series, silentSeconds, stale, config}. `remove`: see
/// showTrainers().
export function show(state, remove) {
  const { status, daemons, recent, stale } = state;
  const stopped = stale ? [] : stoppedBy(status, daemons, recent);
  showState(...headline(state, stopped));
  document.body.classList.toggle("stale", stale);
  for (const button of document.querySelectorAll("[data-action]")) button.disabled = stale;
  say("model", status.model?.name ?? "psd");
  const { model, partition } = status;
  say("where", [
    partition && `partition ${partition.index} of ${partition.of}`,
    model && `${number(model.parameters)} ${model.parameters === 1 ? "parameter" : "parameters"} in ${
      plural(model.tensors, "tensor")}`,
    status.policy, status.optimizer].filter(Boolean).join(" · "));
  showTiles(status, recent);
  showTrainers(status, stopped, remove, stale);
  showWaiting(status, stopped);
  showRounds(status);
  showMemory(status);
  showShards(status);
  showTables(status);
  showDurability(status);
  showVersions(status);
  showDaemons(daemons);
  showConfig(state.config);
  say("footer", [`psd ${status.version}`, `pid ${status.pid} on ${status.host}`, ...status.addresses,
                 plural(status.threads, "event loop")].join(" · "));
}
