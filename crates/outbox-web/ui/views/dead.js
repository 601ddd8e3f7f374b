// Dead letters, by type and by error, and bulk replay.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { filterBar, filterOf } from "../filter.js";
import { counted, number, things, when } from "../format.js";
import { PAGE, pager } from "../pager.js";
import { head, refreshButton } from "../parts.js";
import { actionButton } from "../role.js";
import { href, named } from "../route.js";
import { empty, load } from "../state.js";
import { table } from "../table.js";
import { bulkReplay } from "./bulk.js";
import { columns } from "./events.js";
import { jobs } from "./jobs.js";

export function dead({ main, query, signal }) {
  const filter = filterOf(query);
  const running = jobs(signal);
  const types = h("div");
  const reasons = h("div");
  const list = h("div");
  const again = () => Promise.all([loadTypes(), loadList()]);

  fill(main,
    head("Dead letters", "Dead-lettered events. They are kept until they are replayed, skipped or purged.",
      refreshButton(), actionButton("Replay…", { kind: "primary", hint: "Replay in bulk, after a count", run: async () => { if (await bulkReplay(filter)) await running.refresh(); } })),
    running.el, filterBar("dead", query),
    h("div.columns.even", null,
      h("section.card", null, h("h2", null, "By type"), types),
      h("section.card", null, h("h2", null, "By error"), reasons)),
    h("section.card", null, h("h2", null, "Newest first"), list));

  function loadTypes() {
    return load(types, () => get("dead/types", {}, signal), found => showTypes(types, found, filter));
  }
  function loadList() {
    const rows = table({ caption: "Dead events", columns: columns("dead"), key: event => event.id, href: event => href(["events", named(event)]) });
    const fetch = cursor => get("events", { status: "dead", ...filter, order: "newest", limit: PAGE, cursor }, signal);
    const nothing = () => empty("No dead letters.", "No event has been dead-lettered, or none matches.");
    return pager({ container: list, list: rows, fetch, nothing, changed: found => showReasons(reasons, found) });
  }
  running.whenDone(again);
  again();
}

function showTypes(container, found, filter) {
  if (!found.types.length) return fill(container, empty("None."));
  const rows = table({
    caption: "Dead events by type", key: type => type.event_type, href: type => href("dead", { ...filter, event_type: type.event_type }),
    columns: [
      { name: "Type", wide: true, cell: type => h("span.type", null, type.event_type) },
      { name: "Dead", num: true, cell: type => number(type.count) },
      { name: "Oldest", num: true, cell: type => when(type.oldest) },
    ],
  });
  rows.update(found.types);
  return fill(container, rows.el, found.more && h("p.muted", null, `Counted over the first ${counted(found.scanned)}; there are more.`));
}

/**
 * Groups errors that differ only in numbers and ids. Keeps addresses, and numbers that may be a
 * status: 404 is not 503.
 */
export function reason(error) {
  return (error ?? "no error recorded")
    .replace(/\b(?:[0-9A-HJKMNP-TV-Z]{26}|[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f-]{27})\b/gi, "…")
    .replace(/\d+(?:\.\d+){3}(?::\d+)?|\d+/g, found => (/^[1-5]\d\d$|\./.test(found) ? found : "#"))
    .split("\n")[0].slice(0, 160);
}

function showReasons(container, events) {
  const groups = new Map();
  for (const event of events) {
    const name = reason(event.last_error);
    const group = groups.get(name) ?? { name, count: 0, types: new Set(), newest: event.done_at, example: event };
    group.count += 1;
    group.types.add(event.event_type);
    groups.set(name, group);
  }
  if (!groups.size) return fill(container, empty("None."));
  const rows = table({
    caption: "Dead events by error", key: group => group.name, href: group => href(["events", named(group.example)]),
    columns: [
      { name: "Error", wide: true, cell: group => h("span.error-line", { title: group.example.last_error }, group.name) },
      { name: "Types", num: true, cell: group => h("span", { title: [...group.types].join(", ") }, number(group.types.size)) },
      { name: "Dead", num: true, cell: group => number(group.count) },
    ],
  });
  rows.update([...groups.values()].sort((a, b) => b.count - a.count));
  return fill(container, rows.el, h("p.muted", null, `Counted over the ${things(events.length, "event")} below. A row opens an example.`));
}
