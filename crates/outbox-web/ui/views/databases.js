// The databases that are looked after.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { badge, head } from "../parts.js";
import { act } from "../role.js";
import { empty, every, load } from "../state.js";
import { table } from "../table.js";
import { jobs } from "./jobs.js";
import { purge } from "./purge.js";

const KINDS = { active: "good", open: "good", "standing by": "wait", starting: "wait", failing: "bad" };

export function databases({ main, signal }) {
  const place = h("div");
  const running = jobs(signal);
  const clean = act("Purge…", { needs: "admin", hint: "Delete old rows of the chosen database: counts first", run: async () => { if (await purge()) await running.refresh(); } });
  fill(main, head("Databases", "Each database has its own outbox; one process may look after many.", clean), running.el, place);
  const list = table({
    caption: "Databases", key: database => database.name, href: ({ name }) => `#/overview?${new URLSearchParams({ database: name })}`,
    columns: [
      { name: "Database", wide: true, cell: database => h("span.type", null, database.name) },
      { name: "State", tight: true, cell: database => badge(KINDS[database.state] ?? "off", database.state) },
      { name: "Reason", wide: true, cell: database => (database.reason ? h("span.error-line", null, database.reason) : "–") },
    ],
  });
  const fetch = () => get("databases", {}, signal);
  const render = found => {
    list.update(found.databases);
    fill(place, found.databases.length ? list.el : empty("No database at the moment.", "Discovery may still be looking."));
  };
  load(place, fetch, render);
  every(3_000, signal, async () => list.update((await fetch()).databases));
}
