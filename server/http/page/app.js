// Page logic: follows the daemon's event stream, keeps its state, and has it rendered.
import { at } from "/dom.js";
import { Charts } from "/charts.js";
import { levelOf, showEvents, shownEvents } from "/events.js";
import { act, confirmed, fetched, headers, isAdmin, signIn, signOut } from "/session.js";
import { show, showState } from "/view.js";

const kSecondsKept = 600;  // as in the daemon
const kRecentSeconds = 15;  // no less than rates are averaged over
const kHistoryMs = 60_000;
const kRetryMs = 2000;
const kStaleSeconds = 5;
const state = { feed: null, status: null, events: [], daemons: [], config: null, configOf: 0, readsConfig: false,
                history: { series: [], seconds: [], minutes: [], reports: new Map() }, historyRead: 0,
                receivedAt: 0, broken: false };
const charts = new Charts(at("charts"), draw);

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/// RFC 7396.
function patched(target, patch) {
  if (!isObject(patch)) return patch;
  const result = Object.assign(Object.create(null), isObject(target) ? target : {});
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete result[key]; else result[key] = patched(result[key], value);
  }
  return result;
}

/// The value of a key, created if missing.
function entryOf(map, key, make) {
  if (!map.has(key)) map.set(key, make());
  return map.get(key);
}

function addReports(time) {
  for (const trainer of state.status.trainers) {
    for (const { name, value } of trainer.reports ?? []) {
      const ofRank = entryOf(state.history.reports, String(trainer.rank), () => new Map());
      const series = entryOf(ofRank, name, () => []);
      if (series.length && series[series.length - 1][1] === trainer.reported_step) continue;
      series.push([time, trainer.reported_step, value]);
      if (series.length > kSecondsKept) series.shift();
    }
  }
}

function received() {
  state.receivedAt = performance.now();
  state.broken = false;
}

/// Applies a tick's document, whole or delta.
function take(kind, data) {
  state.feed = kind === "whole" ? data : patched(state.feed, data);
  const { status, point, events, daemons, time } = state.feed;
  state.status = status;
  state.events = events ?? [];
  state.daemons = daemons ?? [];
  received();
  const seconds = state.history.seconds;
  if (point && point[0] > (seconds.at(-1)?.[0] ?? 0)) {
    seconds.push(point);
    if (seconds.length > kSecondsKept) seconds.shift();
  }
  addReports(time);
  draw();
  readConfig();
  if (performance.now() - state.historyRead < kHistoryMs) return;
  state.historyRead = performance.now();
  readHistory().then(draw, (error) => console.debug("no history", error));
}

/// Reads the configuration, and again after each event that may have changed it.
async function readConfig() {
  const newest = state.events.findLast((event) => ["reload", "primary", "serving"].includes(event.kind))?.number ?? 0;
  if (!isAdmin() || state.readsConfig || (state.config && state.configOf === newest)) return;
  state.readsConfig = true;
  try {
    state.config = await fetched("/api/config.json");
    state.configOf = newest;
    draw();
  } catch (error) {
    console.debug("no configuration", error);
  }
  state.readsConfig = false;
}

/// The newest points of the history, by series.
function recent() {
  const { series, seconds } = state.history;
  return seconds.slice(-kRecentSeconds).map(([time, ...values]) => (
    { time, ...Object.fromEntries(series.map((name, index) => [name, values[index]])) }));
}

function draw() {
  if (!state.status) return;
  const silentSeconds = (performance.now() - state.receivedAt) / 1000;
  const stale = state.broken || silentSeconds > kStaleSeconds;
  show({ ...state, recent: recent(), silentSeconds, stale }, isAdmin() ? remove : null);
  showEvents(state.events, draw);
  charts.draw(state.history, shownEvents(state.events).map((event) => (
    { time: event.time, text: `${event.kind}: ${event.text}`, level: levelOf(event) })));
}

/// Reloads the daemon's history: its minutes advance, and it thins out long series of reports.
async function readHistory() {
  const { reports, ...rest } = await fetched("/api/history.json");
  // Names come from trainers and may collide with an object's own properties, hence Map.
  const byRank = Object.entries(reports).map(([rank, series]) => [rank, new Map(Object.entries(series))]);
  state.history = { ...rest, reports: new Map(byRank) };
}

/// "name: value" of a line.
function fieldOf(line) {
  const end = line.indexOf(":");
  return [line.slice(0, end), line.slice(end + 2)];
}

/// Reads the stream of events until it ends.
async function follow() {
  const answer = await fetch("/api/events", { headers: headers(), cache: "no-store" });
  if (!answer.ok) throw new Error(`/api/events: ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = "";;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const fields = Object.fromEntries(text.slice(0, end).split("\n").map(fieldOf));
      if (fields.data) take(fields.event, JSON.parse(fields.data));
    }
  }
}

async function run() {
  for (;;) {
    try {
      await signIn(() => showState("unknown", "Not signed in", "this daemon requires a token"));
      await readHistory();
      state.status = await fetched("/api/status.json");
      received();
      draw();
      await follow();
    } catch (error) {
      console.debug("no connection to the daemon", error);
      state.broken = error instanceof TypeError;
      draw();
    }
    await new Promise((resolve) => setTimeout(resolve, kRetryMs));
  }
}

async function remove(trainer) {
  const title = `Remove the trainer of rank ${trainer.rank}?`;
  const text = `Process ${trainer.pid} on ${trainer.host} is evicted and may not join again. `
    + "Another process may take the rank.";
  if (await confirmed({ title, text, yes: "Remove", danger: true })) act("remove", { rank: trainer.rank });
}

const asks = {
  reload: () => ({
    title: "Reload the configuration?", yes: "Reload",
    text: "Changes in the file that can be applied at run time take effect for all trainers immediately." }),
  checkpoint: () => ({ title: "Write a checkpoint now?", yes: "Checkpoint",
                       text: "Training continues while it is written." }),
  stop: () => ({ title: "Stop the daemon?", yes: "Stop", danger: true, text: "The run ends for all trainers.",
                 warning: state.status.loses_model
                   ? "Stopping discards the model, or rows of its tables, which save does not write: durability.type is none." : "" }),
};

for (const button of document.querySelectorAll("[data-action]")) {
  button.addEventListener("click", async () => {
    const name = button.dataset.action;
    if (await confirmed(asks[name]())) act(name);
  });
}
at("sign-out").addEventListener("click", signOut);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
setInterval(() => {
  if (performance.now() - state.receivedAt > kStaleSeconds * 1000 || state.broken) draw();
}, 1000);
run();
