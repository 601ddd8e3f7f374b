// The databases.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { badge, head } from "../parts.js";
import { actionButton } from "../role.js";
import { empty, every, load } from "../state.js";
import { table } from "../table.js";
import { jobs } from "./jobs.js";
import { purge } from "./purge.js";

const KINDS = { active: "good", open: "good", standby: "wait", starting: "wait", failing: "bad" };

export function databases({ main, signal }) {
  const container = h("div");
  const running = jobs(signal);
  const clean = actionButton("Purge…", { needs: "admin", hint: "Delete old rows of the selected database, after a count", run: async () => { if (await purge()) await running.refresh(); } });
  fill(main, head("Databases", "Each database has its own outbox; one process can serve many.", clean), running.el, container);
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
    fill(container, found.databases.length ? list.el : empty("No databases.", "Discovery may still be running."));
  };
  load(container, fetch, render);
  every(3_000, signal, async () => list.update((await fetch()).databases));
}
