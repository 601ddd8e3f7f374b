// Joins: steps, and a follow-up when all are settled.

import { get, part, post } from "../api.js";
import { confirmDialog } from "../dialog.js";
import { fill, h, patch } from "../dom.js";
import { number, when } from "../format.js";
import { badge, bar, card, eventLink, facts, head, status } from "../parts.js";
import { actionButton } from "../role.js";
import { href, isName } from "../route.js";
import { empty, every, load } from "../state.js";
import { table } from "../table.js";
import { attempt } from "../toast.js";

const TABS = [["pending", "Pending"], ["completed", "Completed"], ["failed", "Failed"], ["cancelled", "Cancelled"], ["all", "All"]];
const PAGE = 50;

export function joins({ main, query, signal }) {
  const tab = query.status ?? "pending";
  const container = h("div");
  fill(main, head("Joins", "A join waits for its steps; when all are settled, its follow-up is written."),
    h("nav.tabs", { "aria-label": "Status" }, TABS.map(([name, title]) =>
      h("a", { href: href("joins", { status: name }), "aria-current": tab === name ? "page" : undefined }, title))),
    container);
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
  const nothing = () => empty(tab === "all" ? "No joins." : `No ${tab} joins.`, "Joins are listed here once a fan-out is written.");
  const page = after => get("joins", { status: tab === "all" ? undefined : tab, after, limit: PAGE }, signal);
  growing({ container, list, name: "joins", page, nothing, signal });
}

/**
 * A list with a button for more rows; updated automatically while it has one page. `name` is the
 * field of the rows in a response.
 */
function growing({ container, list, name, page, nothing, signal }) {
  const foot = h("div.list-foot");
  let rows = [];
  const take = answer => {
    rows = rows.concat(answer[name]);
    list.update(rows);
    if (!rows.length) return fill(container, nothing());
    if (!list.el.isConnected) fill(container, list.el, foot);
    const more = async () => {
      const found = await attempt(() => page(answer.next));
      if (found) take(found);
    };
    return fill(foot, answer.next && h("button.button", { type: "button", onclick: more }, "Show more"));
  };
  load(container, () => page(), take);
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
  const container = h("div.pile");
  const steps = h("div");
  const parts = { head: h("header.view-head"), progress: h("div") };
  fill(main, container, card("Steps", steps));
  const fetch = () => get(`joins/${part(id)}`, {}, signal);
  const refresh = async () => render(await fetch());

  function render(found) {
    if (!parts.head.isConnected) fill(container, h("p.crumb", null, h("a", { href: href("joins") }, "Joins"), " /"), parts.head, card("Progress", parts.progress));
    patch(parts.head, found.status, () => [
      h("div", null, h("h1.mono.break", null, found.id), h("p", null, status(found.status))),
      h("div.tools", null, actionButton("Cancel join", {
        kind: "danger-quiet", off: found.status === "PENDING" ? null : "Only a pending join can be cancelled.", run: cancel,
      })),
    ]);
    patch(parts.progress, found, () => [progress(found), facts([
      ["Expected", number(found.expected)], ["Attached", number(found.attached)],
      ["Follow-up", found.awaited ? "set" : "not set"],
      ["Group", found.grouping_key], ["Metadata", found.metadata],
      ["Started", when(found.created_at)], ["Changed", when(found.updated_at)],
    ])]);
  }
  async function cancel() {
    const sure = await confirmDialog({ title: "Cancel this join?", danger: true, confirm: "Cancel join",
      body: ["No follow-up will be written. The steps are still delivered."] });
    if (sure && await attempt(() => post(`joins/${part(id)}/cancel`), "Join cancelled.")) await refresh();
  }
  load(container, fetch, render);
  every(2_000, signal, refresh);
  stepList(steps, id, signal);
}

function stepList(container, id, signal) {
  const words = { completed: ["good", "Completed"], failed: ["bad", "Failed"] };
  const list = table({
    caption: "Steps", key: step => step.event_id,
    columns: [
      { name: "Event", wide: true, cell: step => (isName(step.event_id) ? eventLink(step.event_id) : h("span.mono", null, step.event_id)) },
      { name: "Step", cell: step => badge(...(words[step.status] ?? ["wait", "Not settled"])) },
    ],
  });
  const page = after => get(`joins/${part(id)}/steps`, { after, limit: PAGE }, signal);
  growing({ container, list, name: "steps", page, nothing: () => empty("No step is attached yet."), signal });
}
