// Actions on one event. Each asks for confirmation and describes its effect.

import { get, part, post, put } from "./api.js";
import { confirmDialog, field } from "./dialog.js";
import { h } from "./dom.js";
import { number, things } from "./format.js";
import { compact, isJson, pretty } from "./json.js";
import { named } from "./route.js";
import { attempt } from "./toast.js";

const path = (event, what) => `events/${part(named(event))}/${what}`;
const name = event => h("p", null, h("strong", null, event.event_type || "(unreadable)"), " ", h("span.mono.break", null, event.id));

/** Replays a dead event. */
export async function replay(event) {
  const sure = await confirmDialog({
    title: "Replay this event?",
    body: [name(event), "The event becomes new, its attempts are reset, and a relay delivers it as soon as possible. Receivers that got it before may get it again.",
      event.ordering_key && `The events behind it in key “${event.ordering_key}” follow once it is done.`].filter(Boolean),
    confirm: "Replay event",
  });
  return sure && attempt(() => post(path(event, "replay")), "Event replayed.");
}

/** Skips a dead event. */
export async function skip(event, behind) {
  const sure = await confirmDialog({
    title: "Skip this event?",
    body: [name(event), "The event counts as done and is never delivered. Its last error is kept.",
      event.ordering_key && `Its key “${event.ordering_key}” continues${behind ? ` with ${things(behind, "waiting event")}` : ""}.`].filter(Boolean),
    confirm: "Skip event", danger: true,
  });
  return sure && attempt(() => post(path(event, "skip")), "Event skipped.");
}

/** Cancels a pending event. */
export async function cancel(event) {
  const sure = await confirmDialog({
    title: "Cancel this event?",
    body: [name(event), "The event is deleted from the outbox and never delivered. This cannot be undone.", "An event that a relay is handling cannot be cancelled."],
    confirm: "Cancel event", danger: true,
  });
  return sure && attempt(() => post(path(event, "cancel")), "Event cancelled.");
}

/** Replaces the payload of a dead event, and replays the event on request. */
export async function edit(event) {
  const found = await attempt(() => get(path(event, "payload")));
  if (!found) return undefined;
  if (found.text === null) {
    await confirmDialog({ title: "This payload cannot be edited here", body: ["The payload is not text. Write a new event instead, and skip this one."], confirm: "OK" });
    return undefined;
  }
  const json = isJson(found.text);
  const area = h("textarea", { rows: 14, spellcheck: "false", wrap: "off", value: pretty(found.text) });
  area.setSelectionRange(0, 0);
  const again = h("input", { type: "checkbox", checked: true, id: "edit-replay" });
  const changed = await confirmDialog({
    title: "Edit the payload", wide: true,
    body: [name(event), "The payload is replaced. The audit entry has digests of both payloads, not their contents."],
    fields: [field("Payload", area, json ? "JSON" : found.content_type), h("p.check", null, again, h("label", { for: "edit-replay" }, "Replay the event afterwards"))],
    confirm: "Save", danger: true,
    read: () => {
      if (json) check(area.value);
      // Formatted for editing; stored on one line if it was before.
      const text = json && !found.text.includes("\n") ? compact(area.value) : area.value;
      return { text, replay: again.checked };
    },
  });
  if (!changed) return undefined;
  const saved = await attempt(() => put(path(event, "payload"), { payload: changed.text }), changed.replay ? null : "Payload saved.");
  if (saved && changed.replay) await attempt(() => post(path(event, "replay")), "Payload saved, event replayed.");
  return saved;
}

function check(text) {
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Error(`Invalid JSON: ${error.message}. (${number(text.length)} characters)`);
  }
}
