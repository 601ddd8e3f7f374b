// Dead letters: what was given up, by type and by reason, and how to bring it back.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { filterBar, filterOf } from "../filter.js";
import { counted, number, when } from "../format.js";
import { PAGE, pager } from "../pager.js";
import { head, refreshButton } from "../parts.js";
import { act } from "../role.js";
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
    head("Dead letters", "Events that were given up. They stay until somebody replays, skips or purges them.",
      refreshButton(), act("Replay…", { kind: "primary", hint: "Replay many: counts first", run: async () => { if (await bulkReplay(filter)) await running.refresh(); } })),
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
    const nothing = () => empty("No dead letters.", "No event was given up, or none matches. This is how it should be.");
    return pager({ place: list, list: rows, fetch, nothing, changed: found => showReasons(reasons, found) });
  }
  running.whenDone(again);
  again();
}

function showTypes(place, found, filter) {
  if (!found.types.length) return fill(place, empty("None."));
  const rows = table({
    caption: "Dead events by type", key: type => type.event_type, href: type => href("dead", { ...filter, event_type: type.event_type }),
    columns: [
      { name: "Type", wide: true, cell: type => h("span.type", null, type.event_type) },
      { name: "Dead", num: true, cell: type => number(type.count) },
      { name: "Oldest", num: true, cell: type => when(type.oldest) },
    ],
  });
  rows.update(found.types);
  return fill(place, rows.el, found.more && h("p.muted", null, `Of the first ${counted(found.looked_at)}; there are more.`));
}

/** Errors that differ only by numbers and ids are one reason. Addresses stay, and what may be a status: 404 is not 503. */
export function reason(error) {
  return (error ?? "no error was noted")
    .replace(/\b(?:[0-9A-HJKMNP-TV-Z]{26}|[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f-]{27})\b/gi, "…")
    .replace(/\d+(?:\.\d+){3}(?::\d+)?|\d+/g, found => (/^[1-5]\d\d$|\./.test(found) ? found : "#"))
    .split("\n")[0].slice(0, 160);
}

function showReasons(place, events) {
  const groups = new Map();
  for (const event of events) {
    const name = reason(event.last_error);
    const group = groups.get(name) ?? { name, count: 0, types: new Set(), newest: event.done_at, example: event };
    group.count += 1;
    group.types.add(event.event_type);
    groups.set(name, group);
  }
  if (!groups.size) return fill(place, empty("None."));
  const rows = table({
    caption: "Dead events by error", key: group => group.name, href: group => href(["events", named(group.example)]),
    columns: [
      { name: "Error", wide: true, cell: group => h("span.error-line", { title: group.example.last_error }, group.name) },
      { name: "Types", num: true, cell: group => h("span", { title: [...group.types].join(", ") }, number(group.types.size)) },
      { name: "Dead", num: true, cell: group => number(group.count) },
    ],
  });
  rows.update([...groups.values()].sort((a, b) => b.count - a.count));
  return fill(place, rows.el, h("p.muted", null, `Of the ${number(events.length)} shown below. A row opens an example.`));
}
