// Keys that stand still, because their first event is dead and order matters.

import { get, part, post } from "../api.js";
import { edit } from "../actions.js";
import { ask } from "../dialog.js";
import { fill, h } from "../dom.js";
import { counted, number, things, when } from "../format.js";
import { eventLink, head } from "../parts.js";
import { act } from "../role.js";
import { href } from "../route.js";
import { empty, every, load } from "../state.js";
import { attempt } from "../toast.js";

export function keys({ main, signal }) {
  const place = h("div");
  fill(main, head("Blocked keys", "The events of a key are delivered in order. Where the first one is dead, the others wait behind it."), place);
  const fetch = () => get("keys", { limit: 100 }, signal);
  const render = found => {
    if (!found.keys.length) return fill(place, empty("No key is blocked.", "A key shows up here when an event of it dies and others wait behind it."));
    return fill(place, h("ul.stack", null, found.keys.map(key => h("li", null, one(key, refresh)))),
      found.more && h("p.muted", null, `The first ${number(found.keys.length)}; there are more.`));
  };
  let last = null;
  const refresh = async () => {
    const found = await fetch();
    const text = JSON.stringify(found);
    if (text !== last) render(found);
    last = text;
  };
  load(place, fetch, render);
  every(3_000, signal, refresh);
}

function one({ key, head: first, behind }, refresh) {
  const change = (what, done) => attempt(() => post(`keys/${part(key)}/${what}`), done);
  const then = run => async () => {
    if (await run()) await refresh();
  };
  return h("article.card.key", { "aria-label": `Key ${key}`, "data-key": key },
    h("div.key-head", null,
      h("h2.mono.break", null, h("a", { href: href("events", { ordering_key: key }) }, key)),
      h("span.behind", null, h("b", null, counted(behind)), behind.count === 1 && !behind.more ? " event waits" : " events wait")),
    h("p", null, "Held by ", h("strong", null, first.event_type || "(unreadable)"), " ", eventLink(first.id), ", dead since ", when(first.done_at),
      ` after ${things(first.attempts, "failed attempt")}.`),
    h("pre.error-text", null, first.last_error ?? "No error was noted."),
    h("div.tools", null,
      act("Replay the head", { kind: "primary", run: then(async () => (await ask({
        title: `Replay the head of “${key}”?`,
        body: [`${first.event_type || "It"} is delivered again. If it is done this time, ${things(behind, "waiting event")} follow in order. If it fails, the key is blocked again.`],
        confirm: "Replay it",
      })) && change("replay", "Replayed: the key goes on once it is done.")) }),
      act("Skip the head", { run: then(async () => (await ask({
        title: `Skip the head of “${key}”?`,
        body: [`${first.event_type || "It"} counts as done and is never delivered. ${things(behind, "waiting event")} go on without it.`],
        confirm: "Skip it", danger: true,
      })) && change("skip", "Skipped: the key goes on.")) }),
      act("Edit the head…", { needs: "admin", run: then(() => edit(first)) })));
}
