// The list of events, filtered by their kinds.
import { at, h, render } from "/dom.js";
import { clock } from "/format.js";

const kLevels = { lost: "bad", failed: "bad", refused: "warn", disconnected: "warn", removed: "warn" };
/// Kinds not shown. Checkpoints have their own card.
const hidden = new Set(["checkpoint"]);

export const levelOf = (event) => kLevels[event.kind] ?? "";

export const shownEvents = (events) => events.filter((event) => !hidden.has(event.kind));

function toggle(kind, changed) {
  if (!hidden.delete(kind)) hidden.add(kind);
  changed();
}

/// `changed()`: called when other kinds are to be shown.
export function showEvents(events, changed) {
  at("events-card").hidden = events.length === 0;
  const counts = new Map();
  for (const { kind } of events) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  render(at("event-kinds"), [...counts].sort().map(([kind, count]) =>
    h("button", { key: kind, type: "button", "aria-pressed": String(!hidden.has(kind)),
                  onclick: () => toggle(kind, changed) }, `${kind} ${count}`)));
  const items = shownEvents(events).reverse().map((event) =>
    h("li", { key: event.number, "data-kind": event.kind },
      h("time", { datetime: new Date(event.time * 1000).toISOString() }, clock(event.time)),
      h("span", {}, h("span", { class: `badge ${levelOf(event)}` }, event.kind)), h("span", {}, event.text)));
  render(at("events"), items.length ? items : h("li", { class: "none" }, "No events of these kinds."));
}
