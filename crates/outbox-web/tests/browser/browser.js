// A browser, signed in, that writes down what it should not see: errors, and requests to elsewhere.

import assert from "node:assert/strict";

import { chromium } from "playwright-core";

export const BASE = required("OUTBOX_WEB_URL");
export const TOKEN = required("OUTBOX_WEB_TOKEN");
export const VIEWS = ["overview", "events", "dead", "keys", "publishers", "joins", "databases", "nodes", "audit"];

/** How long to wait for a page and for a relay. */
export const PATIENCE = 120_000;

function required(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: see README.md`);
  return value;
}

/** One for all tests of a file. */
export function launch() {
  return chromium.launch({
    executablePath: process.env.OUTBOX_CHROMIUM ?? "/usr/bin/chromium",
    timeout: 180_000,
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}

/** A context of its own, which waits for as long as a busy machine takes. */
export async function newContext(browser, options) {
  const context = await browser.newContext(options);
  context.setDefaultTimeout(PATIENCE);
  return context;
}

/** A page that is signed in. `seen` tells what went wrong on it; `check` fails the test if anything did. */
export async function signIn(browser, { token = TOKEN, width = 1440, height = 900 } = {}) {
  const context = await newContext(browser, { viewport: { width, height } });
  const page = await context.newPage();
  const seen = { errors: [], elsewhere: [], dialogs: [] };
  page.on("console", message => { if (message.type() === "error") seen.errors.push(message.text()); });
  page.on("pageerror", error => seen.errors.push(error.message));
  page.on("dialog", dialog => { seen.dialogs.push(dialog.message()); dialog.dismiss(); });
  context.on("request", request => { if (new URL(request.url()).origin !== new URL(BASE).origin) seen.elsewhere.push(request.url()); });
  await page.goto(`${BASE}#token=${encodeURIComponent(token)}`);
  await page.getByRole("heading", { name: "Overview", level: 1 }).waitFor();
  const check = () => {
    assert.deepEqual(seen, { errors: [], elsewhere: [], dialogs: [] });
  };
  return { context, page, seen, check };
}

/** Goes to a view of the page that is open, and waits until it shows something. */
export async function visit(page, hash) {
  const path = hash.replace(/^#\//, "").split("?")[0];
  await page.evaluate(to => { location.hash = to; }, hash);
  await page.locator(`main[data-path="${path}"]`).waitFor();
  await page.waitForFunction(() => !document.querySelector("main [aria-busy]") && document.querySelector("main .pile > *"));
}
