// Icons, drawn in the text colour.

import { s } from "./dom.js";

const PATHS = {
  overview: "M3 17l5-6 4 3 5-8 4 5",
  events: "M4 6h16M4 12h16M4 18h10",
  dead: "M12 8v5m0 3v.01M10.3 4 2.6 17.5A2 2 0 0 0 4.3 20.5h15.4a2 2 0 0 0 1.7-3L13.7 4a2 2 0 0 0-3.4 0z",
  keys: "M15 9a3 3 0 1 0-3-3 3 3 0 0 0 3 3zm-2.1-.9L4 17v3h3v-2h2v-2h2l3-3",
  publishers: "M12 20V10m0 0 4 4m-4-4-4 4M5 8a8 8 0 0 1 14 0",
  joins: "M5 5v4a5 5 0 0 0 5 5h9M5 19a5 5 0 0 1 5-5m6-3 3 3-3 3",
  databases: "M5 6c0-1.7 3.1-3 7-3s7 1.3 7 3-3.1 3-7 3-7-1.3-7-3zm0 0v12c0 1.7 3.1 3 7 3s7-1.3 7-3V6M5 12c0 1.7 3.1 3 7 3s7-1.3 7-3",
  nodes: "M5 4h14v6H5zM5 14h14v6H5zM8 7h.01M8 17h.01",
  audit: "M7 3h7l4 4v14H7zM14 3v4h4M10 12h5M10 16h5",
  menu: "M4 6h16M4 12h16M4 18h16",
  system: "M4 5h16v11H4zM9 20h6m-3-4v4",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2m0 16v2M2 12h2m16 0h2M5 5l1.4 1.4m11.2 11.2L19 19M5 19l1.4-1.4M17.6 6.4 19 5",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  out: "M14 4h5v16h-5M4 12h10m0 0-4-4m4 4-4 4",
};

/** An icon; its meaning is in an adjacent text or label. */
export function icon(name) {
  return s("svg", { class: "icon-svg", viewBox: "0 0 24 24", width: 18, height: 18, "aria-hidden": "true" }, s("path", { d: PATHS[name] }));
}

/** The logo. */
export function mark() {
  return s("svg", { class: "mark", viewBox: "0 0 32 32", width: 26, height: 26, "aria-hidden": "true" },
    s("rect", { width: 32, height: 32, rx: 8 }),
    s("path", { d: "M7 17v6a2 2 0 0 0 2 2h14a2 2 0 0 0 2-2v-6M16 19V7m-5 5 5-5 5 5" }));
}
