// Audit entries, newest first.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { number, when } from "../format.js";
import { head, refreshButton } from "../parts.js";
import { empty, load } from "../state.js";
import { table } from "../table.js";
import { attempt } from "../toast.js";

const PAGE = 50;

export function audit({ main, signal }) {
  const container = h("div");
  fill(main, head("Audit", "Every change and every read of a payload has an audit entry, stored before the action.", refreshButton()), container);
  const list = table({ caption: "Audit", key: entry => entry.id, columns: [
    { name: "Time", cell: entry => when(entry.at), tight: true },
    { name: "Actor", cell: entry => [entry.actor, entry.via && h("span.sub", null, `via ${entry.via}`)] },
    { name: "Action", cell: entry => h("strong", null, entry.action) },
    { name: "Target", wide: true, cell: entry => h("span.mono.break", null, entry.target ?? "–") },
    { name: "Details", wide: true, cell: entry => entry.details ? h("span.break", null, entry.details) : "–" },
    { name: "Count", num: true, cell: entry => number(entry.count) },
    { name: "Outcome", cell: entry => entry.outcome ?? "unknown" },
  ] });
  const foot = h("div.list-foot");
  let rows = [];
  const page = before => get("audit", { before, limit: PAGE }, signal);
  const take = ({ entries, next }) => {
    rows = rows.concat(entries);
    list.update(rows);
    if (!rows.length) return fill(container, empty("No audit entries."));
    fill(container, list.el, foot);
    return fill(foot, next ? h("button.button", { type: "button", onclick: async () => {
      const answer = await attempt(() => page(next));
      if (answer) take(answer);
    } }, "Show more") : h("p.muted", null, "End of list."));
  };
  load(container, () => page(), take);
}
