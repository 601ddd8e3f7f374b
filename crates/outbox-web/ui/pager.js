// A list of events that loads page by page. If few events match, a page may be short: the search
// then continues until it is stopped.

import { fill, h, setText } from "./dom.js";
import { number, things } from "./format.js";
import { load } from "./state.js";
import { attempt } from "./toast.js";

/** Number of events per page. */
export const PAGE = 50;

/**
 * `fetch(cursor)` returns `{ events, next }`; `nothing()` is shown for an empty list;
 * `changed(rows)` is called with all rows.
 */
export function pager({ container, list, fetch, nothing, changed = () => {} }) {
  const note = h("p.muted", { role: "status" });
  const button = h("button.button", { type: "button", onclick: () => (going ? stop() : more()) });
  const foot = h("div.list-foot", null, note, button);
  let rows = [];
  let next = null;
  let short = false;
  let parts = 0;
  let going = false;

  function take(answer) {
    parts += 1;
    short = answer.events.length < PAGE;
    rows = rows.concat(answer.events);
    next = answer.next;
    list.update(rows);
    changed(rows);
    show();
  }

  function show() {
    if (!rows.length && !next) return fill(container, nothing());
    if (!foot.isConnected) fill(container, list.el, foot);
    list.el.hidden = rows.length === 0;
    button.hidden = !next;
    setText(button, going ? "Stop" : short ? "Continue search" : "Show more");
    return setText(note, progress());
  }

  function progress() {
    if (!next) return `End of list: ${things(rows.length, "event")}.`;
    if (going && short) return `Searching… ${number(rows.length)} found, ${things(parts, "part")} of the table searched.`;
    return short ? `Part of the table searched: ${number(rows.length)} found so far. There may be more.` : `${number(rows.length)} shown.`;
  }

  function stop() {
    going = false;
    show();
  }

  /** Loads one more page; while few events match, as many requests as it takes to fill a page. */
  async function more() {
    const wanted = rows.length + PAGE;
    going = true;
    show();
    await attempt(async () => {
      do take(await fetch(next)); while (going && next && rows.length < wanted);
    });
    stop();
  }

  return load(container, () => fetch(), take);
}
