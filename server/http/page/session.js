// The caller of this tab: the token, what it allows, and the actions taken with it.
import { at, say } from "/dom.js";

/// The daemon refuses the caller: no token, or one that does not suffice.
class Refused extends Error {}

let access = null;  // {role, caller}; null: not signed in

/// "yes" in the tab's storage: the caller declined to give a token, or signed out; do not ask.
const kDeclined = "declined";

export const isAdmin = () => access?.role === "admin";

export const headers = () => {
  const token = sessionStorage.getItem("token");
  return token ? { Authorization: `Bearer ${token}` } : {};
};

export async function fetched(path) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) throw new Refused((await answer.text()).trim());
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

/// Resolves once the daemon accepts the caller. Until then it calls `signedOut()` and asks for a token; if the caller
/// has declined, it waits for the button.
export async function signIn(signedOut) {
  for (;;) {
    try {
      const now = await fetched("/api/caller.json");
      if (access && (now.role !== access.role || now.caller !== access.caller)) return forget();
      access = now;
      return showCaller();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (access) return forget();
      showCaller();
      signedOut();
      await tokenEntered(sessionStorage.getItem("token") ? error.message : "This daemon requires a token.");
    }
  }
}

/// Forgets all that the page shows or is about to receive. Never resolves: the page loads again.
function forget() {
  location.reload();
  return new Promise(() => {});
}

function showCaller() {
  const hasToken = sessionStorage.getItem("token") !== null;
  for (const button of document.querySelectorAll("[data-admin]")) button.hidden = !isAdmin();
  const unnamed = access?.role === "reader" ? "reader" : "";
  say("caller", access?.caller ? `${access.caller}, ${access.role}` : unnamed);
  at("sign-out").hidden = !access || !hasToken;
  at("sign-in").hidden = true;
}

function tokenEntered(why) {
  const dialog = at("sign-in-dialog"), field = at("token"), button = at("sign-in");
  say("sign-in-why", why);
  return new Promise((resolve) => {
    const open = () => { field.value = ""; dialog.showModal(); };
    const decline = () => { sessionStorage.setItem(kDeclined, "yes"); button.hidden = false; };
    button.onclick = open;
    dialog.oncancel = decline;
    at("sign-in-cancel").onclick = () => { dialog.close(); decline(); };
    dialog.querySelector("form").onsubmit = () => {
      sessionStorage.setItem("token", field.value.trim());
      sessionStorage.removeItem(kDeclined);
      resolve();
    };
    if (sessionStorage.getItem(kDeclined)) decline(); else open();
  });
}

export function signOut() {
  sessionStorage.removeItem("token");
  sessionStorage.setItem(kDeclined, "yes");
  forget();
}

function toast(text, level = "") {
  const place = at("toast");
  place.textContent = text;
  place.dataset.level = level;
  place.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { place.hidden = true; }, 6000);
}

/// Asks {title, text, yes, danger, warning}.
export function confirmed({ title, text, yes, danger = false, warning = "" }) {
  say("dialog-title", title);
  say("dialog-text", text);
  say("dialog-warning", warning);
  at("dialog-warning").hidden = !warning;
  say("dialog-yes", yes);
  at("dialog-yes").className = danger ? "stops" : "primary";
  const dialog = at("dialog");
  return new Promise((resolve) => {
    dialog.oncancel = () => resolve(false);
    dialog.onsubmit = (event) => resolve(event.submitter.value === "yes");
    dialog.showModal();
  });
}

export async function act(name, body = {}) {
  try {
    const answer = await fetch(`/api/${name}`, {
      method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const type = answer.headers.get("Content-Type") ?? "";
    const said = type.startsWith("application/json") ? await answer.json() : { error: await answer.text() };
    toast(said.message ?? said.error, answer.ok ? "" : "bad");
  } catch (error) {
    toast(`${name}: ${error.message}`, "bad");
  }
}
