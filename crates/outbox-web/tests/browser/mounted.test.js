// The dashboard below a path of an application that signs its users in itself: the example
// `mounted`.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { launch, visit, watched } from "./browser.js";

const SHOP = process.env.OUTBOX_WEB_MOUNTED_URL;
const options = { skip: !SHOP };

let browser;
before(async () => { browser = await launch(); });
after(() => browser?.close());

/** A page on which a user of the shop has signed in, with the button of the shop. */
async function signInAt(name) {
  const watching = await watched(browser, { base: SHOP });
  await watching.page.goto(SHOP);
  await watching.page.getByRole("button", { name: `Sign in as ${name}` }).click();
  return watching;
}

const heading = (page, name) => page.getByRole("heading", { name, level: 1, exact: true }).waitFor();

/** Opens a dead event from the list, and replays it. */
async function replay(page) {
  await visit(page, "#/dead?event_type=bill.sent");
  await page.getByRole("table", { name: "Dead events", exact: true }).locator("tr[data-row] a").first().click();
  await page.getByRole("button", { name: "Replay", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Replay event" }).click();
  await page.getByText("Event replayed.").waitFor();
}

test("the application's user sees the dashboard at once, below its path, and moves in it", options, async () => {
  const { page, context, check } = await signInAt("ada");
  await heading(page, "Overview");
  assert.equal(page.url(), `${SHOP}ops`);
  assert.equal(await page.getByLabel("Token").count(), 0);
  await page.locator(".who", { hasText: "ada" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Sign out" }).count(), 0, "the shop has its own");
  await page.locator(".live-text", { hasText: /^live$/ }).waitFor();
  await page.locator(".tile", { hasText: "Dead" }).first().locator("b").filter({ hasText: /^[1-9]/ }).waitFor();
  await page.getByRole("navigation", { name: "Views" }).getByRole("link", { name: "Events" }).click();
  await heading(page, "Events");
  assert.equal(page.url(), `${SHOP}ops#/events`);
  await page.locator("tr[data-row] a").first().click();
  await page.getByRole("heading", { name: "Timeline" }).waitFor();
  assert.ok(page.url().startsWith(`${SHOP}ops#/events/`), page.url());
  await page.reload();
  await page.getByRole("heading", { name: "Timeline" }).waitFor();
  check();
  await context.close();
});

test("the dashboard also opens with a slash at the end, and links to the documentation and back", options, async () => {
  const { page, context, check } = await signInAt("ada");
  await heading(page, "Overview");
  await page.goto(`${SHOP}ops/`);
  await heading(page, "Overview");
  await page.getByRole("link", { name: "REST API" }).click();
  await heading(page, "outbox API");
  await page.locator("summary", { hasText: "/api/outbox/overview" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Show document" }).count(), 0);
  await page.getByRole("link", { name: "Dashboard" }).click();
  await heading(page, "Overview");
  check();
  await context.close();
});

test("a change is made in the name of the application's user", options, async () => {
  const { page, context, check } = await signInAt("ada");
  await heading(page, "Overview");
  await replay(page);
  await visit(page, "#/audit");
  await page.getByRole("row").filter({ hasText: "event.replay" }).filter({ hasText: "ada" }).first().waitFor();
  check();
  await context.close();
});

test("a change after the end of the CSRF cookie fetches a new one", options, async () => {
  const { page, context, seen } = await signInAt("ada");
  await heading(page, "Overview");
  await context.clearCookies({ name: /^outbox_csrf/ });
  await replay(page);
  assert.deepEqual(seen.errors.filter(error => !error.includes("403")), []);
  await context.close();
});

test("a change is not made in the name of another user who has signed in meanwhile", options, async () => {
  const { page, context, seen } = await signInAt("ada");
  await heading(page, "Overview");
  const other = await context.newPage();
  await other.goto(SHOP);
  await other.getByRole("button", { name: "Sign in as bob" }).click();
  await other.locator(".who", { hasText: "bob" }).waitFor();
  // The page of ada still has its buttons: the server and the page refuse.
  await visit(page, "#/dead?event_type=bill.sent");
  await page.getByRole("table", { name: "Dead events", exact: true }).locator("tr[data-row] a").first().click();
  await page.getByRole("button", { name: "Replay", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Replay event" }).click();
  await page.locator(".who", { hasText: "bob" }).waitFor();
  const button = page.getByRole("button", { name: "Replay", exact: true });
  await button.waitFor();
  assert.equal(await button.getAttribute("title"), "Needs the role operate; you have read.");
  assert.deepEqual(seen.errors.filter(error => !error.includes("403")), []);
  await context.close();
});

test("without access there is a page that says so, and no form", options, async () => {
  const { page, context } = await watched(browser, { base: SHOP });
  for (const path of ["ops", "ops/"]) {
    const answer = await page.goto(`${SHOP}${path}`);
    assert.equal(answer.status(), 403);
    await heading(page, "No access");
    await page.getByText("has not signed you in").waitFor();
    assert.equal(await page.locator("input, button, script").count(), 0);
    const styled = await page.evaluate(() => getComputedStyle(document.querySelector(".card")).paddingTop);
    assert.equal(styled, "28px", "with its styles");
  }
  await context.close();
  const eve = await signInAt("eve");
  await heading(eve.page, "No access");
  await eve.context.close();
});

test("an open dashboard says so when the application signs its user out", options, async () => {
  const { page, context } = await signInAt("ada");
  await heading(page, "Overview");
  await page.request.post(`${SHOP}sign-out`);
  await page.evaluate(() => { location.hash = "#/nodes"; });
  await page.getByText("the application has not signed you in", { exact: false }).waitFor();
  assert.equal(await page.getByLabel("Token").count(), 0);
  assert.equal(await page.locator(".shell").count(), 0);
  await context.close();
});
