// What can be done to one event. Each asks first and says what will happen.

import { get, part, post, put } from "./api.js";
import { ask, field } from "./dialog.js";
import { h } from "./dom.js";
import { number, things } from "./format.js";
import { compact, isJson, pretty } from "./json.js";
import { named } from "./route.js";
import { attempt } from "./toast.js";

const path = (event, what) => `events/${part(named(event))}/${what}`;
const name = event => h("p", null, h("strong", null, event.event_type || "(unreadable)"), " ", h("span.mono.break", null, event.id));

/** A dead event is new again. */
export async function replay(event) {
  const sure = await ask({
    title: "Replay this event?",
    body: [name(event), "It becomes new, with no attempts behind it, and is delivered as soon as a relay gets to it. Whoever received part of it before may receive it again.",
      event.ordering_key && `The events behind it in key “${event.ordering_key}” follow once it is done.`].filter(Boolean),
    confirm: "Replay it",
  });
  return sure && attempt(() => post(path(event, "replay")), "Replayed: it is on its way.");
}

/** A dead event counts as settled. */
export async function skip(event, behind) {
  const sure = await ask({
    title: "Skip this event?",
    body: [name(event), "It counts as done and is never delivered. Its error stays with it, so that one can see why.",
      event.ordering_key && `Its key “${event.ordering_key}” goes on${behind ? ` with ${things(behind, "waiting event")}` : ""}.`].filter(Boolean),
    confirm: "Skip it", danger: true,
  });
  return sure && attempt(() => post(path(event, "skip")), "Skipped.");
}

/** A pending event is taken back. */
export async function cancel(event) {
  const sure = await ask({
    title: "Cancel this event?",
    body: [name(event), "It is removed from the outbox and never delivered. This cannot be undone.", "If a relay is handling it right now, nothing happens."],
    confirm: "Cancel the event", danger: true,
  });
  return sure && attempt(() => post(path(event, "cancel")), "Cancelled.");
}

/** A dead event gets another payload, and is replayed if wanted. */
export async function edit(event) {
  const found = await attempt(() => get(path(event, "payload")));
  if (!found) return undefined;
  if (found.text === null) {
    await ask({ title: "This payload cannot be edited here", body: ["It is not text. Write a new event instead, and skip this one."], confirm: "Understood" });
    return undefined;
  }
  const json = isJson(found.text);
  const area = h("textarea", { rows: 14, spellcheck: "false", wrap: "off", value: pretty(found.text) });
  area.setSelectionRange(0, 0);
  const again = h("input", { type: "checkbox", checked: true, id: "edit-replay" });
  const changed = await ask({
    title: "Edit the payload", wide: true,
    body: [name(event), "The old payload is replaced. The audit notes who did it, not what was in it."],
    fields: [field("Payload", area, json ? "JSON" : found.content_type), h("p.check", null, again, h("label", { for: "edit-replay" }, "Replay it afterwards"))],
    confirm: "Save", danger: true,
    read: () => {
      if (json) check(area.value);
      // Laid out for editing; stored as it was before, on one line or on many.
      const text = json && !found.text.includes("\n") ? compact(area.value) : area.value;
      return { text, replay: again.checked };
    },
  });
  if (!changed) return undefined;
  const saved = await attempt(() => put(path(event, "payload"), { payload: changed.text }), changed.replay ? null : "Saved.");
  if (saved && changed.replay) await attempt(() => post(path(event, "replay")), "Saved and replayed.");
  return saved;
}

function check(text) {
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}. (${number(text.length)} characters)`);
  }
}
