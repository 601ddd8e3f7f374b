// A list of events that grows page by page. Where few match, a page may come back short: then it searches on until told to stop.

import { fill, h, say } from "./dom.js";
import { number, things } from "./format.js";
import { load } from "./state.js";
import { attempt } from "./toast.js";

/** How many events a page has. */
export const PAGE = 50;

/** `fetch(cursor)` gives `{ events, next }`; `nothing()` is shown if there is none; `changed(rows)` hears of all of them. */
export function pager({ place, list, fetch, nothing, changed = () => {} }) {
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
    if (!rows.length && !next) return fill(place, nothing());
    if (!foot.isConnected) fill(place, list.el, foot);
    list.el.hidden = rows.length === 0;
    button.hidden = !next;
    say(button, going ? "Stop" : short ? "Search on" : "Show more");
    return say(note, told());
  }

  function told() {
    if (!next) return `That is all: ${things(rows.length, "event")}.`;
    if (going && short) return `Searching… ${number(rows.length)} found, ${things(parts, "part")} of the table searched.`;
    return short ? `Searched a part of the table: ${number(rows.length)} found so far. There may be more further on.` : `${number(rows.length)} shown.`;
  }

  function stop() {
    going = false;
    show();
  }

  /** One more page; of a search, as many parts as it takes to fill one. */
  async function more() {
    const wanted = rows.length + PAGE;
    going = true;
    show();
    await attempt(async () => {
      do take(await fetch(next)); while (going && next && rows.length < wanted);
    });
    stop();
  }

  return load(place, () => fetch(), take);
}
