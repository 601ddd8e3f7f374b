// The life of an event: written, tried, settled.

import { h } from "../dom.js";
import { errorDiff } from "../diff.js";
import { number, when } from "../format.js";

/** As a list, oldest first. Errors show what differs from the one before. */
export function timeline(event, attempts = []) {
  const items = [item("good", "Written", event.created_at)];
  const missing = event.attempts - attempts.length;
  if (missing > 0) items.push(item("off", `${number(missing)} earlier ${missing === 1 ? "attempt is" : "attempts are"} not kept`));
  let before = null;
  let number_ = 0;
  for (const attempt of attempts) {
    if (attempt.number <= number_) {
      items.push(item("wait", "Made new again"));
      before = null;
    }
    number_ = attempt.number;
    items.push(item(attempt.fatal ? "bad" : "warn", [`Attempt ${attempt.number} failed`, attempt.fatal && " for good"],
      attempt.at, h("p.muted", null, "on ", h("span.mono.break", null, attempt.node)), errorDiff(before, attempt.error)));
    before = attempt.error;
  }
  if (event.attempts === 0 && attempts.length) items.push(item("wait", "Made new again"));
  items.push(end(event));
  return h("ol.timeline", null, items);
}

function end(event) {
  const by = event.done_by && h("p.muted", null, "by ", h("span.mono.break", null, event.done_by));
  switch (event.status) {
    case "DONE": return item("good", "Done", event.done_at, by);
    case "DEAD": return item("bad", "Given up", event.done_at, by);
    case "RETRY": return item("wait next", "Next attempt", event.available_at);
    default: return item("wait next", event.locked_by ? "In hand" : "Due", event.available_at,
      event.locked_by && h("p.muted", null, "of ", h("span.mono.break", null, event.locked_by)));
  }
}

function item(kind, title, at, ...more) {
  return h("li", { class: kind }, h("div.line", null, h("strong", null, title), at && when(at)), more);
}
