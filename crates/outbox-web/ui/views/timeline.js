// Timeline of an event: written, attempted, settled.

import { h } from "../dom.js";
import { errorDiff } from "../diff.js";
import { number, when } from "../format.js";

/** More attempts than this are folded, except the first and the last ones. */
const UNFOLDED = 6;

/** The timeline as a list, oldest first. Errors show the difference from the previous error. */
export function timeline(event, attempts) {
  const missing = attempts.length ? attempts[0].number - 1 : event.attempts;
  // The last attempt was fatal and the event is not dead: it was replayed, unless an operator
  // skipped it.
  const wasReplayed = attempts.at(-1)?.fatal && event.status !== "DEAD" && !wasSkipped(event);
  return h("ol.timeline", null,
    item("good", "Written", event.created_at),
    missing > 0 && item("off", `${number(missing)} earlier ${missing === 1 ? "attempt is" : "attempts are"} not kept`),
    folded(attempts.flatMap((attempt, i) => tried(attempt, attempts[i - 1]))),
    wasReplayed && item("wait", "Replayed"),
    end(event));
}

/** A failed attempt, preceded by the replay if the attempt before it was fatal. */
function tried(attempt, before) {
  const replayed = before?.fatal;
  const counted = attempt.number > (before && !replayed ? before.number : 0);
  const title = counted ? [`Attempt ${attempt.number} failed`, attempt.fatal && " (final attempt)"] : "Failed permanently: not retryable";
  const failed = item(attempt.fatal ? "bad" : "warn", title, attempt.at,
    h("p.muted", null, "on ", h("span.mono.break", null, attempt.node)), errorDiff(replayed ? null : before?.error, attempt.error),
    attempt.detail && h("p.muted.break", null, attempt.detail));
  return replayed ? [item("wait", "Replayed"), failed] : [failed];
}

/** Whether the event was settled through the API, not by a relay. */
function wasSkipped(event) {
  return event.status === "DONE" && event.done_by?.startsWith("api:");
}

function folded(items) {
  if (items.length <= UNFOLDED) return items;
  const inside = items.slice(1, -3);
  const button = h("button.button.small", {
    type: "button",
    onclick: () => fold.replaceWith(...inside),
  }, `Show ${number(inside.length)} more`);
  const fold = h("li.off", null, h("div.line", null, button));
  return [items[0], fold, ...items.slice(-3)];
}

function end(event) {
  const by = event.done_by && h("p.muted", null, "by ", h("span.mono.break", null, event.done_by));
  switch (event.status) {
    case "DONE": return wasSkipped(event) ? item("off", "Skipped by an operator", event.done_at, by) : item("good", "Done", event.done_at, by);
    case "DEAD": return item("bad", "Dead-lettered", event.done_at, by);
    case "RETRY": return item("wait", "Next attempt", event.available_at);
    default: return item("wait", event.locked_by ? "Claimed" : "Due", event.available_at,
      event.locked_by && h("p.muted", null, "by ", h("span.mono.break", null, event.locked_by)));
  }
}

function item(kind, title, at, ...more) {
  return h("li", { class: kind }, h("div.line", null, h("strong", null, title), at && when(at)), more);
}
