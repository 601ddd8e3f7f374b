// The relays that say that they run.

import { get, part, post } from "../api.js";
import { ask } from "../dialog.js";
import { fill, h } from "../dom.js";
import { number, rate, span, task, things, when } from "../format.js";
import { badge, card, head } from "../parts.js";
import { act } from "../role.js";
import { empty, every, load } from "../state.js";
import { table } from "../table.js";
import { attempt, toast } from "../toast.js";

export function nodes({ main, signal }) {
  const relays = h("div");
  const leases = h("div");
  fill(main, head("Nodes", "Every relay announces itself, every 2 to 5 seconds. The leases of one that vanished are released by the others."), card("Relays", relays), card("Leases", leases));
  const list = table({ caption: "Relays", key: node => node.node, columns: [
    { name: "Node", wide: true, cell: node => h("span.mono.break", null, node.node) },
    { name: "State", tight: true, cell: node => [state(node), h("span.sub", { title: `Dead events ${node.on_dead} their key` }, `${node.mode}, ${node.version}`)] },
    { name: "Seen", num: true, cell: node => [`${span(node.seen_ms)} ago`, h("span.sub", null, "started ", when(node.started_at))] },
    { name: "Last take", num: true, cell: node => [when(node.last_take), node.last_settlement ? h("span.sub", null, "settled ", when(node.last_settlement)) : ""] },
    { name: "Delivered/s", num: true, cell: node => rate(node.delivered_per_second) },
    { name: "Delivered", num: true, cell: node => number(node.counts.delivered) },
    { name: "Failed", num: true, cell: node => number(node.counts.failed) },
    { name: "Dead", num: true, cell: node => number(node.counts.dead) },
    { name: "Errors", wide: true, cell: errors },
    { name: "", tight: true, cell: node => act("Release", { run: () => release(node), hint: "Free the events that it holds" }) },
  ] });
  const held = table({ caption: "Leases", key: lease => `${lease.holder}/${lease.what}`, columns: [
    { name: "Held by", wide: true, cell: lease => h("span.mono.break", null, lease.holder) },
    { name: "What", cell: lease => lease.what },
    { name: "Events", num: true, cell: lease => number(lease.events) },
    { name: "Until", num: true, cell: lease => when(lease.until) },
  ] });
  const render = found => {
    list.update(found.nodes);
    held.update(found.leases ?? []);
    if (!found.nodes.length) fill(relays, empty("No relay says that it runs.", "Start one: outbox relay, or .start() in your program. Until then events only wait."));
    else if (!list.el.isConnected) fill(relays, list.el);
    if (!found.leases?.length) fill(leases, empty("Nobody holds anything right now."));
    else if (!held.el.isConnected) fill(leases, held.el);
  };
  const fetch = () => get("nodes", {}, signal);
  load(relays, fetch, render);
  every(2_000, signal, async () => render(await fetch()));
}

/** Frees what a relay holds. */
async function release(node) {
  const sure = await ask({
    title: "Release what this relay holds?",
    body: [h("p", null, h("span.mono.break", null, node.node)),
      "Its leases on events are freed, and its lead of the table, if it has it. Other relays deliver those events at once.",
      node.running && `It runs: it was seen ${span(node.seen_ms)} ago. It goes on handling the events in its memory until its next renewal: they may be delivered twice, and out of the order of their keys. Stop it first if you can.`].filter(Boolean),
    confirm: "Release", danger: node.running,
  });
  const released = sure && await attempt(() => post(`nodes/${part(node.node)}/release`, { running: node.running }));
  if (released) toast(released.events || released.leadership ? `Released ${things(released.events, "event")}${released.leadership ? " and the lead of the table" : ""}.` : "It held nothing.");
}

function state(node) {
  if (!node.running) return badge("bad", node.released ? "Vanished, released" : "Vanished");
  if (node.errors.some(error => error.problem)) return badge("bad", "Failing");
  return node.active ? badge("good", "Active") : badge("wait", "Stands by");
}

function errors(node) {
  if (!node.outages.length && !node.errors.length) return "–";
  const fails = node.errors.map(one => [h("span.error-line", { title: one.error }, `Fails to ${task(one.task)}: ${one.error}`), h("span.sub", null, "since ", when(one.since))]);
  return fails.concat(node.outages.map(one => h("span.error-line", { title: one.reason }, `${one.destination} is not available: ${one.reason}`)));
}
