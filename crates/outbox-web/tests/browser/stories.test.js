// Tasks of an operator: dead events, publishers, blocked keys, payloads, purge.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { PATIENCE, launch, signIn, visit } from "./browser.js";

let browser;
before(async () => { browser = await launch(); });
after(() => browser?.close());

/** Opens the first dead event of a type. */
async function openDead(page, type) {
  await visit(page, `#/dead?${new URLSearchParams({ event_type: type })}`);
  await page.getByRole("table", { name: "Dead events", exact: true }).locator("tr[data-row] a").first().click();
  await page.getByRole("heading", { name: "Timeline" }).waitFor();
}

const confirm = (page, name) => page.getByRole("dialog").getByRole("button", { name }).click();

test("a dead event is found, its reason read, replayed, and seen delivered", async () => {
  const { page, context, check } = await signIn(browser);
  await openDead(page, "browser.dead");
  await page.getByRole("heading", { level: 1 }).filter({ hasText: "Dead" }).waitFor();
  const error = await page.locator(".timeline .error-text").first().textContent();
  const explanation = await page.getByRole("region", { name: "Explanation" }).textContent();
  assert.match(explanation, /dead/i);
  assert.ok(error.length > 0 && explanation.includes(error), `${explanation} has ${error}`);
  await page.getByRole("button", { name: "Replay", exact: true }).click();
  await page.getByRole("dialog").getByText("becomes new").waitFor();
  await confirm(page, "Replay event");
  await page.getByText("Event replayed.").waitFor();
  await page.getByRole("heading", { level: 1 }).filter({ hasText: "Done" }).waitFor({ timeout: PATIENCE });
  await visit(page, "#/audit");
  await page.getByRole("row").filter({ hasText: "event.replay" }).first().waitFor();
  check();
  await context.close();
});

test("cancelling a dialog changes nothing", async () => {
  const { page, context, check } = await signIn(browser);
  await openDead(page, "browser.<b>html</b>");
  for (const name of ["Replay", "Skip"]) {
    await page.getByRole("button", { name, exact: true }).click();
    await confirm(page, "Cancel");
    await page.getByRole("dialog").waitFor({ state: "detached" });
  }
  await page.reload();
  await page.getByRole("heading", { level: 1 }).filter({ hasText: "Dead" }).waitFor();
  check();
  await context.close();
});

test("a bulk replay counts first and shows its progress", async () => {
  const { page, context, check } = await signIn(browser);
  await visit(page, "#/dead?event_type=browser.many");
  await page.getByRole("button", { name: "Replay…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("heading", { name: "Replay 2 dead events?" }).waitFor();
  await dialog.getByRole("spinbutton").fill("50");
  await confirm(page, "Replay 2");
  await page.locator(".job", { hasText: "2 of 2 replayed" }).filter({ hasText: "Finished" }).waitFor({ timeout: PATIENCE });
  check();
  await context.close();
});

test("replaying every dead event needs a typed confirmation", async () => {
  const { page, context, check } = await signIn(browser);
  await visit(page, "#/dead");
  await page.getByRole("button", { name: "Replay…" }).click();
  const yes = page.getByRole("dialog").getByRole("button", { name: /^Replay [\d,]+\+?$/ });
  assert.ok(await yes.isDisabled());
  await page.getByLabel(/to confirm/).fill("replay");
  assert.ok(await yes.isDisabled());
  await page.getByLabel(/to confirm/).fill("replay all");
  assert.ok(await yes.isEnabled());
  await confirm(page, "Cancel");
  check();
  await context.close();
});

test("HTML in a payload, an error and a type is shown as text", async () => {
  const { page, context, check } = await signIn(browser);
  await openDead(page, "browser.<b>html</b>");
  assert.match(await page.getByRole("heading", { level: 1 }).textContent(), /browser\.<b>html<\/b>/);
  assert.match(await page.getByRole("region", { name: "Explanation" }).textContent(), /<b>html<\/b>/);
  await page.getByText("Hidden. Every read has an audit entry.").waitFor();
  await page.getByRole("button", { name: "Show payload" }).click();
  await page.locator("pre.payload").waitFor();
  assert.match(await page.locator("pre.payload").textContent(), /"note": "<img src=x onerror=alert\(1\)>"/);
  await page.getByRole("button", { name: "Raw" }).click();
  assert.equal(await page.locator("pre.payload").textContent(), '{"note":"<img src=x onerror=alert(1)>"}');
  assert.equal(await page.locator("main img, main script, main h1 b, main pre b, .explain b").count(), 0);
  check();
  await context.close();
});

test("a payload is edited without changing other digits, and replayed", async () => {
  const { page, context, check } = await signIn(browser);
  await openDead(page, "browser.edit");
  await page.getByRole("button", { name: "Edit payload…" }).click();
  const area = page.getByRole("dialog").getByRole("textbox");
  assert.equal(await area.inputValue(), '{\n  "total": 12345678901234567890\n}', "formatted, with all digits");
  await area.fill("{ no json");
  await confirm(page, "Save");
  await page.getByText("Invalid JSON").waitFor();
  await area.fill('{\n  "total": 12345678901234567890,\n  "paid": true\n}');
  await confirm(page, "Save");
  await page.getByText("Payload saved, event replayed.").waitFor();
  await page.getByRole("heading", { level: 1 }).filter({ hasText: "Done" }).waitFor({ timeout: PATIENCE });
  await page.getByRole("button", { name: "Show payload" }).click();
  await page.getByRole("button", { name: "Raw" }).click();
  assert.equal(await page.locator("pre.payload").textContent(), '{"total":12345678901234567890,"paid":true}');
  check();
  await context.close();
});

test("a publisher is paused and resumed", async () => {
  const { page, context, check } = await signIn(browser);
  await visit(page, "#/publishers");
  const row = page.getByRole("row").filter({ hasText: "browser-publisher" }).filter({ hasText: "browser-topic" });
  await row.getByText("Active").waitFor();
  await row.getByRole("button", { name: "Pause" }).click();
  await confirm(page, "Pause");
  await row.getByText("Paused").waitFor();
  await row.getByRole("button", { name: "Resume" }).click();
  await confirm(page, "Resume");
  await row.getByText("Active").waitFor();
  check();
  await context.close();
});

test("a blocked key is unblocked by skipping its head", async () => {
  const { page, context, check } = await signIn(browser);
  await visit(page, "#/keys");
  const key = page.getByRole("article", { name: "Key browser-key", exact: true });
  await key.getByText(/[1-9][\d,]*\+? events? waits?/).waitFor();
  await key.getByRole("button", { name: "Skip head" }).click();
  await page.getByRole("dialog").getByText("never delivered").waitFor();
  await confirm(page, "Skip event");
  await key.waitFor({ state: "detached", timeout: PATIENCE });
  await visit(page, "#/events?status=done&ordering_key=browser-key");
  const behind = page.getByRole("row").filter({ hasText: "browser.behind" });
  const until = Date.now() + PATIENCE;
  while (await behind.count() === 0 && Date.now() < until) {
    await page.getByRole("button", { name: "Refresh" }).click();
    await page.waitForTimeout(500);
  }
  assert.equal(await behind.count(), 1, "the event behind the head was delivered");
  check();
  await context.close();
});

test("a pending event is cancelled, and then not found", async () => {
  const { page, context, seen } = await signIn(browser);
  await visit(page, "#/events?event_type=browser.later");
  await page.locator("tr[data-row] a").first().click();
  await page.getByRole("heading", { level: 1 }).filter({ hasText: "Waiting" }).waitFor();
  await page.getByRole("button", { name: "Cancel", exact: true }).click();
  await confirm(page, "Cancel event");
  await page.getByText("Event not found.").waitFor();
  // Browsers log every 404; no other error is expected.
  assert.ok(seen.errors.every(error => error.includes("404")), seen.errors.join("\n"));
  await context.close();
});

test("a purge counts first, and shows if there are no rows", async () => {
  const { page, context, check } = await signIn(browser);
  await visit(page, "#/databases");
  await page.getByRole("button", { name: "Purge…" }).click();
  await page.getByLabel("Older than").fill("soon");
  await confirm(page, "Count rows");
  await page.getByText("Invalid age: enter a number and a unit").waitFor();
  await page.getByLabel("Older than").fill("300d");
  await confirm(page, "Count rows");
  await page.getByText("No rows are that old.").waitFor();
  check();
  await context.close();
});
