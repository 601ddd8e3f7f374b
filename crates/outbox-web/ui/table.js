// Tables that keep their rows: an update changes only cells that differ, so focus and selection
// stay.

import { flat, h } from "./dom.js";

/**
 * `columns`: `{ name, cell(row, latest), num, wide, tight, keep(row) }`; `key(row)` identifies a
 * row; `href(row)` makes rows links. A cell with `keep` is replaced only when that value changes:
 * for buttons, which get the current row by `latest()`. ARIA roles are explicit, since narrow
 * screens show rows as cards and would lose the implicit roles.
 */
export function table({ caption, columns, key, href, rowClass }) {
  const head = columns.map(column =>
    h("th", { scope: "col", role: "columnheader", class: classes(column) }, column.name));
  const body = h("tbody", { role: "rowgroup" });
  const el = h("div.table-box", { role: "region", "aria-label": caption, tabindex: "-1" },
    h("table", { role: "table" },
      h("caption.sr", null, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
      body));
  const rows = new Map();

  function line(row) {
    const tr = h("tr", { role: "row" }, columns.map(column =>
      h("td", { role: "cell", class: classes(column), "data-label": column.name })));
    if (href) {
      tr.dataset.row = "";
      tr.addEventListener("click", event => {
        const elsewhere = event.target.closest("a, button, input, label, summary") || String(getSelection());
        if (!elsewhere) tr.querySelector("a")?.click();
      });
    }
    return { tr, cells: [...tr.children], kept: [] };
  }

  function update(list) {
    const seen = new Set();
    let before = null;
    for (const row of list) {
      const id = key(row);
      if (seen.has(id)) continue;
      seen.add(id);
      if (!rows.has(id)) rows.set(id, line(row));
      const known = rows.get(id);
      const { tr, cells, kept } = known;
      known.row = row;
      tr.className = rowClass?.(row) ?? "";
      columns.forEach((column, i) => {
        const sign = column.keep?.(row);
        if (column.keep && kept[i] === sign) return;
        kept[i] = sign;
        put(cells[i], cell(column, row, i, () => known.row));
      });
      const successor = before ? before.nextSibling : body.firstChild;
      if (successor !== tr) body.insertBefore(tr, successor);
      before = tr;
    }
    for (const [id, { tr }] of rows) {
      if (seen.has(id)) continue;
      tr.remove();
      rows.delete(id);
    }
  }

  function cell(column, row, i, latest) {
    const content = column.cell(row, latest);
    if (i > 0 || !href) return content;
    return h("a.row-link", { href: href(row) }, content);
  }

  return { el, update };
}

/** Replaces the content of a cell only if it differs. */
function put(td, content) {
  const next = flat([content]);
  const same = td.childNodes.length === next.length && next.every((child, i) => {
    const old = td.childNodes[i];
    return typeof child === "string" ? old.nodeType === Node.TEXT_NODE && old.data === child : old.isEqualNode(child);
  });
  if (same) return;
  // Empty cells are hidden on narrow screens.
  td.classList.toggle("none", next.length === 0 || (next.length === 1 && next[0] === "–"));
  const focused = [...td.querySelectorAll("a, button")].indexOf(document.activeElement);
  td.replaceChildren(...next);
  if (focused >= 0) td.querySelectorAll("a, button")[focused]?.focus();
}

function classes({ num, wide, tight }) {
  return [num && "num", wide && "wide", tight && "tight"].filter(Boolean).join(" ");
}
