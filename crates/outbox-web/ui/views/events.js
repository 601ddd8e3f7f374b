// Events by status: pending, retrying, done, dead.

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
  pending: { name: "Due", cell: event => (event.locked_by ? h("span", { title: event.locked_by }, "claimed") : when(event.available_at)) },
  retry: { name: "Next attempt", cell: event => when(event.available_at) },
  done: { name: "Done", cell: event => when(event.done_at) },
  dead: { name: "Dead-lettered", cell: event => when(event.done_at) },
};

/** Columns of a list of events with this status. */
export function columns(tab) {
  return [
    { name: "Event", cell: event => [h("span.type", null, event.event_type || "(unreadable)"), h("span.mono.sub", null, event.id)], wide: true },
    tab === "pending" && { name: "Status", cell: event => status(event.status), tight: true },
    { name: "Aggregate", cell: event => cut(aggregate(event)) },
    { name: "Key", cell: event => cut(event.ordering_key) },
    { name: "Attempts", num: true, cell: event => number(event.attempts) },
    { name: "Stored", num: true, cell: event => when(event.created_at) },
    { num: true, ...TIME[tab] },
    tab === "done"
      ? { name: "Size", num: true, cell: event => bytes(event.payload_bytes) }
      : { name: "Last error", wide: true, cell: event => (event.last_error ? h("span.error-line", { title: event.last_error }, short(event.last_error, 140)) : "–") },
  ].filter(Boolean);
}

function cut(text) {
  return text ? h("span.cut", { title: text }, text) : "–";
}

export function events({ main, query, signal }) {
  const tab = TABS.some(([name]) => name === query.status) ? query.status : "pending";
  const filter = filterOf(query);
  const newest = (query.order ?? (tab === "pending" || tab === "retry" ? "oldest" : "newest")) === "newest";
  const container = h("div");
  fill(main,
    head("Events", "Paginated in index order: nothing is counted or sorted.", refreshButton()),
    h("nav.tabs", { "aria-label": "Status" }, TABS.map(([name, title]) =>
      h("a", { href: href("events", { ...query, status: name, order: undefined }), "aria-current": name === tab ? "page" : undefined }, title)),
      h("a.order", { href: href("events", { ...query, order: newest ? "oldest" : "newest" }) }, newest ? "newest first ↓" : "oldest first ↑")),
    filterBar("events", query), container);

  const list = table({ caption: `${tab} events`, columns: columns(tab), key: event => event.id, href: event => href(["events", named(event)]) });
  const fetch = cursor => get("events", { status: tab, ...filter, order: newest ? "newest" : "oldest", limit: PAGE, cursor }, signal);
  pager({ container, list, fetch, nothing: () => nothing(tab, filter) });
}

function nothing(tab, filter) {
  if (Object.keys(filter).length) return empty("No event matches.", "Remove a filter above, or choose another status.");
  return {
    pending: () => empty("No pending events.", "All written events are settled."),
    retry: () => empty("No events to retry.", "No pending event has failed."),
    done: () => empty("No done events.", "No event has been delivered yet, or done events have been purged."),
    dead: () => empty("No dead letters.", "No event has been dead-lettered."),
  }[tab]();
}

