// The life of an event: written, tried, settled.

import { h } from "../dom.js";
import { errorDiff } from "../diff.js";
import { number, when } from "../format.js";

/** More attempts than this are folded: the first and the last tell the story. */
const UNFOLDED = 6;

/** As a list, oldest first. Errors show what differs from the one before. */
export function timeline(event, attempts) {
  const missing = attempts.length ? attempts[0].number - 1 : event.attempts;
  // It had died and is not dead: somebody brought it back. Unless a person settled it by hand.
  const back = attempts.at(-1)?.fatal && event.status !== "DEAD" && !byHand(event);
  return h("ol.timeline", null,
    item("good", "Written", event.created_at),
    missing > 0 && item("off", `${number(missing)} earlier ${missing === 1 ? "attempt is" : "attempts are"} not kept`),
    folded(attempts.flatMap((attempt, i) => tried(attempt, attempts[i - 1]))),
    back && item("wait", "Made new again"),
    end(event));
}

/** An attempt; before it, that the event was made new, if it had died of the one before. */
function tried(attempt, before) {
  const anew = before?.fatal;
  const counted = attempt.number > (before && !anew ? before.number : 0);
  const title = counted ? [`Attempt ${attempt.number} failed`, attempt.fatal && " for good"] : "Failed for good: trying again would not help";
  const failed = item(attempt.fatal ? "bad" : "warn", title, attempt.at,
    h("p.muted", null, "on ", h("span.mono.break", null, attempt.node)), errorDiff(anew ? null : before?.error, attempt.error),
    attempt.detail && h("p.muted.break", null, attempt.detail));
  return anew ? [item("wait", "Made new again"), failed] : [failed];
}

/** Settled by a person through the API, and not by a relay. */
function byHand(event) {
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
    case "DONE": return byHand(event) ? item("off", "Skipped by hand", event.done_at, by) : item("good", "Done", event.done_at, by);
    case "DEAD": return item("bad", "Given up", event.done_at, by);
    case "RETRY": return item("wait", "Next attempt", event.available_at);
    default: return item("wait", event.locked_by ? "In hand" : "Due", event.available_at,
      event.locked_by && h("p.muted", null, "of ", h("span.mono.break", null, event.locked_by)));
  }
}

function item(kind, title, at, ...more) {
  return h("li", { class: kind }, h("div.line", null, h("strong", null, title), at && when(at)), more);
}
