// A table with sort buttons in its header; it shows only the first rows until the user requests all rows.

import { count, h, name } from "./dom.js";

const ORDER = new Intl.Collator("en", { numeric: true });

/** Compare names in natural order: group-9 comes before group-10. */
export const natural = (a, b) => ORDER.compare(String(a), String(b));

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : natural(a, b);
}

const FOCUSABLE = "a, button, summary, [tabindex]";

/** Remember the focused element of a row; return a function that focuses the same element again. */
function keepFocus(body) {
  const focused = document.activeElement;
  const row = body.contains(focused) ? focused.closest("tr") : null;
  if (!row) return () => {};
  const place = [...row.querySelectorAll(FOCUSABLE)].indexOf(focused);
  return () => {
    if (document.activeElement === focused) return;
    const again = [...body.children].find((each) => each.dataset.key === row.dataset.key);
    again?.querySelectorAll(FOCUSABLE)[place]?.focus({ preventScroll: true });
  };
}

/**
 * Create a table.
 *
 * A column is `{label, value(row), cell(row, value), numeric}`; rows are sorted by `value`, and `cell` returns
 * the content of the cell. Without `cell`, a text is shown as a name, and a number with its separators.
 *
 * @param key returns the key of a row, which stays the same when the row's values change.
 * @param names the column with the row's name.
 * @param stack whether rows become cards in a narrow window.
 * @param sort `{column, descending}`: the initial order; by default the order of the rows.
 */
export function table({ caption, columns, key, sort = null, limit = 50, empty = "Nothing to show.", names = 0, stack = false }) {
  let rows = [];
  let all = false;
  let pressed = false;
  let changed = false;
  const body = h("tbody");
  const known = new Map();
  const more = h("button", { type: "button", class: "more", onclick: () => { all = true; show(); } });
  const heads = columns.map((column, index) =>
    h("th", { scope: "col", class: column.numeric ? "number" : null },
      h("button", { type: "button", onclick: () => sortBy(index) }, column.label)));
  const element = h("div", { class: stack ? "table stack" : "table" },
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, ...heads)), body)),
    more);

  // A click on a row that is replaced between press and release would have no effect.
  body.addEventListener("pointerdown", () => {
    pressed = true;
    const over = new AbortController();
    const release = () => {
      over.abort();
      // After the click, which follows the release.
      setTimeout(() => {
        pressed = false;
        if (changed) show();
      });
    };
    for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, release, { signal: over.signal });
  });

  function sortBy(index) {
    const again = sort?.column === index;
    sort = { column: index, descending: again ? !sort.descending : Boolean(columns[index].numeric) };
    show();
  }

  function sorted() {
    if (!sort) return rows;
    const { value } = columns[sort.column];
    const sign = sort.descending ? -1 : 1;
    const keyed = rows.map((row) => [value(row), row]);
    // Unknown values come last in both sort orders.
    const unknown = ([found]) => found === null || found === undefined;
    const ordered = keyed.filter((pair) => !unknown(pair)).sort(([a], [b]) => sign * compare(a, b));
    return [...ordered, ...keyed.filter(unknown)].map(([, row]) => row);
  }

  function line(row) {
    const values = columns.map((column) => column.value(row));
    const id = key(row);
    const signature = JSON.stringify([values, row.version]);
    const before = known.get(id);
    if (before?.signature === signature) return before.element;
    const cells = columns.map((column, index) => {
      const value = values[index];
      const shown = column.cell ? column.cell(row, value) : typeof value === "string" ? name(value) : count(value);
      const attributes = { class: column.numeric ? "number" : null };
      return index === names
        ? h("th", { scope: "row", ...attributes }, ...[shown].flat())
        : h("td", { ...attributes, "data-label": column.label }, ...[shown].flat());
    });
    const made = h("tr", { "data-key": id }, ...cells);
    known.set(id, { signature, element: made });
    return made;
  }

  function show() {
    changed = pressed;
    if (pressed) return;
    heads.forEach((head, index) => {
      if (sort?.column === index) head.setAttribute("aria-sort", sort.descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const lines = visible().map(line);
    const same = lines.length === body.children.length && lines.every((each, index) => each === body.children[index]);
    const giveBack = keepFocus(body);
    if (!same) body.replaceChildren(...lines);
    giveBack();
    if (!lines.length) {
      body.replaceChildren(h("tr", {}, h("td", { colspan: columns.length, class: "quiet" }, ...[empty].flat())));
    }
    more.hidden = all || rows.length <= limit;
    more.textContent = `Show all ${count(rows.length)}`;
  }

  const visible = () => (all ? sorted() : sorted().slice(0, limit));

  return {
    element,
    /** Show these rows in the selected order; without rows show `nothing`. */
    update(newRows, nothing = empty) {
      rows = newRows;
      empty = nothing;
      show();
    },
    visible,
  };
}
