// Page logic: follows the daemon's event stream, keeps its state, renders it, and sends the user's actions.
import { Charts } from "/charts.js";
import { show } from "/view.js";

const kSecondsKept = 600;  // as in the daemon
const kHistoryMs = 60_000;
const kRetryMs = 2000;
const at = (id) => document.getElementById(id);
const state = { status: null, point: null, events: [], daemons: [], history: { series: [], seconds: [], minutes: [], reports: new Map() }, historyRead: 0, receivedAt: 0 };
let charts = null;

// The token of this tab, if the daemon requires one.
const headers = () => {
  const token = sessionStorage.getItem("token");
  return token ? { Authorization: `Bearer ${token}` } : {};
};

async function fetched(path) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) {
    sessionStorage.setItem("token", prompt("This daemon requires a reader's or administrator's token:") ?? "");
  }
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

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

/// Applies a tick's document, whole or delta.
function take(kind, data) {
  state.feed = kind === "whole" ? data : patched(state.feed, data);
  const { status, point, events, daemons, time } = state.feed;
  state.status = status;
  state.events = events ?? [];
  state.daemons = daemons ?? [];
  state.receivedAt = performance.now();
  if (point && point[0] !== state.newest) {
    state.newest = point[0];
    state.history.seconds.push(point);
    if (state.history.seconds.length > kSecondsKept) state.history.seconds.shift();
    takePoint(point);
  }
  addReports(time);
  draw();
  if (performance.now() - state.historyRead < kHistoryMs) return;
  state.historyRead = performance.now();
  readHistory().then(draw, (error) => console.debug("no history", error));
}

function takePoint(point) {
  if (point) state.point = Object.fromEntries(state.history.series.map((name, index) => [name, point[index + 1]]));
}

function draw() {
  if (!state.status) return;
  show(state.status, state.point, state.events, state.daemons, (performance.now() - state.receivedAt) / 1000, actions);
  charts?.draw(state.history);
}

/// Reloads the daemon's history: its minutes advance, and it thins out long series of losses.
async function readHistory() {
  const { reports, ...rest } = await fetched("/api/history.json");
  // Names come from trainers and may collide with an object's own properties, hence Map.
  state.history = { ...rest, reports: new Map(Object.entries(reports).map(([rank, series]) => [rank, new Map(Object.entries(series))])) };
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
      const fields = Object.fromEntries(text.slice(0, end).split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      if (fields.data) take(fields.event, JSON.parse(fields.data));
    }
  }
}

async function run() {
  for (;;) {
    try {
      await readHistory();
      const status = await fetched("/api/status.json");
      state.status = status;
      state.receivedAt = performance.now();
      takePoint(state.history.seconds.at(-1));
      draw();
      await follow();
    } catch (error) {
      console.debug("no connection to the daemon", error);
    }
    await new Promise((resolve) => setTimeout(resolve, kRetryMs));
  }
}

function toast(text, level = "") {
  const place = at("toast");
  place.textContent = text;
  place.dataset.level = level;
  place.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { place.hidden = true; }, 6000);
}

function confirmed(title, text, yes) {
  at("dialog-title").textContent = title;
  at("dialog-text").textContent = text;
  at("dialog-yes").textContent = yes;
  const dialog = at("dialog");
  return new Promise((resolve) => {
    dialog.oncancel = () => resolve(false);
    dialog.onsubmit = (event) => resolve(event.submitter.value === "yes");
    dialog.showModal();
  });
}

async function act(name, body = {}) {
  try {
    const answer = await fetch(`/api/${name}`, { method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const type = answer.headers.get("Content-Type") ?? "";
    const said = type.startsWith("application/json") ? await answer.json() : { error: await answer.text() };
    toast(said.message ?? said.error, answer.ok ? "" : "bad");
  } catch (error) {
    toast(`${name}: ${error.message}`, "bad");
  }
}

const asks = {
  reload: ["Reload the configuration?", "Changes in the file that can be applied at run time take effect for all trainers immediately.", "Reload"],
  checkpoint: ["Write a checkpoint now?", "Training continues while it is written.", "Checkpoint"],
  stop: ["Stop the daemon?", "The run ends for all trainers. The model is saved as configured.", "Stop"],
};
const actions = {
  async remove(trainer) {
    const text = `Process ${trainer.pid} on ${trainer.host} is evicted and may not join again. Another process may take the rank.`;
    if (await confirmed(`Remove the trainer of rank ${trainer.rank}?`, text, "Remove")) act("remove", { rank: trainer.rank });
  },
};

for (const button of document.querySelectorAll("[data-action]")) {
  button.addEventListener("click", async () => {
    const name = button.dataset.action;
    if (await confirmed(...asks[name])) act(name);
  });
}
for (const button of document.querySelectorAll("[data-range]")) {
  button.addEventListener("click", () => {
    for (const other of document.querySelectorAll("[data-range]")) other.setAttribute("aria-pressed", String(other === button));
    if (charts) charts.range = Number(button.dataset.range);
    draw();
  });
}
charts = new Charts(at("charts"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
setInterval(() => { if (state.status && performance.now() - state.receivedAt > 5000) draw(); }, 1000);
run();
