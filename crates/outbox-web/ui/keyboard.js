// Keyboard shortcuts: `/` filter, `g` and a letter for a view, `j` and `k` for rows, `r` reload,
// `?` help.

import { h } from "./dom.js";
import { show } from "./dialog.js";
import { again, go } from "./route.js";

const VIEWS = {
  o: ["overview", "Overview"],
  e: ["events", "Events"],
  d: ["dead", "Dead letters"],
  k: ["keys", "Blocked keys"],
  p: ["publishers", "Publishers"],
  j: ["joins", "Joins"],
  b: ["databases", "Databases"],
  n: ["nodes", "Nodes"],
  a: ["audit", "Audit"],
};

let pressedG = -Infinity;

/** Handles shortcuts for the lifetime of the page. */
export function listen() {
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input, textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (press(event.key)) event.preventDefault();
  });
}

function press(key) {
  const view = performance.now() - pressedG < 1_500 && VIEWS[key];
  pressedG = -Infinity;
  if (view) {
    go(view[0]);
    return true;
  }
  switch (key) {
    case "g": pressedG = performance.now(); return true;
    case "j": return move(1);
    case "k": return move(-1);
    case "/": return focus(document.querySelector("[data-filter]"));
    case "?": help(); return true;
    case "r": again(); return true;
    case "Escape": document.body.classList.remove("menu-open"); return false;
    default: return false;
  }
}

function focus(el) {
  el?.focus();
  el?.select?.();
  return Boolean(el);
}

/** Moves the focus to the next or previous row; to the first or last row if no row has it. */
function move(step) {
  const rows = [...document.querySelectorAll("tr[data-row]")].filter(row => row.offsetParent);
  if (!rows.length) return false;
  const here = rows.findIndex(row => row.contains(document.activeElement));
  const next = rows[here < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(here + step, 0), rows.length - 1)];
  next.scrollIntoView({ block: "nearest" });
  return focus(next.querySelector("a"));
}

/** Shows the shortcuts. */
export function help() {
  const line = (keys, text) => [h("dt", null, keys.map((key, i) => [i > 0 && " ", h("kbd", null, key)])), h("dd", null, text)];
  show("Keyboard shortcuts", h("dl.keys", null,
    line(["/"], "Focus the filter"),
    line(["j"], "Next row"), line(["k"], "Previous row"), line(["Enter"], "Open the row"),
    Object.entries(VIEWS).map(([key, [, name]]) => line(["g", key], name)),
    line(["r"], "Reload"), line(["?"], "This list"), line(["Esc"], "Close")));
}
