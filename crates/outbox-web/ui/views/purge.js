// Removing what nobody needs any more: counts first, says what goes.

import { post } from "../api.js";
import { ask, field } from "../dialog.js";
import { h } from "../dom.js";
import { counted, things } from "../format.js";
import { attempt, toast } from "../toast.js";

const WHAT = [
  ["done", "Events that are done"],
  ["dead", "Dead events, apart from those that hold back their key"],
  ["finished", "Events that are done or dead"],
  ["attempts", "Failed attempts of events"],
  ["joins", "Closed joins, with their steps"],
  ["inbox", "Inbox entries: what comes again after that is new to consumers"],
];
const NOT_COUNTED = ["attempts", "joins", "inbox"];

/** Asks what, counts it, asks again, and starts a job. Returns it, or undefined. */
export async function purge() {
  const what = h("select", null, WHAT.map(([value, label]) => h("option", { value }, label)));
  const age = h("input", { type: "text", value: "7d", spellcheck: "false", autocomplete: "off" });
  const chosen = await ask({
    title: "Purge old rows", confirm: "Count them",
    body: ["Pending events are never purged, and neither are steps of joins that are open."],
    fields: [field("What", what), field("Older than", age, "30m, 12h, 7d")],
    read: () => {
      if (!/^\d{1,6}(ms|s|m|h|d)$/.test(age.value.trim())) throw new Error("How old? A number and a unit, such as 12h or 7d.");
      return { what: what.value, older_than: age.value.trim() };
    },
  });
  if (!chosen) return undefined;
  const known = !NOT_COUNTED.includes(chosen.what);
  const found = await attempt(() => post("purge", { ...chosen, dry_run: true }));
  if (!found) return undefined;
  if (known && !found.count) {
    toast("Nothing is that old: nothing to purge.");
    return undefined;
  }
  const name = WHAT.find(([value]) => value === chosen.what)[1];
  const sure = await ask({
    title: known ? `Delete ${things(found, "row")}?` : "Delete these rows?", danger: true, word: "purge",
    body: [`${name}, older than ${chosen.older_than}.`, "They are gone for good. You can stop while it runs; what is deleted stays so."],
    confirm: known ? `Delete ${counted(found)}` : "Delete them",
  });
  return sure && attempt(() => post("purge", chosen), "Purge started.");
}
