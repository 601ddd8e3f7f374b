// Who changed what, the newest first.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { number, when } from "../format.js";
import { head, refreshButton } from "../parts.js";
import { empty, load } from "../state.js";
import { table } from "../table.js";
import { attempt } from "../toast.js";

const PAGE = 50;

export function audit({ main, signal }) {
  const place = h("div");
  fill(main, head("Audit", "Every change is written down before it is made, and so is every look at a payload.", refreshButton()), place);
  const list = table({ caption: "Audit", key: entry => entry.id, columns: [
    { name: "When", cell: entry => when(entry.at), tight: true },
    { name: "Who", cell: entry => [entry.actor, entry.via && h("span.sub", null, `by ${entry.via}`)] },
    { name: "What", cell: entry => h("strong", null, entry.action) },
    { name: "To", wide: true, cell: entry => h("span.mono.break", null, entry.target ?? "–") },
    { name: "Details", wide: true, cell: entry => entry.details ? h("span.break", null, entry.details) : "–" },
    { name: "Events", num: true, cell: entry => number(entry.count) },
    { name: "Outcome", cell: entry => entry.outcome ?? "not known" },
  ] });
  const foot = h("div.list-foot");
  let rows = [];
  const page = before => get("audit", { before, limit: PAGE }, signal);
  const take = ({ entries, next }) => {
    rows = rows.concat(entries);
    list.update(rows);
    if (!rows.length) return fill(place, empty("Nobody has changed anything yet."));
    fill(place, list.el, foot);
    return fill(foot, next ? h("button.button", { type: "button", onclick: async () => {
      const answer = await attempt(() => page(next));
      if (answer) take(answer);
    } }, "Show more") : h("p.muted", null, "That is all."));
  };
  load(place, () => page(), take);
}
