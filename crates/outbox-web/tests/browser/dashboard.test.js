// Views of the dashboard: live data, wide and narrow screens, keyboard.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { BASE, PATIENCE, TOKEN, VIEWS, launch, newContext, signIn, visit } from "./browser.js";

let browser;
before(async () => { browser = await launch(); });
after(() => browser?.close());

/** Presses `g` and a letter until the view shows: the page ignores a `g` after 1.5 s. */
async function go(page, key, title) {
  const heading = page.getByRole("heading", { name: title, level: 1, exact: true });
  const until = Date.now() + PATIENCE;
  let shown = false;
  while (!shown) {
    assert.ok(Date.now() < until, `${title} does not show`);
    await page.keyboard.press("g");
    await page.keyboard.press(key);
    shown = await heading.waitFor({ timeout: 5_000 }).then(() => true, () => false);
  }
}

test("the token leaves the address as soon as it is exchanged", async () => {
  const { page, context, check } = await signIn(browser);
  assert.ok(!page.url().includes("token="), page.url());
  await page.goBack().catch(() => {});
  assert.ok(!page.url().includes("token="), "the token is not in the history");
  check();
  await context.close();
});

test("a wrong token is rejected, and is not kept in the field", async () => {
  const context = await newContext(browser);
  const page = await context.newPage();
  await page.goto(BASE);
  await page.getByLabel("Token").fill("certainly-not-a-token");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("Invalid token.").waitFor();
  assert.equal(await page.getByLabel("Token").inputValue(), "");
  await context.close();
});

test("live data is shown", async () => {
  const { page, context, check } = await signIn(browser);
  await page.locator(".live-text", { hasText: /^live$/ }).waitFor();
  await page.locator(".chart").first().locator("path.line.delivered").waitFor({ state: "attached", timeout: PATIENCE });
  const delivered = page.locator(".chart").first().locator(".legend li", { hasText: "Delivered" }).locator("b");
  await page.waitForFunction(el => /[1-9]/.test(el.textContent), await delivered.elementHandle(), { timeout: PATIENCE });
  for (const tile of ["Due", "Claimed", "Delayed", "Retrying", "Dead"]) {
    // The tiles have a request of their own, which may complete after that of the chart.
    const number = page.locator(".tile", { hasText: tile }).first().locator("b");
    await number.filter({ hasText: /^[\d,]+\+?$/ }).waitFor({ timeout: PATIENCE });
  }
  assert.ok(await page.getByRole("table", { name: "By type" }).getByRole("row").count() > 1);
  check();
  await context.close();
});

test("a lost live connection is shown, and reconnects automatically", async () => {
  const { page, context } = await signIn(browser);
  await page.locator(".live-text", { hasText: /^live$/ }).waitFor();
  await page.route("**/api/outbox/live*", route => route.abort());
  await page.reload();
  await page.getByText("Live connection lost.").waitFor();
  await page.unroute("**/api/outbox/live*");
  await page.getByText("Live connection lost.").waitFor({ state: "hidden", timeout: PATIENCE });
  await context.close();
});

test("every view opens without an error, and no request leaves the machine", async () => {
  const { page, context, check } = await signIn(browser);
  for (const view of VIEWS) {
    await visit(page, `#/${view}`);
    await page.locator("h1").waitFor();
    assert.equal(await page.locator(".state.failed").count(), 0, view);
  }
  for (const status of ["pending", "retry", "done", "dead"]) {
    await visit(page, `#/events?status=${status}`);
    assert.equal(await page.locator(".state.failed").count(), 0, status);
  }
  check();
  await context.close();
});

test("the content security policy allows no other hosts and no inline code", async () => {
  const context = await newContext(browser);
  const answer = await context.request.get(BASE);
  const policy = answer.headers()["content-security-policy"];
  assert.ok(policy.includes("frame-ancestors 'none'"), policy);
  assert.ok(!policy.includes("unsafe") && !policy.includes("http"), policy);
  assert.equal(answer.headers()["x-content-type-options"], "nosniff");
  await context.close();
});

for (const scheme of ["light", "dark"]) {
  test(`on a phone nothing is wider than the screen (${scheme})`, async () => {
    const { page, context, check } = await signIn(browser, { width: 390, height: 844 });
    await page.emulateMedia({ colorScheme: scheme });
    for (const view of VIEWS) {
      await visit(page, `#/${view}`);
      const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(wider <= 0, `${view} is ${wider} px too wide`);
    }
    await visit(page, "#/events?status=done");
    await page.locator("tr[data-row] a").first().click();
    await page.getByRole("heading", { name: "Timeline" }).waitFor();
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wider <= 0, `an event is ${wider} px too wide`);
    assert.ok(await page.getByRole("button", { name: "Navigation" }).isVisible());
    await page.getByRole("button", { name: "Navigation" }).click();
    await page.getByRole("navigation", { name: "Views" }).getByRole("link", { name: "Nodes" }).click();
    await page.getByRole("heading", { name: "Nodes", level: 1 }).waitFor();
    check();
    await context.close();
  });
}

test("the keyboard goes to views, to the filter and through rows", async () => {
  const { page, context, check } = await signIn(browser);
  for (const [key, title] of [["e", "Events"], ["d", "Dead letters"], ["k", "Blocked keys"], ["p", "Publishers"], ["j", "Joins"], ["n", "Nodes"], ["o", "Overview"]]) {
    await go(page, key, title);
  }
  await visit(page, "#/events?status=done");
  await page.locator("tr[data-row]").nth(1).waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  const second = await page.locator("tr[data-row] a").nth(1).getAttribute("href");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("href")), second);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Timeline" }).waitFor();
  await go(page, "e", "Events");
  await page.keyboard.press("/");
  assert.ok(await page.evaluate(() => document.activeElement.hasAttribute("data-filter")));
  await page.keyboard.press("Escape");
  await page.keyboard.press("?");
  await page.getByRole("heading", { name: "Keyboard shortcuts" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("heading", { name: "Keyboard shortcuts" }).waitFor({ state: "detached" });
  check();
  await context.close();
});

test("the selected theme is stored", async () => {
  const { page, context, check } = await signIn(browser);
  await page.getByRole("button", { name: "Theme: system" }).click();
  await page.getByRole("button", { name: "Theme: light" }).click();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.reload();
  await page.getByRole("button", { name: "Theme: dark" }).waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  check();
  await context.close();
});

test("a disabled button shows the role that it needs", { skip: !process.env.OUTBOX_WEB_READ_TOKEN }, async () => {
  const { page, context, check } = await signIn(browser, { token: process.env.OUTBOX_WEB_READ_TOKEN });
  await visit(page, "#/dead");
  const button = page.getByRole("button", { name: "Replay…" });
  assert.equal(await button.getAttribute("aria-disabled"), "true");
  assert.equal(await button.getAttribute("title"), "Needs the role operate; you have read.");
  await button.dispatchEvent("click");
  await page.locator(".toast", { hasText: "Needs the role operate" }).waitFor();
  assert.equal(await page.locator("dialog").count(), 0);
  check();
  await context.close();
});

test("after a session has ended, signing in returns to the same view", async () => {
  const { page, context, seen } = await signIn(browser);
  await visit(page, "#/nodes");
  await context.clearCookies();
  await page.getByLabel("Token").waitFor();
  await page.getByLabel("Token").fill(TOKEN);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Nodes", level: 1 }).waitFor();
  assert.ok(seen.errors.every(error => error.includes("401")), seen.errors.join("\n"));
  await context.close();
});

test("signing out ends the session", async () => {
  const { page, context } = await signIn(browser);
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Token").waitFor();
  assert.equal((await context.cookies()).filter(cookie => cookie.value).length, 0);
  await page.reload();
  await page.getByLabel("Token").waitFor();
  assert.equal(await page.locator(".shell").count(), 0);
  await context.close();
});
