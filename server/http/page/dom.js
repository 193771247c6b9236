// Brings the document in line with a description of it. Nodes that stay keep their identity, and with it keyboard
// focus, selected text and a click in progress.

export const at = (id) => document.getElementById(id);

/// Describes an element. Attributes: `key` names it among its siblings; `on…` is a handler; `style` an object.
/// Children are descriptions and texts, also in lists; null and false stand for nothing.
export function h(tag, attributes = {}, ...children) {
  return { tag, attributes, children };
}

/// Makes the children of `parent`, all of which come from here, those that are described.
export function render(parent, ...children) {
  const focused = document.activeElement;
  fillChildren(parent, children);
  // A node that moves among its siblings loses the focus.
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

/// Sets the text of an element whose only child it is.
export function say(id, text) {
  render(at(id), text);
}

const names = new WeakMap();  // of nodes among their siblings
const attributesOf = new WeakMap();

function fillChildren(parent, children) {
  const present = new Map();
  for (const node of parent.childNodes) if (names.has(node)) present.set(names.get(node), node);
  const nodes = [];
  for (const [name, child] of named(children)) {
    let node = present.get(name);
    if (!node) {
      node = typeof child === "object" ? document.createElement(child.tag) : document.createTextNode("");
      names.set(node, name);
    }
    fill(node, child);
    nodes.push(node);
  }
  const kept = new Set(nodes);
  for (const node of [...parent.childNodes]) if (!kept.has(node)) node.remove();
  let place = parent.firstChild;
  for (const node of nodes) {
    if (node === place) place = place.nextSibling; else parent.insertBefore(node, place);
  }
}

/// [name, child] of each child: its key, or its number among those of its kind without one.
function named(children) {
  const numbers = new Map();
  const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== "");
  return shown.map((child) => {
    const kind = child.tag ?? "text", key = child.attributes?.key;
    const stem = key === undefined ? kind : `${kind} ${key}`;
    const number = numbers.get(stem) ?? 0;
    numbers.set(stem, number + 1);
    return [`${stem}#${number}`, child];
  });
}

function fill(node, child) {
  if (typeof child !== "object") {
    if (node.data !== String(child)) node.data = child;
    return;
  }
  const before = attributesOf.get(node) ?? {};
  for (const name of Object.keys(before)) if (!(name in child.attributes)) setAttribute(node, name, null);
  for (const [name, value] of Object.entries(child.attributes)) setAttribute(node, name, value);
  attributesOf.set(node, child.attributes);
  fillChildren(node, child.children);
}

function setAttribute(node, name, value) {
  if (name === "key") return;
  if (name.startsWith("on")) {
    node[name] = value;
  } else if (name === "style") {
    for (const [property, text] of Object.entries(value ?? {})) if (node.style[property] !== text) node.style[property] = text;
  } else if (value === null || value === undefined || value === false) {
    node.removeAttribute(name);
  } else {
    const text = value === true ? "" : String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}
