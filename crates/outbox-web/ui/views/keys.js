// Blocked keys: the first event of the key is dead.

import { get, part, post } from "../api.js";
import { edit } from "../actions.js";
import { confirmDialog } from "../dialog.js";
import { fill, h, keyed, patch } from "../dom.js";
import { counted, number, things, when } from "../format.js";
import { eventLink, head } from "../parts.js";
import { actionButton } from "../role.js";
import { href, named } from "../route.js";
import { empty, every, load } from "../state.js";
import { attempt } from "../toast.js";

export function keys({ main, signal }) {
  const container = h("div");
  const list = h("ul.stack");
  const more = h("p.muted");
  fill(main, head("Blocked keys", "Events of a key are delivered in order. If the first event is dead, the events behind it wait."), container);
  // A key with another head gets a new card: its buttons act on the head.
  const show = keyed(list, ({ key, head: first }) => JSON.stringify([key, first.id]), blocked => card(blocked, () => refresh()));
  const fetch = () => get("keys", { limit: 100 }, signal);
  const render = found => {
    show(found.keys);
    patch(more, [found.more, found.keys.length], () => found.more && `The first ${number(found.keys.length)}; there are more.`);
    patch(container, found.keys.length > 0, () => (found.keys.length ? [list, more]
      : empty("No key is blocked.", "A key is listed here when one of its events is dead and others wait behind it.")));
  };
  const refresh = async () => render(await fetch());
  load(container, fetch, render);
  every(3_000, signal, refresh);
}

function card(blocked, refresh) {
  const { key, head: first } = blocked;
  const name = first.event_type || "(unreadable)";
  const behind = h("span.behind");
  let waiting = blocked.waiting;

  /** Asks for confirmation, runs the action, and refreshes. */
  const doing = (what, done, question) => async () => {
    const sure = await confirmDialog(question());
    if (sure && await attempt(() => post(`keys/${part(key)}/${what}`), done)) await refresh();
  };
  const replay = doing("replay", "Event replayed. The key continues once it is done.", () => ({
    title: `Replay the head of “${key}”?`, confirm: "Replay event",
    body: [`${name} is delivered again. If it succeeds, ${things(waiting, "waiting event")} follow in order. If it fails, the key is blocked again.`],
  }));
  const skip = doing("skip", "Event skipped. The key continues.", () => ({
    title: `Skip the head of “${key}”?`, confirm: "Skip event", danger: true,
    body: [`${name} counts as done and is never delivered. ${things(waiting, "waiting event")} follow.`],
  }));
  const change = async () => {
    if (await edit(first)) await refresh();
  };

  const el = h("li", null, h("article.card.key", { "aria-label": `Key ${key}` },
    h("div.key-head", null, h("h2.mono.break", null, h("a", { href: href("events", { ordering_key: key }) }, key)), behind),
    h("p", null, "Blocked by ", h("strong", null, name), " ", eventLink(named(first), first.id), ", dead-lettered ", when(first.done_at),
      first.attempts > 0 && ` after ${things(first.attempts, "failed attempt")}`, "."),
    h("pre.error-text", null, first.last_error ?? "No error recorded."),
    h("div.tools", null,
      actionButton("Replay head", { kind: "primary", run: replay }),
      actionButton("Skip head", { run: skip }),
      actionButton("Edit head…", { needs: "admin", run: change }))));

  function update(now) {
    waiting = now.waiting;
    patch(behind, waiting, () => [h("b", null, counted(waiting)), waiting.count === 1 && !waiting.more ? " event waits" : " events wait"]);
  }
  return { el, update };
}
