// Theme: light, dark, or the system's. Stored in this browser.

const KEY = "outbox.theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

/** The selected theme: `system`, `light` or `dark`. */
export function theme() {
  const kept = read();
  return kept in NEXT ? kept : "system";
}

/** Applies the selected theme. */
export function applyTheme() {
  const chosen = theme();
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
}

/** Selects the next theme. */
export function nextTheme() {
  const next = NEXT[theme()];
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Without storage the theme lasts until the page is reloaded.
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
