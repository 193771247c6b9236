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
const state = { feed: null, status: null, events: [], daemons: [], config: null, configOf: 0,
                history: { series: [], seconds: [], minutes: [], reports: new Map() }, historyRead: 0, receivedAt: 0, broken: false, signedOut: false };
const charts = new Charts(at("charts"), draw);

/// RFC 7396.
function patched(target, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const result = Object.assign(Object.create(null), target !== null && typeof target === "object" && !Array.isArray(target) ? target : {});
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete result[key]; else result[key] = patched(result[key], value);
  }
  return result;
}

/// The value of a key, created if missing.
function kept(map, key, make) {
  if (!map.has(key)) map.set(key, make());
  return map.get(key);
}

function addReports(time) {
  for (const trainer of state.status.trainers) {
    for (const { name, value } of trainer.reports ?? []) {
      const series = kept(kept(state.history.reports, String(trainer.rank), () => new Map()), name, () => []);
      if (series.length && series[series.length - 1][1] === trainer.reported_step) continue;
      series.push([time, trainer.reported_step, value]);
      if (series.length > kSecondsKept) series.shift();
    }
  }
}

function received() {
  state.receivedAt = performance.now();
  state.broken = state.signedOut = false;
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
function readConfig() {
  const newest = state.events.findLast((event) => ["reload", "primary", "serving"].includes(event.kind))?.number ?? 0;
  if (!isAdmin() || (state.config && state.configOf === newest)) return;
  state.configOf = newest;
  fetched("/api/config.json").then((config) => { state.config = config; draw(); }, (error) => console.debug("no configuration", error));
}

/// The newest points of the history, by series.
function recent() {
  const { series, seconds } = state.history;
  return seconds.slice(-kRecentSeconds).map((point) => ({ time: point[0], ...Object.fromEntries(series.map((name, index) => [name, point[index + 1]])) }));
}

function draw() {
  if (!state.status) return;
  const silentSeconds = (performance.now() - state.receivedAt) / 1000;
  const stale = state.broken || state.signedOut || silentSeconds > kStaleSeconds;
  show({ ...state, recent: recent(), silentSeconds, stale }, isAdmin() ? remove : null);
  showEvents(state.events, draw);
  charts.draw(state.history, shownEvents(state.events).map((event) => ({ time: event.time, text: `${event.kind}: ${event.text}`, level: levelOf(event) })));
  if (state.signedOut) showSignedOut();
}

/// Reloads the daemon's history: its minutes advance, and it thins out long series of reports.
async function readHistory() {
  const { reports, ...rest } = await fetched("/api/history.json");
  // Names come from trainers and may collide with an object's own properties, hence Map.
  state.history = { ...rest, reports: new Map(Object.entries(reports).map(([rank, series]) => [rank, new Map(Object.entries(series))])) };
}

/// Reads the stream of events until it ends.
async function follow(signal) {
  const answer = await fetch("/api/events", { headers: headers(), cache: "no-store", signal });
  if (!answer.ok) throw new Error(`/api/events: ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = "";;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const fields = Object.fromEntries(text.slice(0, end).split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      if (fields.data) take(fields.event, JSON.parse(fields.data));
    }
  }
}

function showSignedOut() {
  showState("unknown", "Not signed in", "this daemon requires a token");
}

async function run() {
  for (;;) {
    const ended = new AbortController();
    try {
      await signIn(() => {
        state.signedOut = true;
        state.config = null;
        showSignedOut();
        draw();
      }, () => ended.abort());
      await readHistory();
      state.status = await fetched("/api/status.json");
      received();
      draw();
      await follow(ended.signal);
    } catch (error) {
      console.debug("no connection to the daemon", error);
      state.broken = error instanceof TypeError;
      draw();
    }
    if (!ended.signal.aborted) await new Promise((resolve) => setTimeout(resolve, kRetryMs));
  }
}

async function remove(trainer) {
  const text = `Process ${trainer.pid} on ${trainer.host} is evicted and may not join again. Another process may take the rank.`;
  if (await confirmed({ title: `Remove the trainer of rank ${trainer.rank}?`, text, yes: "Remove", danger: true })) act("remove", { rank: trainer.rank });
}

const asks = {
  reload: () => ({ title: "Reload the configuration?", text: "Changes in the file that can be applied at run time take effect for all trainers immediately.", yes: "Reload" }),
  checkpoint: () => ({ title: "Write a checkpoint now?", text: "Training continues while it is written.", yes: "Checkpoint" }),
  stop: () => {
    const kept = state.status.durability.type !== "none" || state.config?.config.save;
    return { title: "Stop the daemon?", text: kept ? "The run ends for all trainers. The model is saved as configured." : "The run ends for all trainers.", yes: "Stop", danger: true,
             warning: kept ? "" : "Nothing of the model is kept: durability.type is none, and save is empty." };
  },
};

for (const button of document.querySelectorAll("[data-action]")) {
  button.addEventListener("click", async () => {
    const name = button.dataset.action;
    if (await confirmed(asks[name]())) act(name);
  });
}
at("sign-out").addEventListener("click", signOut);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
setInterval(() => { if (performance.now() - state.receivedAt > kStaleSeconds * 1000 || state.broken) draw(); }, 1000);
run();
