// What people come for: a dead event, a publisher, a key.

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
  await confirm(page, "Replay it");
  await page.getByText("Replayed: it is on its way.").waitFor();
  await page.getByRole("heading", { level: 1 }).filter({ hasText: "Done" }).waitFor({ timeout: PATIENCE });
  await visit(page, "#/audit");
  await page.getByRole("row").filter({ hasText: "event.replay" }).first().waitFor();
  check();
  await context.close();
});

test("saying no changes nothing", async () => {
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

test("many are counted first, then replayed, with progress", async () => {
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

test("replaying everything asks for a word", async () => {
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
  await page.getByText("Hidden. Who looks at it is noted in the audit.").waitFor();
  await page.getByRole("button", { name: "Show payload" }).click();
  await page.locator("pre.payload").waitFor();
  assert.match(await page.locator("pre.payload").textContent(), /"note": "<img src=x onerror=alert\(1\)>"/);
  await page.getByRole("button", { name: "As it is stored" }).click();
  assert.equal(await page.locator("pre.payload").textContent(), '{"note":"<img src=x onerror=alert(1)>"}');
  assert.equal(await page.locator("main img, main script, main h1 b, main pre b, .explain b").count(), 0);
  check();
  await context.close();
});

test("a payload is edited without touching what was not, and replayed", async () => {
  const { page, context, check } = await signIn(browser);
  await openDead(page, "browser.edit");
  await page.getByRole("button", { name: "Edit payload…" }).click();
  const area = page.getByRole("dialog").getByRole("textbox");
  assert.equal(await area.inputValue(), '{\n  "total": 12345678901234567890\n}', "laid out, and no digit lost");
  await area.fill("{ no json");
  await confirm(page, "Save");
  await page.getByText("This is no JSON").waitFor();
  await area.fill('{\n  "total": 12345678901234567890,\n  "paid": true\n}');
  await confirm(page, "Save");
  await page.getByText("Saved and replayed.").waitFor();
  await page.getByRole("heading", { level: 1 }).filter({ hasText: "Done" }).waitFor({ timeout: PATIENCE });
  await page.getByRole("button", { name: "Show payload" }).click();
  await page.getByRole("button", { name: "As it is stored" }).click();
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
  await key.getByRole("button", { name: "Skip the head" }).click();
  await page.getByRole("dialog").getByText("never delivered").waitFor();
  await confirm(page, "Skip it");
  await key.waitFor({ state: "detached", timeout: PATIENCE });
  await visit(page, "#/events?status=done&ordering_key=browser-key");
  const behind = page.getByRole("row").filter({ hasText: "browser.behind" });
  const until = Date.now() + PATIENCE;
  while (await behind.count() === 0 && Date.now() < until) {
    await page.getByRole("button", { name: "Refresh" }).click();
    await page.waitForTimeout(500);
  }
  assert.equal(await behind.count(), 1, "what waited behind it was delivered");
  check();
  await context.close();
});

test("a pending event is taken back, and what is not there is told", async () => {
  const { page, context, seen } = await signIn(browser);
  await visit(page, "#/events?event_type=browser.later");
  await page.locator("tr[data-row] a").first().click();
  await page.getByRole("heading", { level: 1 }).filter({ hasText: "Waiting" }).waitFor();
  await page.getByRole("button", { name: "Cancel", exact: true }).click();
  await confirm(page, "Cancel the event");
  await page.getByText("There is no event with this id.").waitFor();
  // A browser notes every 404 that it gets; nothing else may be noted.
  assert.ok(seen.errors.every(error => error.includes("404")), seen.errors.join("\n"));
  await context.close();
});

test("purging counts first, and says when there is nothing to purge", async () => {
  const { page, context, check } = await signIn(browser);
  await visit(page, "#/databases");
  await page.getByRole("button", { name: "Purge…" }).click();
  await page.getByLabel("Older than").fill("soon");
  await confirm(page, "Count them");
  await page.getByText("How old? A number and a unit").waitFor();
  await page.getByLabel("Older than").fill("300d");
  await confirm(page, "Count them");
  await page.getByText("Nothing is that old: nothing to purge.").waitFor();
  check();
  await context.close();
});
