// The page around every view: navigation, database, connection state, session.

import { DOCS, del } from "./api.js";
import { fill, h, setText } from "./dom.js";
import { brief, counted } from "./format.js";
import { icon, mark } from "./icons.js";
import { help } from "./keyboard.js";
import { onLive, reconnect } from "./live.js";
import { href } from "./route.js";
import { nextTheme, theme } from "./theme.js";
import { attempt } from "./toast.js";

const VIEWS = [
  ["overview", "Overview"], ["events", "Events"], ["dead", "Dead letters"], ["keys", "Blocked keys"],
  ["publishers", "Publishers"], ["joins", "Joins"], ["databases", "Databases"], ["nodes", "Nodes"], ["audit", "Audit"],
];

/** Builds the page for a session. `switchDatabase` is called with the name of a database. */
export function shell({ me, databases, database, switchDatabase, signal }) {
  const main = h("main", { id: "main", tabindex: "-1" });
  const banner = h("div.banner.lost", { role: "status", hidden: true },
    h("span", null, "Live connection lost. Numbers may be outdated; reconnecting…"),
    h("button.button.small", { type: "button", onclick: reconnect }, "Reconnect now"));
  const light = h("span.live-text", null, "…");
  const dead = h("span.badge", { hidden: true });
  const links = new Map(VIEWS.map(([name, title]) => [name, h("a", { href: href(name), onclick: closeMenu },
    icon(name), h("span", null, title), name === "dead" && dead)]));

  const menu = h("button.icon.menu", { type: "button", "aria-label": "Navigation", "aria-expanded": "false", "aria-controls": "side", onclick: toggleMenu }, icon("menu"));
  const side = h("aside.side", { id: "side", "aria-label": "Navigation and session" },
    h("nav", { "aria-label": "Views" }, [...links.values()]),
    databases.length > 1 && chooser(databases, database, switchDatabase),
    h("div.side-foot", null,
      h("div.who", null, h("strong", { title: me.actor }, me.actor), h("span.role", null, me.role)),
      h("div.tools", null, themeSwitch(),
        h("button.icon", { type: "button", "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts (?)", onclick: help }, "?"),
        h("a.icon", { href: DOCS, title: "REST API", "aria-label": "REST API" }, "{ }"),
        me.session && h("button.icon", { type: "button", "aria-label": "Sign out", title: "Sign out", onclick: signOut }, icon("out")))));
  const el = h("div.shell", null,
    h("a.skip", { href: "#main", onclick: event => { event.preventDefault(); main.focus(); } }, "Skip to content"),
    h("header.top", null, h("a.brand", { href: href("overview"), onclick: closeMenu }, mark(), h("span", null, "outbox")),
      h("span.live", null, h("span.lamp", { "aria-hidden": "true" }), light), menu),
    side,
    h("div.page", null, banner, main));

  onLive(signal, ({ state, latest }) => {
    el.dataset.live = state;
    setText(light, { live: "live", connecting: "connecting", lost: "not live", off: "not live" }[state]);
    banner.hidden = state !== "lost";
    const count = latest?.overview?.dead;
    dead.hidden = !count?.count;
    if (count?.count) {
      setText(dead, brief(count));
      dead.setAttribute("aria-label", `${counted(count)} dead`);
    }
  });

  function toggleMenu() {
    const open = document.body.classList.toggle("menu-open");
    menu.setAttribute("aria-expanded", String(open));
  }
  function closeMenu() {
    document.body.classList.remove("menu-open");
    menu.setAttribute("aria-expanded", "false");
  }
  /** Marks the current view. */
  function at(current) {
    for (const [name, link] of links) {
      link.href = href(name);
      if (name === current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    closeMenu();
  }
  return { el, main, at };
}

function chooser(databases, database, switchDatabase) {
  const select = h("select", { id: "database", onchange: () => switchDatabase(select.value) },
    databases.map(name => h("option", { value: name, selected: name === database }, name)));
  return h("p.field.database", null, h("label", { for: "database" }, "Database"), select);
}

function themeSwitch() {
  const names = { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
  const button = h("button.icon", { type: "button", onclick: () => { nextTheme(); look(); } });
  const look = () => {
    fill(button, icon(theme()));
    button.title = names[theme()];
    button.setAttribute("aria-label", names[theme()]);
  };
  look();
  return button;
}

async function signOut() {
  await attempt(() => del("session"));
  location.hash = "";
  location.reload();
}
