// Relays and leases.

import { get, part, post } from "../api.js";
import { confirmDialog } from "../dialog.js";
import { fill, h } from "../dom.js";
import { number, rate, span, task, things, when } from "../format.js";
import { badge, card, head } from "../parts.js";
import { actionButton } from "../role.js";
import { empty, every, load } from "../state.js";
import { table } from "../table.js";
import { attempt, toast } from "../toast.js";

export function nodes({ main, signal }) {
  const relays = h("div");
  const leases = h("div");
  fill(main, head("Nodes", "Every relay announces itself every 2 to 5 seconds. Other relays release the leases of a vanished relay."), card("Relays", relays), card("Leases", leases));
  const list = table({ caption: "Relays", key: node => node.node, columns: [
    { name: "Node", wide: true, cell: node => h("span.mono.break", null, node.node) },
    { name: "State", tight: true, cell: node => [state(node), h("span.sub", { title: `On a dead event: ${node.on_dead}` }, `${node.mode}, ${node.version}`)] },
    { name: "Seen", num: true, cell: node => [`${span(node.seen_ms)} ago`, h("span.sub", null, "started ", when(node.started_at))] },
    { name: "Last take", num: true, cell: node => [when(node.last_take), node.last_settlement ? h("span.sub", null, "settled ", when(node.last_settlement)) : ""] },
    { name: "Delivered/s", num: true, cell: node => rate(node.delivered_per_second) },
    { name: "Delivered", num: true, cell: node => number(node.counts.delivered) },
    { name: "Failed", num: true, cell: node => number(node.counts.failed) },
    { name: "Dead", num: true, cell: node => number(node.counts.dead) },
    { name: "Errors", wide: true, cell: errors },
    { name: "", tight: true, cell: node => actionButton("Release", { run: () => release(node), hint: "Release the leases of this relay" }) },
  ] });
  const held = table({ caption: "Leases", key: lease => `${lease.holder}/${lease.what}`, columns: [
    { name: "Holder", wide: true, cell: lease => h("span.mono.break", null, lease.holder) },
    { name: "Lease", cell: lease => lease.what },
    { name: "Events", num: true, cell: lease => number(lease.events) },
    { name: "Expires", num: true, cell: lease => when(lease.until) },
  ] });
  const render = found => {
    list.update(found.nodes);
    held.update(found.leases ?? []);
    if (!found.nodes.length) fill(relays, empty("No relay is running.", "Start one with outbox relay, or with .start() in your application. Until then events are not delivered."));
    else if (!list.el.isConnected) fill(relays, list.el);
    if (!found.leases?.length) fill(leases, empty("No leases."));
    else if (!held.el.isConnected) fill(leases, held.el);
  };
  const fetch = () => get("nodes", {}, signal);
  load(relays, fetch, render);
  every(2_000, signal, async () => render(await fetch()));
}

/** Releases the leases of a relay. */
async function release(node) {
  const sure = await confirmDialog({
    title: "Release the leases of this relay?",
    body: [h("p", null, h("span.mono.break", null, node.node)),
      "Its leases on events are released, and its leadership of the table, if any. Other relays deliver these events at once.",
      node.running && `The relay is running: it was seen ${span(node.seen_ms)} ago. It continues to handle the events in its memory until its next renewal: they may be delivered twice, and out of the order of their keys. Stop it first if possible.`].filter(Boolean),
    confirm: "Release", danger: node.running,
  });
  const released = sure && await attempt(() => post(`nodes/${part(node.node)}/release`, { running: node.running }));
  if (released) toast(released.events || released.leadership ? `Released ${things(released.events, "event")}${released.leadership ? " and the leadership of the table" : ""}.` : "The relay had no leases.");
}

function state(node) {
  if (!node.running) return badge("bad", node.released ? "Vanished, released" : "Vanished");
  if (node.errors.some(error => error.problem)) return badge("bad", "Failing");
  return node.active ? badge("good", "Active") : badge("wait", "Standby");
}

function errors(node) {
  if (!node.outages.length && !node.errors.length) return "–";
  const fails = node.errors.map(one => [h("span.error-line", { title: one.error }, `Fails to ${task(one.task)}: ${one.error}`), h("span.sub", null, "since ", when(one.since))]);
  return fails.concat(node.outages.map(one => h("span.error-line", { title: one.reason }, `${one.destination} is unavailable: ${one.reason}`)));
}
