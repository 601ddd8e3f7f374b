// Events, page by page: pending, done, dead.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { filterBar, filterOf } from "../filter.js";
import { aggregate, bytes, number, short, when } from "../format.js";
import { head, refreshButton, status } from "../parts.js";
import { href, named } from "../route.js";
import { PAGE, pager } from "../pager.js";
import { empty } from "../state.js";
import { table } from "../table.js";

const TABS = [["pending", "Pending"], ["retry", "Retrying"], ["done", "Done"], ["dead", "Dead"]];

const TIME = {
  pending: { name: "Due", cell: event => (event.locked_by ? h("span", { title: event.locked_by }, "in hand") : when(event.available_at)) },
  retry: { name: "Next attempt", cell: event => when(event.available_at) },
  done: { name: "Done", cell: event => when(event.done_at) },
  dead: { name: "Died", cell: event => when(event.done_at) },
};

/** The columns of a list of events, for this shelf. */
export function columns(shelf) {
  return [
    { name: "Event", cell: event => [h("span.type", null, event.event_type || "(unreadable)"), h("span.mono.sub", null, event.id)], wide: true },
    shelf === "pending" && { name: "Status", cell: event => status(event.status), tight: true },
    { name: "Aggregate", cell: event => cut(aggregate(event)) },
    { name: "Key", cell: event => cut(event.ordering_key) },
    { name: "Attempts", num: true, cell: event => number(event.attempts) },
    { name: "Stored", num: true, cell: event => when(event.created_at) },
    { num: true, ...TIME[shelf] },
    shelf === "done"
      ? { name: "Size", num: true, cell: event => bytes(event.payload_bytes) }
      : { name: "Last error", wide: true, cell: event => (event.last_error ? h("span.error-line", { title: event.last_error }, short(event.last_error, 140)) : "–") },
  ].filter(Boolean);
}

function cut(text) {
  return text ? h("span.cut", { title: text }, text) : "–";
}

export function events({ main, query, signal }) {
  const shelf = TABS.some(([name]) => name === query.status) ? query.status : "pending";
  const filter = filterOf(query);
  const newest = (query.order ?? (shelf === "pending" || shelf === "retry" ? "oldest" : "newest")) === "newest";
  const place = h("div");
  fill(main,
    head("Events", "Page by page, in the order of an index: nothing is counted or sorted.", refreshButton()),
    h("nav.tabs", { "aria-label": "Shelf" }, TABS.map(([name, title]) =>
      h("a", { href: href("events", { ...query, status: name, order: undefined }), "aria-current": name === shelf ? "page" : undefined }, title)),
      h("a.order", { href: href("events", { ...query, order: newest ? "oldest" : "newest" }) }, newest ? "newest first ↓" : "oldest first ↑")),
    filterBar("events", query), place);

  const list = table({ caption: `${shelf} events`, columns: columns(shelf), key: event => event.id, href: event => href(["events", named(event)]) });
  const fetch = cursor => get("events", { status: shelf, ...filter, order: newest ? "newest" : "oldest", limit: PAGE, cursor }, signal);
  pager({ place, list, fetch, nothing: () => nothing(shelf, filter) });
}

function nothing(shelf, filter) {
  if (Object.keys(filter).length) return empty("No event matches.", "Remove a filter above, or look on another shelf.");
  return {
    pending: () => empty("Nothing is waiting.", "Everything that was written has been settled."),
    retry: () => empty("Nothing is being retried.", "No pending event has failed so far."),
    done: () => empty("No delivered events are kept.", "Either none was delivered yet, or a purge has removed them."),
    dead: () => empty("No dead letters.", "No event was given up. This is how it should be."),
  }[shelf]();
}

