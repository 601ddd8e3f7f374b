// Bulk replay: counts first, then asks for the rate and a confirmation.

import { post } from "../api.js";
import { confirmDialog, field } from "../dialog.js";
import { h } from "../dom.js";
import { FIELDS } from "../filter.js";
import { counted, things } from "../format.js";
import { attempt, toast } from "../toast.js";

/** Asks for confirmation, and starts a job. Returns the job, or undefined. */
export async function bulkReplay(filter) {
  const all = Object.keys(filter).length === 0;
  const found = await attempt(() => post("dead/replay", { filter, dry_run: true, confirm_all: all || undefined }));
  if (!found) return undefined;
  if (!found.count) {
    toast("No dead event matches.");
    return undefined;
  }
  const speed = h("input", { type: "number", min: 1, max: 100_000, value: 100, required: true, inputmode: "numeric" });
  const rate = await confirmDialog({
    title: `Replay ${things(found, "dead event")}?`,
    body: [
      all ? h("p", null, h("strong", null, "No filter is set: every dead event will be replayed.")) : chosen(filter),
      "Events become new, with their attempts reset, oldest first. An event that is dead-lettered again is not replayed twice. The job can be stopped at any time.",
    ],
    fields: [field("Maximum events per second", speed, "Limits the load on receivers.")],
    confirm: `Replay ${counted(found)}`, danger: all, word: all ? "replay all" : undefined,
    read: () => {
      const given = Number(speed.value);
      if (!Number.isInteger(given) || given < 1) throw new Error("Enter a whole number of at least 1.");
      return given;
    },
  });
  if (!rate) return undefined;
  return attempt(() => post("dead/replay", { filter, dry_run: false, rate, confirm_all: all || undefined }), "Replay started.");
}

function chosen(filter) {
  return h("ul.plain", null, FIELDS.filter(([name]) => filter[name]).map(([name, label]) => h("li", null, `${label}: `, h("strong.break", null, filter[name]))));
}
