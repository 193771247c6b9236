// The cards below the charts: daemons, rounds, waiting trainers, durability, checkpoints, published versions, memory, shards, tables.
import { at, h, render, say } from "/dom.js";
import { bytes, daemonName, duration, localTime, number, plural } from "/format.js";
import { showTable } from "/table.js";

const ranksText = (ranks) => (ranks.length ? ranks.join(", ") : "–");
const none = (text) => h("p", { class: "none" }, text);
const badge = (text, level = "", title = null) => h("span", { class: `badge ${level}`, title }, text);

/// Whether parameters are in several groups; the name of a single group carries no information.
const severalGroups = (status) => new Set([...status.shards, ...status.row_shards, ...status.rounds].map((each) => each.group)).size > 1;

export function showWaiting(status, stopped) {
  const several = severalGroups(status);
  const row = (key, ...children) => h("div", { class: "wait", key }, children);
  const waits = status.waiting.map((wait) => {
    const who = wait.ranks.length > 1 ? `ranks ${wait.ranks.join(", ")} wait` : wait.ranks.length ? `rank ${wait.ranks[0]} waits` : "no trainer is waiting yet";
    const whom = wait.for.map((each) => `rank ${each.rank} (${duration(each.waited_seconds)})`).join(", ");
    return row(`${wait.group} ${wait.policy}`, h("div", { class: "quiet" }, `${several ? `${wait.group} · ` : ""}${wait.policy}, ${wait.what}`),
      h("div", {}, whom ? `${who} for ${whom}` : who));
  });
  for (const trainer of status.trainers) {
    const what = { model: "the model's initial values", samples: "samples" }[trainer.waits_for];
    if (what) waits.push(row(`rank ${trainer.rank}`, `rank ${trainer.rank} waits for ${what}`));
  }
  if (stopped.length) {
    const ranks = status.trainers.map((trainer) => trainer.rank).sort((one, other) => one - other);
    const whom = stopped.map(daemonName).join(", ");
    waits.push(row("daemons", `${ranks.length > 1 ? "ranks" : "rank"} ${ranksText(ranks)} ${ranks.length > 1 ? "wait" : "waits"} for ${whom}`));
  }
  render(at("waiting"), waits.length ? waits : none("No trainer is waiting."));
}

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
  return rounds.left_out.map(({ rank, rounds: count, running }) => {
    const row = running > 1 ? `, the last ${running} in a row` : "";
    return badge(`rank ${rank} of ${plural(count, "round")}${row}`, running ? "bad" : "warn");
  });
}

/// One row per group whose policy has rounds; each fragment is a group.
export function showRounds(status) {
  at("rounds-card").hidden = status.rounds.length === 0;
  const columns = [
    { name: "policy", text: true, cell: (each) => (each.generation === null ? each.policy : `${each.policy}, generation ${each.generation}`) },
    { name: "closed", cell: (each) => number(each.closed) },
    { name: "in last", text: true, cell: (each) => ranksText(each.in) + (each.missing.length ? `, without ${ranksText(each.missing)}` : "") },
    { name: "late", text: true, cell: (each) => ranksText(each.late) },
    { name: "took", cell: (each) => (each.closed ? duration(each.open_seconds) : "–") },
    { name: "grace", text: true, cell: graceOf },
    { name: "contributed", text: true, cell: (each) => ranksText(each.contributed) },
    { name: "missing", text: true, cell: (each) => awaitedIn(status, each.group).join(", ") || "–" },
    { name: "left out", text: true, cell: leftOutOf },
  ];
  if (severalGroups(status)) columns.unshift({ name: "group", text: true, cell: (each) => each.group });
  showTable("rounds", columns, status.rounds, (each) => each.group);
}

function gauge(name, used, limit) {
  const share = limit > 0 ? Math.min(1, used / limit) : 0;
  return h("div", { class: "gauge", key: name },
    h("div", { class: "row" }, h("span", {}, name), h("span", { class: "quiet" }, limit ? `${bytes(used)} of ${bytes(limit)}` : bytes(used))),
    h("div", { class: "track" }, h("span", { class: share > 0.9 ? "bad" : share > 0.7 ? "warn" : null, style: { width: `${(share * 100).toFixed(1)}%` } })));
}

export function showMemory(status) {
  const limits = status.limits;
  render(at("memory"),
    gauge("Receive buffers", status.in_flight_bytes, limits.in_flight_bytes),
    gauge("Gathered gradients", status.staged_bytes, limits.staged_bytes),
    gauge("Pull snapshots", status.snapshot_bytes, limits.snapshot_bytes),
    gauge("Send queue", status.outgoing_bytes, limits.all_outgoing_bytes),
    gauge("Shared-memory rings", status.ring_bytes, limits.all_rings_bytes),
    gauge("Log queue", status.log_pending_bytes, limits.log_pending_bytes),
    status.arriving_bytes > 0 && gauge("Incoming model", status.arriving_bytes, limits.arriving_bytes));
}

const kStripFrom = 17;

export function showShards(status) {
  const shards = [...status.shards.map((each) => ({ ...each, key: `e${each.id}`, size: `${number(each.elements)} elements` })),
                  ...status.row_shards.map((each) => ({ ...each, key: `r${each.id}`, size: `${number(each.rows)} rows` }))];
  const several = severalGroups(status), few = shards.length < kStripFrom;
  say("shards-count", shards.length ? String(shards.length) : "");
  at("shards-empty").hidden = shards.length > 0;
  at("shards").hidden = !shards.length || !few;
  const columns = [
    { name: "shard", text: true, cell: (each) => each.id },
    { name: "size", text: true, cell: (each) => each.size },
    { name: "device", text: true, cell: (each) => each.device },
    { name: "version", cell: (each) => each.version },
  ];
  if (several) columns.splice(1, 0, { name: "group", text: true, cell: (each) => each.group });
  showTable("shards", columns, few ? shards : [], (each) => each.key);
  const most = Math.max(1, ...shards.map((each) => each.version));
  render(at("shards-strip"), few ? [] : shards.slice(0, 1024).map((each) =>
    h("span", { key: each.key, title: `${each.id}${several ? ` · ${each.group}` : ""} · ${each.size} on ${each.device}, version ${each.version}`,
                style: { opacity: String(0.2 + 0.8 * each.version / most) } })));
}

export function showTables(status) {
  at("tables-card").hidden = status.tables.length === 0;
  const count = (name, label = name.replace(/_rows$/, "")) => ({ name: label, cell: (each) => number(each[name]), by: (each) => each[name] });
  showTable("tables", [
    { name: "table", text: true, cell: (each) => each.name, by: (each) => each.name },
    { name: "dim", cell: (each) => each.dim, by: (each) => each.dim }, count("rows"),
    { name: "memory", cell: (each) => bytes(each.row_bytes + each.index_bytes), by: (each) => each.row_bytes + each.index_bytes },
    count("pulled_rows"), count("pushed_rows"), count("new_rows"), count("evicted_rows")], status.tables, (each) => each.name);
}

/// The daemon's standby, or its own state as a standby.
function standby(group) {
  if (group.role !== "primary") return `${group.waits || `this one, of ${group.primary}`}; ${bytes(group.lag_bytes)} to apply`;
  if (!group.follower) return "none: no follower";
  return `${group.follower}${group.standby === group.follower ? "" : ", not in sync yet"}; ${bytes(group.lag_bytes)} behind`;
}

export function showDurability(status) {
  at("checkpoint").hidden = status.durability.type === "none";
  const { type, path, last_checkpoint: last, checkpoints, checkpoint_failures: failures, error, log, kept } = status.durability;
  const saves = type !== "none";
  const rows = [
    ["saved", saves ? `${type} in ${path}` : "nothing: the model is lost when the daemon ends"],
    saves && ["checkpoints", `${checkpoints}${failures ? `, ${failures} failed` : ""}`],
    saves && ["newest", last ? `${duration(last.age_seconds)} ago, ${bytes(last.written_bytes)} in ${duration(last.duration_seconds)}` : "none yet"],
    log && ["log", `${number(log.records)} records, ${bytes(log.written_bytes)}; ${bytes(log.disk_bytes)} on disk`],
    status.replica_set && ["standby", standby(status.replica_set)],
    status.replica_set?.engine && ["engine", status.replica_set.engine],
    (error || log?.error) && ["error", error || log.error],
  ].filter(Boolean);
  render(at("durability"), rows.map(([name, text]) => [
    h("dt", { key: name }, name), h("dd", { key: name, class: name === "error" || name === "engine" ? "bad" : null }, text)]));
  at("checkpoints-card").hidden = !kept.length;
  say("checkpoints-count", `${kept.length}, ${bytes(status.durability.checkpoint_disk_bytes)}`);
  showTable("checkpoints", [
    { name: "checkpoint", text: true, cell: (each) => h("span", { title: each.path }, each.path.split("/").at(-1).replace(/-0*(?=\d)/, " ")), by: (each) => each.path },
    { name: "written", text: true, cell: (each) => localTime(each.created), by: (each) => each.created },
    { name: "size", cell: (each) => bytes(each.disk_bytes), by: (each) => each.disk_bytes }], [...kept].reverse(), (each) => each.path);
}

export function showVersions({ publish }) {
  at("versions-card").hidden = !publish;
  if (!publish) return;
  const { upstream } = publish;
  const copied = !upstream ? "" : !upstream.address ? ", no daemon upstream" : `, copied from ${upstream.address}${upstream.newest > publish.newest ? `, whose newest is ${number(upstream.newest)}` : ""}`;
  say("versions-count", `${publish.versions.length}, ${bytes(publish.total_bytes)}${publish.path ? "" : " in memory"}${copied}`);
  at("versions-empty").hidden = publish.versions.length > 0;
  at("versions-error").hidden = !publish.error;
  say("versions-error", publish.error);
  at("versions").hidden = !publish.versions.length;
  showTable("versions", [
    { name: "version", cell: (each) => number(each.number), by: (each) => each.number },
    { name: "step", cell: (each) => number(each.step), by: (each) => each.step },
    { name: "moment", text: true, cell: (each) => each.moment, by: (each) => each.moment },
    { name: "published", text: true, cell: (each) => localTime(each.created), by: (each) => each.created },
    { name: "size", cell: (each) => bytes(each.file_bytes), by: (each) => each.file_bytes }], [...publish.versions].reverse(), (each) => String(each.number));
  at("leases").hidden = !publish.leases.length;
  showTable("leases", [
    { name: "reader", text: true, cell: (each) => each.reader, by: (each) => each.reader },
    { name: "version", cell: (each) => number(each.version), by: (each) => each.version },
    { name: "behind", cell: (each) => number(each.behind), by: (each) => each.behind },
    { name: "expires in", cell: (each) => duration(each.left_seconds), by: (each) => each.left_seconds }], publish.leases.map((each, index) => ({ ...each, index })), (each) => String(each.index));
}

function answering(daemon) {
  if (!daemon.polled) return badge(daemon.why);
  if (daemon.answers) return badge(daemon.state, ["serving", "standby"].includes(daemon.state) ? "good" : "warn");
  return badge(daemon.silent_seconds ? `no response for ${duration(daemon.silent_seconds)}` : "no response", "bad", daemon.why);
}

/// A link to the daemon's page, only if its address is an HTTP URL: it was reported by another daemon.
function pageOf(daemon) {
  if (daemon.here || !/^https?:\/\//.test(daemon.page)) return daemon.address;
  return h("a", { href: daemon.page }, daemon.address);
}

function standbyOf(daemon) {
  if (!daemon.term || !daemon.answers) return "–";
  if (daemon.role === "primary") return daemon.standby_in_sync ? `in sync, ${bytes(daemon.lag_bytes)} behind` : "no standby in sync";
  return `${bytes(daemon.lag_bytes)} to apply`;
}

export function showDaemons(daemons) {
  at("daemons-card").hidden = daemons.length < 2;
  const unreachable = daemons.filter((each) => each.polled && !each.answers).length;
  say("daemons-count", `${daemons.length}${unreachable ? `, ${unreachable} unreachable` : ""}`);
  showTable("daemons", [
    { name: "partition", text: true, cell: (each) => each.partition },
    { name: "address", text: true, cell: pageOf },
    { name: "state", text: true, cell: answering },
    { name: "role", text: true, cell: (each) => `${each.role || "–"}${each.here ? ", this one" : ""}` },
    { name: "term", cell: (each) => each.term || "–" },
    { name: "standby", text: true, cell: standbyOf },
    { name: "gradients", cell: (each) => (each.answers ? `${number(each.gradients_per_second)}/s` : "–") },
    { name: "trainers", cell: (each) => (each.answers ? each.trainers : "–") },
    { name: "memory", cell: (each) => (each.state ? bytes(each.resident_bytes) : "–") }], daemons, (each) => each.address);
}

let changedOnly = true;

/// `told`: /api/config.json, null unless the caller may read it.
export function showConfig(told) {
  at("config-card").hidden = !told;
  if (!told) return;
  const changed = new Set(told.changed);
  const rows = leaves(told.config, "").map(([name, value]) => ({ name, value, changed: changed.has(name) }));
  const shown = rows.filter((each) => each.changed || !changedOnly);
  say("config-count", `${plural(changed.size, "key")} of ${rows.length} changed from the default`);
  const only = at("config-only");
  only.checked = changedOnly;
  only.onchange = () => { changedOnly = only.checked; showConfig(told); };
  showTable("config", [
    { name: "key", text: true, cell: (each) => h("code", {}, each.name) },
    { name: "value", text: true, cell: (each) => h("span", { class: "long" }, typeof each.value === "string" ? each.value : JSON.stringify(each.value)) },
    { name: "origin", text: true, cell: (each) => (each.changed ? badge("changed", "warn") : badge("default")) }], shown, (each) => each.name);
}

function leaves(value, path) {
  if (path && (value === null || typeof value !== "object" || Array.isArray(value) || !Object.keys(value).length)) return [[path, value]];
  return Object.entries(value).flatMap(([name, below]) => leaves(below, path ? `${path}.${name}` : name));
}
