// Purge: counts first, then asks for confirmation.

import { post } from "../api.js";
import { confirmDialog, field } from "../dialog.js";
import { h } from "../dom.js";
import { counted, things } from "../format.js";
import { attempt, toast } from "../toast.js";

const WHAT = [
  ["done", "Done events"],
  ["dead", "Dead events, except those that block their key"],
  ["finished", "Done and dead events"],
  ["attempts", "Failed attempts of events"],
  ["joins", "Closed joins, with their steps"],
  ["inbox", "Inbox entries: events delivered again afterwards count as new"],
];
const NOT_COUNTED = ["attempts", "joins", "inbox"];

/**
 * Asks for the rows, counts them, asks for confirmation, and starts a job. Returns the job, or
 * undefined.
 */
export async function purge() {
  const what = h("select", null, WHAT.map(([value, label]) => h("option", { value }, label)));
  const age = h("input", { type: "text", value: "7d", spellcheck: "false", autocomplete: "off" });
  const chosen = await confirmDialog({
    title: "Purge old rows", confirm: "Count rows",
    body: ["Pending events and steps of open joins are never purged."],
    fields: [field("Rows", what), field("Older than", age, "30m, 12h, 7d")],
    read: () => {
      if (!/^\d{1,6}(ms|s|m|h|d)$/.test(age.value.trim())) throw new Error("Invalid age: enter a number and a unit, such as 12h or 7d.");
      return { what: what.value, older_than: age.value.trim() };
    },
  });
  if (!chosen) return undefined;
  const known = !NOT_COUNTED.includes(chosen.what);
  const found = await attempt(() => post("purge", { ...chosen, dry_run: true }));
  if (!found) return undefined;
  if (known && !found.count) {
    toast("No rows are that old.");
    return undefined;
  }
  const name = WHAT.find(([value]) => value === chosen.what)[1];
  const sure = await confirmDialog({
    title: known ? `Delete ${things(found, "row")}?` : "Delete these rows?", danger: true, word: "purge",
    body: [`${name}, older than ${chosen.older_than}.`, "This cannot be undone. The job can be stopped; rows deleted before that are not restored."],
    confirm: known ? `Delete ${counted(found)}` : "Delete rows",
  });
  return sure && attempt(() => post("purge", chosen), "Purge started.");
}
