// Keys that stand still, because their first event is dead and order matters.

import { get, part, post } from "../api.js";
import { edit } from "../actions.js";
import { ask } from "../dialog.js";
import { fill, h, keyed, patch } from "../dom.js";
import { counted, number, things, when } from "../format.js";
import { eventLink, head } from "../parts.js";
import { act } from "../role.js";
import { href, named } from "../route.js";
import { empty, every, load } from "../state.js";
import { attempt } from "../toast.js";

export function keys({ main, signal }) {
  const place = h("div");
  const list = h("ul.stack");
  const more = h("p.muted");
  fill(main, head("Blocked keys", "The events of a key are delivered in order. Where the first one is dead, the others wait behind it."), place);
  // Another head is another card: its buttons act on that event.
  const show = keyed(list, ({ key, head: first }) => JSON.stringify([key, first.id]), blocked => card(blocked, () => refresh()));
  const fetch = () => get("keys", { limit: 100 }, signal);
  const render = found => {
    show(found.keys);
    patch(more, [found.more, found.keys.length], () => found.more && `The first ${number(found.keys.length)}; there are more.`);
    patch(place, found.keys.length > 0, () => (found.keys.length ? [list, more]
      : empty("No key is blocked.", "A key shows up here when an event of it dies and others wait behind it.")));
  };
  const refresh = async () => render(await fetch());
  load(place, fetch, render);
  every(3_000, signal, refresh);
}

function card(blocked, refresh) {
  const { key, head: first } = blocked;
  const name = first.event_type || "(unreadable)";
  const behind = h("span.behind");
  let waiting = blocked.behind;

  /** Asks, does it, and looks again. */
  const doing = (what, done, question) => async () => {
    const sure = await ask(question());
    if (sure && await attempt(() => post(`keys/${part(key)}/${what}`), done)) await refresh();
  };
  const replay = doing("replay", "Replayed: the key goes on once it is done.", () => ({
    title: `Replay the head of “${key}”?`, confirm: "Replay it",
    body: [`${name} is delivered again. If it is done this time, ${things(waiting, "waiting event")} follow in order. If it fails, the key is blocked again.`],
  }));
  const skip = doing("skip", "Skipped: the key goes on.", () => ({
    title: `Skip the head of “${key}”?`, confirm: "Skip it", danger: true,
    body: [`${name} counts as done and is never delivered. ${things(waiting, "waiting event")} go on without it.`],
  }));
  const change = async () => {
    if (await edit(first)) await refresh();
  };

  const el = h("li", null, h("article.card.key", { "aria-label": `Key ${key}` },
    h("div.key-head", null, h("h2.mono.break", null, h("a", { href: href("events", { ordering_key: key }) }, key)), behind),
    h("p", null, "Held by ", h("strong", null, name), " ", eventLink(named(first), first.id), ", dead since ", when(first.done_at),
      first.attempts > 0 && ` after ${things(first.attempts, "failed attempt")}`, "."),
    h("pre.error-text", null, first.last_error ?? "No error was noted."),
    h("div.tools", null,
      act("Replay the head", { kind: "primary", run: replay }),
      act("Skip the head", { run: skip }),
      act("Edit the head…", { needs: "admin", run: change }))));

  function update(now) {
    waiting = now.behind;
    patch(behind, waiting, () => [h("b", null, counted(waiting)), waiting.count === 1 && !waiting.more ? " event waits" : " events wait"]);
  }
  return { el, update };
}
