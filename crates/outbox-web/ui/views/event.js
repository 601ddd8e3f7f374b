// One event: its metadata, why it has not been delivered, and actions.

import { get, part } from "../api.js";
import { cancel, edit, replay, skip } from "../actions.js";
import { fill, h, patch } from "../dom.js";
import { bytes, number, when } from "../format.js";
import { copy, card, facts, status } from "../parts.js";
import { actionButton } from "../role.js";
import { href } from "../route.js";
import { empty, every, load } from "../state.js";
import { payload } from "./payload.js";
import { timeline } from "./timeline.js";

export function event({ main, path, signal }) {
  const id = path[1];
  const container = h("div.pile");
  const parts = { head: h("header.view-head"), explain: h("section.explain", { "aria-label": "Explanation" }), timeline: h("div"), facts: h("div") };
  const page = [crumb(), parts.head, parts.explain, h("div.columns", null,
    h("div", null, card("Timeline", parts.timeline)),
    h("div", null, card("Metadata", parts.facts), card(null, payload(id))))];
  fill(main, container);

  /** Null if the event does not exist, or no longer. */
  async function fetch() {
    try {
      return await get(`events/${part(id)}`, {}, signal);
    } catch (error) {
      if (error.status === 404) return null;
      throw error;
    }
  }
  async function refresh() {
    render(await fetch());
  }
  /** Updates each part separately: times in the explanation change, unfolded parts stay. */
  function render(found) {
    if (!found) return fill(container, crumb(), empty("Event not found.", "It may have been purged or cancelled, or be in another database."));
    const { event: facts, attempts, explanation } = found;
    if (!parts.head.isConnected) fill(container, page);
    patch(parts.head, [facts.status, facts.event_type], () => headline(facts, refresh));
    parts.explain.className = `explain ${facts.status.toLowerCase()}`;
    patch(parts.explain, explanation.text, () => explanation.text.trim().split("\n").map(line => h("p", null, words(line))));
    patch(parts.timeline, [attempts, facts.status, facts.attempts, facts.available_at, facts.locked_by, facts.done_by], () => timeline(facts, attempts));
    return patch(parts.facts, facts, () => eventFacts(facts));
  }

  load(container, fetch, render);
  // A settled event may be replayed elsewhere.
  every(2_000, signal, refresh);
}

function crumb() {
  return h("p.crumb", null, h("a", { href: href("events") }, "Events"), " /");
}

/** Text in backticks is shown as code. */
function words(line) {
  return line.split("`").map((text, i) => (i % 2 ? h("code", null, text) : text));
}

function headline(event, refresh) {
  return [
    h("div", null,
      h("h1", null, event.event_type || "(unreadable)", " ", status(event.status)),
      h("p.mono.muted.break", null, event.id, " ", copy(event.id))),
    h("div.tools", null, buttons(event, refresh)),
  ];
}

function buttons(event, refresh) {
  const then = run => async () => {
    if (await run(event)) await refresh();
  };
  if (event.status === "DEAD") {
    return [
      actionButton("Replay", { run: then(replay), kind: "primary", hint: "Deliver it again" }),
      actionButton("Edit payload…", { needs: "admin", run: then(edit), hint: "Replace the payload, and replay" }),
      actionButton("Skip", { run: then(skip), hint: "Mark as done without delivering" }),
    ];
  }
  if (event.status === "DONE") return [];
  return [actionButton("Cancel", { run: then(cancel), kind: "danger-quiet", hint: "Delete it before it is delivered" })];
}

function eventFacts(event) {
  const by = (name, value) => value && h("a", { href: href("events", { status: statusTab(event.status), [name]: value }), title: "Show all events with this value" }, value);
  return facts([
    ["Type", by("event_type", event.event_type)],
    ["Aggregate type", event.aggregate_type === "__GLOBAL__" ? null : by("aggregate_type", event.aggregate_type)],
    ["Aggregate id", by("aggregate_id", event.aggregate_id)],
    ["Tenant", by("tenant_id", event.tenant_id)],
    ["Ordering key", by("ordering_key", event.ordering_key)],
    ["Correlation id", by("correlation_id", event.correlation_id)],
    ["Deduplication key", event.dedup_key],
    ["Sequence number", number(event.seq)],
    ["Failed attempts", number(event.attempts)],
    ["Occurred", event.occurred_at && when(event.occurred_at)],
    ["Stored", when(event.created_at)],
    ["Due", event.status === "NEW" || event.status === "RETRY" ? when(event.available_at) : null],
    ["Expires", event.expires_at && when(event.expires_at)],
    ["Claimed by", event.locked_by],
    ["Lease expires", event.locked_until && when(event.locked_until)],
    [event.status === "DEAD" ? "Dead-lettered" : "Done", event.done_at && when(event.done_at)],
    ["Settled by", event.done_by],
    ["Decoding error", event.unreadable],
    ["Payload", `${bytes(event.payload_bytes)}${event.content_type ? `, ${event.content_type}` : ""}`],
  ]);
}

function statusTab(word) {
  return { DONE: "done", DEAD: "dead" }[word] ?? "pending";
}
