// Tables: columns of text to the left and of numbers to the right, sorted by a click on a column's name.
import { at, h, render } from "/dom.js";

const shown = new Map();   // by id, the arguments of the last showTable()
const orders = new Map();  // by id, {name, down}: the column sorted by

/// Columns: {name, cell(row), text: to the left, by(row): what it is sorted by}. `key(row)` identifies a row. Rows
/// without a value are last. Without a chosen column the rows stay in their order.
export function showTable(id, columns, rows, key) {
  shown.set(id, { columns, rows, key });
  const place = at(id), order = orders.get(id);
  render(place,
    h("thead", {}, h("tr", {}, columns.map((column) => head(id, column, order)))),
    h("tbody", {}, sorted(columns, rows, order).map((row) =>
      h("tr", { key: key(row) }, columns.map((column) => h("td", { key: column.name, class: column.text && "text" }, column.cell(row)))))));
  hint(place.closest(".scroll"));
}

function head(id, { name, text, by }, order) {
  const direction = order?.name === name ? (order.down ? "descending" : "ascending") : null;
  const label = by ? h("button", { type: "button", class: "sort", onclick: () => sortBy(id, name) }, name) : name;
  return h("th", { key: name, scope: "col", class: text && "text", "aria-sort": direction }, label);
}

function sortBy(id, name) {
  const order = orders.get(id);
  orders.set(id, { name, down: order?.name === name && !order.down });
  const { columns, rows, key } = shown.get(id);
  showTable(id, columns, rows, key);
}

function sorted(columns, rows, order) {
  const by = columns.find((column) => column.by && column.name === order?.name)?.by;
  if (!by) return rows;
  const values = new Map(rows.map((row) => [row, by(row)]));
  const sign = order.down ? -1 : 1;
  return [...rows].sort((one, other) => compared(values.get(one), values.get(other), sign));
}

function compared(one, other, sign) {
  const none = [one, other].map((value) => value === null || value === undefined);
  if (none[0] || none[1]) return none[0] - none[1];
  return sign * (typeof one === "string" ? one.localeCompare(other) : one - other);
}

/// Marks the sides at which a table continues beyond its card.
function hint(scroll) {
  if (!scroll) return;
  const rest = scroll.scrollWidth - scroll.clientWidth - scroll.scrollLeft;
  scroll.dataset.more = [scroll.scrollLeft > 1 && "left", rest > 1 && "right"].filter(Boolean).join(" ");
  // The keyboard scrolls what it can focus.
  if (rest > 1 || scroll.scrollLeft > 1) scroll.tabIndex = 0; else scroll.removeAttribute("tabindex");
}

const hintAll = () => document.querySelectorAll(".scroll").forEach(hint);
document.addEventListener("scroll", (event) => { if (event.target.classList?.contains("scroll")) hint(event.target); }, true);
addEventListener("resize", hintAll);
