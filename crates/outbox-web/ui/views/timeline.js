// The life of an event: written, tried, settled.

import { h } from "../dom.js";
import { errorDiff } from "../diff.js";
import { number, when } from "../format.js";

/** More attempts than this are folded: the first and the last tell the story. */
const UNFOLDED = 6;

/** As a list, oldest first. Errors show what differs from the one before. */
export function timeline(event, attempts) {
  const missing = event.attempts - attempts.length;
  return h("ol.timeline", null,
    item("good", "Written", event.created_at),
    missing > 0 && item("off", `${number(missing)} earlier ${missing === 1 ? "attempt is" : "attempts are"} not kept`),
    folded(attempts.flatMap((attempt, i) => tried(attempt, attempts[i - 1]))),
    event.attempts === 0 && attempts.length > 0 && item("wait", "Made new again"),
    end(event));
}

/** An attempt; before it, that the event was made new, if its number says so. */
function tried(attempt, before) {
  const anew = before && attempt.number <= before.number;
  const failed = item(attempt.fatal ? "bad" : "warn", [`Attempt ${attempt.number} failed`, attempt.fatal && " for good"], attempt.at,
    h("p.muted", null, "on ", h("span.mono.break", null, attempt.node)), errorDiff(anew ? null : before?.error, attempt.error));
  return anew ? [item("wait", "Made new again"), failed] : [failed];
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
    case "DONE": return item("good", "Done", event.done_at, by);
    case "DEAD": return item("bad", "Given up", event.done_at, by);
    case "RETRY": return item("wait", "Next attempt", event.available_at);
    default: return item("wait", event.locked_by ? "In hand" : "Due", event.available_at,
      event.locked_by && h("p.muted", null, "of ", h("span.mono.break", null, event.locked_by)));
  }
}

function item(kind, title, at, ...more) {
  return h("li", { class: kind }, h("div.line", null, h("strong", null, title), at && when(at)), more);
}
