// Joins: many steps, one thing that follows.

import { get, part, post } from "../api.js";
import { ask } from "../dialog.js";
import { fill, h, patch } from "../dom.js";
import { number, when } from "../format.js";
import { badge, bar, card, eventLink, facts, head, status } from "../parts.js";
import { act } from "../role.js";
import { href, isName } from "../route.js";
import { empty, every, load } from "../state.js";
import { table } from "../table.js";
import { attempt } from "../toast.js";

const TABS = [["pending", "Pending"], ["completed", "Completed"], ["failed", "Failed"], ["cancelled", "Cancelled"], ["all", "All"]];
const PAGE = 50;

export function joins({ main, query, signal }) {
  const standing = query.status ?? "pending";
  const place = h("div");
  fill(main, head("Joins", "A join waits for its steps; when all are settled, what follows is written."),
    h("nav.tabs", { "aria-label": "Status" }, TABS.map(([name, title]) =>
      h("a", { href: href("joins", { status: name }), "aria-current": standing === name ? "page" : undefined }, title))),
    place);
  const list = table({
    caption: "Joins", key: join => join.id, href: join => href(["joins", join.id]),
    columns: [
      { name: "Join", wide: true, cell: join => [h("span.mono", null, join.id), join.grouping_key && h("span.sub", null, join.grouping_key)] },
      { name: "Status", tight: true, cell: join => status(join.status) },
      { name: "Steps", wide: true, cell: progress },
      { name: "Started", num: true, cell: join => when(join.created_at) },
      { name: "Changed", num: true, cell: join => when(join.updated_at) },
    ],
  });
  const nothing = () => empty(standing === "all" ? "No joins." : `No ${standing} joins.`, "A join appears when a fan-out is written.");
  const page = after => get("joins", { status: standing === "all" ? undefined : standing, after, limit: PAGE }, signal);
  growing({ place, list, name: "joins", page, nothing, signal });
}

/** A list with a button for more, kept up to date as long as it is one page. `name` is what an answer calls its rows. */
function growing({ place, list, name, page, nothing, signal }) {
  const foot = h("div.list-foot");
  let rows = [];
  const take = answer => {
    rows = rows.concat(answer[name]);
    list.update(rows);
    if (!rows.length) return fill(place, nothing());
    if (!list.el.isConnected) fill(place, list.el, foot);
    const more = async () => {
      const found = await attempt(() => page(answer.next));
      if (found) take(found);
    };
    return fill(foot, answer.next && h("button.button", { type: "button", onclick: more }, "Show more"));
  };
  load(place, () => page(), take);
  every(3_000, signal, async () => {
    if (rows.length > PAGE) return;
    const answer = await page();
    rows = [];
    take(answer);
  });
}

function progress(join) {
  const label = `${number(join.completed)} of ${number(join.expected)} completed${join.failed ? `, ${number(join.failed)} failed` : ""}`;
  return [bar([["good", join.completed], ["bad", join.failed]], join.expected, label), h("span.sub", null, label)];
}

export function join({ main, path, signal }) {
  const id = path[1];
  const place = h("div.pile");
  const steps = h("div");
  const parts = { head: h("header.view-head"), progress: h("div") };
  fill(main, place, card("Steps", steps));
  const fetch = () => get(`joins/${part(id)}`, {}, signal);
  const refresh = async () => render(await fetch());

  function render(found) {
    if (!parts.head.isConnected) fill(place, h("p.crumb", null, h("a", { href: href("joins") }, "Joins"), " /"), parts.head, card("Progress", parts.progress));
    patch(parts.head, found.status, () => [
      h("div", null, h("h1.mono.break", null, found.id), h("p", null, status(found.status))),
      h("div.tools", null, act("Cancel the join", {
        kind: "danger-quiet", off: found.status === "PENDING" ? null : "Only a pending join can be cancelled.", run: cancel,
      })),
    ]);
    patch(parts.progress, found, () => [progress(found), facts([
      ["Expected", number(found.expected)], ["Attached", number(found.attached)],
      ["What follows", found.awaited ? "is decided" : "nobody has said yet"],
      ["Group", found.grouping_key], ["Metadata", found.metadata],
      ["Started", when(found.created_at)], ["Changed", when(found.updated_at)],
    ])]);
  }
  async function cancel() {
    const sure = await ask({ title: "Cancel this join?", danger: true, confirm: "Cancel the join",
      body: ["Nothing follows it any more. Its steps are delivered all the same."] });
    if (sure && await attempt(() => post(`joins/${part(id)}/cancel`), "Cancelled.")) await refresh();
  }
  load(place, fetch, render);
  every(2_000, signal, refresh);
  stepList(steps, id, signal);
}

function stepList(place, id, signal) {
  const words = { completed: ["good", "Completed"], failed: ["bad", "Failed"] };
  const list = table({
    caption: "Steps", key: step => step.event_id,
    columns: [
      { name: "Event", wide: true, cell: step => (isName(step.event_id) ? eventLink(step.event_id) : h("span.mono", null, step.event_id)) },
      { name: "Step", cell: step => badge(...(words[step.status] ?? ["wait", "Not settled"])) },
    ],
  });
  const page = after => get(`joins/${part(id)}/steps`, { after, limit: PAGE }, signal);
  growing({ place, list, name: "steps", page, nothing: () => empty("No step is attached yet."), signal });
}
