// Replaying many: count first, then how fast, then a yes that names the number.

import { post } from "../api.js";
import { ask, field } from "../dialog.js";
import { h } from "../dom.js";
import { FIELDS } from "../filter.js";
import { counted, things } from "../format.js";
import { attempt, toast } from "../toast.js";

/** Asks, and starts a job. Returns it, or undefined. */
export async function bulkReplay(filter) {
  const all = Object.keys(filter).length === 0;
  const found = await attempt(() => post("dead/replay", { filter, dry_run: true, confirm_all: all || undefined }));
  if (!found) return undefined;
  if (!found.count) {
    toast("No dead event matches: nothing to replay.");
    return undefined;
  }
  const speed = h("input", { type: "number", min: 1, max: 100_000, value: 100, required: true, inputmode: "numeric" });
  const rate = await ask({
    title: `Replay ${things(found, "dead event")}?`,
    body: [
      all ? h("p", null, h("strong", null, "No filter is set: this is every dead event there is.")) : chosen(filter),
      "Each becomes new, with no attempts behind it, oldest first. One that dies again is not replayed twice. You can stop at any time.",
    ],
    fields: [field("Events a second, at most", speed, "Spares those who receive them.")],
    confirm: `Replay ${counted(found)}`, danger: all, word: all ? "replay all" : undefined,
    read: () => {
      const given = Number(speed.value);
      if (!Number.isInteger(given) || given < 1) throw new Error("How many a second? A whole number from 1.");
      return given;
    },
  });
  if (!rate) return undefined;
  return attempt(() => post("dead/replay", { filter, dry_run: false, rate, confirm_all: all || undefined }), "Replay started.");
}

function chosen(filter) {
  return h("ul.plain", null, FIELDS.filter(([name]) => filter[name]).map(([name, label]) => h("li", null, `${label}: `, h("strong.break", null, filter[name]))));
}
