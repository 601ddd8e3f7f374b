// A signed-in browser that records unexpected errors and requests to other hosts.

import assert from "node:assert/strict";

import { chromium } from "playwright-core";

export const BASE = required("OUTBOX_WEB_URL");
export const TOKEN = required("OUTBOX_WEB_TOKEN");
export const VIEWS = ["overview", "events", "dead", "keys", "publishers", "joins", "databases", "nodes", "audit"];

/** Timeout for a page or a relay. */
export const PATIENCE = 120_000;

function required(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: see README.md`);
  return value;
}

/** Launches the browser of a test file. */
export function launch() {
  return chromium.launch({
    executablePath: process.env.OUTBOX_CHROMIUM ?? "/usr/bin/chromium",
    timeout: 180_000,
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}

/** A browser context with a timeout for a busy machine. */
export async function newContext(browser, options) {
  const context = await browser.newContext(options);
  context.setDefaultTimeout(PATIENCE);
  return context;
}

/** A page that records errors, dialogs and requests to other hosts; `check` fails the test if there are any. */
export async function watched(browser, { base = BASE, width = 1440, height = 900 } = {}) {
  const context = await newContext(browser, { viewport: { width, height } });
  const page = await context.newPage();
  const seen = { errors: [], elsewhere: [], dialogs: [] };
  page.on("console", message => { if (message.type() === "error") seen.errors.push(message.text()); });
  page.on("pageerror", error => seen.errors.push(error.message));
  page.on("dialog", dialog => { seen.dialogs.push(dialog.message()); dialog.dismiss(); });
  context.on("request", request => { if (new URL(request.url()).origin !== new URL(base).origin) seen.elsewhere.push(request.url()); });
  const check = () => {
    assert.deepEqual(seen, { errors: [], elsewhere: [], dialogs: [] });
  };
  return { context, page, seen, check };
}

/** A page that is signed in with a token. */
export async function signIn(browser, { token = TOKEN, ...size } = {}) {
  const watching = await watched(browser, size);
  await watching.page.goto(`${BASE}#token=${encodeURIComponent(token)}`);
  await watching.page.getByRole("heading", { name: "Overview", level: 1 }).waitFor();
  return watching;
}

/** Opens a view, and waits until it has content. */
export async function visit(page, hash) {
  const path = hash.replace(/^#\//, "").split("?")[0];
  await page.evaluate(to => { location.hash = to; }, hash);
  await page.locator(`main[data-path="${path}"]`).waitFor();
  await page.waitForFunction(() => !document.querySelector("main [aria-busy]") && document.querySelector("main .pile > *"));
}
