// Light, dark, or as the system says. Remembered in this browser.

const KEY = "outbox.theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

/** What was chosen: `system`, `light` or `dark`. */
export function theme() {
  const kept = read();
  return kept in NEXT ? kept : "system";
}

/** Applies what was chosen. */
export function applyTheme() {
  const chosen = theme();
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
}

/** The next of the three. */
export function nextTheme() {
  const next = NEXT[theme()];
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Without storage it holds until the page is loaded again.
  }
  applyTheme();
  return next;
}

function read() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}
