// Starts everything that the tests need with the `outbox` command: a database, a receiver that
// fails, a relay, and events. Then runs the tests. `OUTBOX_BIN=target/debug/outbox npm run staged`

import { execFile, spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

const BIN = resolve(process.env.OUTBOX_BIN ?? "../../../../target/debug/outbox");
const MOUNTED = resolve(process.env.OUTBOX_MOUNTED ?? "../../../../target/debug/examples/mounted");
const TOKENS = { admin: "the-admin-of-the-browser-tests", read: "a-reader-of-the-browser-tests" };
const run = promisify(execFile);

const folder = await mkdtemp(join(tmpdir(), "outbox-browser-"));
const database = `sqlite:${join(folder, "shop.db")}`;
const receiver = await receive();
const relay = await startRelay();
const port = await listening();
const shop = spawn(MOUNTED, ["127.0.0.1:0"], { stdio: ["ignore", "pipe", "inherit"] });
const mounted = startOf(shop);
mounted.catch(() => {});
let code = 1;
try {
  await ready();
  await seed();
  let over = false;
  const testing = tests(await mounted).finally(() => { over = true; });
  while (!over) {
    await send("browser.traffic", { at: Date.now() }).catch(() => {});
    await sleep(400);
  }
  code = await testing;
} finally {
  relay.kill("SIGTERM");
  shop.kill("SIGINT");
  receiver.close();
  await Promise.all([relay, shop].map(ended));
  await rm(folder, { recursive: true, force: true });
}
process.exit(code);

/**
 * Rejects the first two attempts of every event: the event is dead-lettered, and a replay delivers
 * it.
 */
async function receive() {
  const seen = new Map();
  const server = createServer((request, response) => {
    const id = request.headers["webhook-id"];
    seen.set(id, (seen.get(id) ?? 0) + 1);
    request.resume();
    response.writeHead(seen.get(id) > 2 ? 204 : 500).end();
  });
  await new Promise(done => server.listen(0, "127.0.0.1", done));
  return server;
}

async function startRelay() {
  const config = join(folder, "outbox.toml");
  await writeFile(config, `
mode = "ordered"
unrouted = "dead"
migrate = true
on-dead = "hold"
[database]
url = "${database}"
[poller]
interval = "200ms"
[retry]
max-attempts = 2
base-delay = "20ms"
[http]
listen = "127.0.0.1:0"
tokens = [{ name = "ada", role = "admin", token = "${TOKENS.admin}" }, { name = "rolf", role = "read", token = "${TOKENS.read}" }]
[publishers.browser-publisher.file]
path = "${join(folder, "events.jsonl")}"
[publishers.partner.webhook]
url = "http://127.0.0.1:${receiver.address().port}/"
secrets = ["a secret of the browser tests"]
allow = ["127.0.0.1"]
[[routes]]
type = ["browser.dead", "browser.many", "browser.edit"]
to = "partner"
[[routes]]
type = ["browser.traffic", "browser.behind"]
to = "browser-publisher"
[[topics]]
name = "browser-topic"
to = ["browser-publisher"]
`);
  const started = spawn(BIN, ["relay", "--config", config], { stdio: ["ignore", "inherit", "pipe"] });
  started.once("error", error => { throw error; });
  return started;
}

/** The port of the relay, from its log. */
function listening() {
  return new Promise((done, failed) => {
    relay.once("exit", exit => failed(new Error(`the relay ended with ${exit}`)));
    createInterface({ input: relay.stderr }).on("line", line => {
      console.error(line);
      const address = /probes and metrics: http:\/\/127\.0\.0\.1:(\d+)/.exec(line);
      if (address) done(address[1]);
    });
  });
}

/** The URL of the application with the mounted dashboard: its first line. */
function startOf(shop) {
  return new Promise((done, failed) => {
    shop.once("error", failed);
    shop.once("exit", exit => failed(new Error(`the example mounted ended with ${exit}`)));
    createInterface({ input: shop.stdout }).on("line", line => {
      if (line.startsWith("http://")) done(line);
    });
  });
}

/** Waits until a process has ended. */
async function ended(child) {
  if (child.exitCode === null && child.signalCode === null) await new Promise(done => child.once("exit", done));
}

/** Waits until a condition holds. */
async function until(what, condition) {
  const end = Date.now() + 120_000;
  while (!await condition()) {
    if (relay.exitCode !== null) throw new Error(`the relay ended with ${relay.exitCode}`);
    if (Date.now() > end) throw new Error(`not within two minutes: ${what}`);
    await sleep(100);
  }
}

async function ready() {
  await until("the relay is ready", async () => {
    const answer = await fetch(`http://127.0.0.1:${port}/readyz`).catch(() => null);
    return answer?.ok;
  });
}

async function send(type, payload, ...more) {
  const text = typeof payload === "string" ? payload : JSON.stringify(payload);
  await run(BIN, ["send", "--database", database, "--type", type, "--payload", text, ...more]);
}

async function seed() {
  await send("browser.dead", { order: 42 });
  await send("browser.many", { n: 1 });
  await send("browser.many", { n: 2 });
  await send("browser.edit", '{"total":12345678901234567890}');
  // Without a route the event is dead-lettered at once, and its error names its type.
  await send("browser.<b>html</b>", { note: "<img src=x onerror=alert(1)>" });
  // Also without a route: an event without a destination blocks its key for all destinations.
  await send("browser.key", { step: 1 }, "--key", "browser-key");
  await send("browser.behind", { step: 2 }, "--key", "browser-key");
  await send("browser.later", {}, "--after", "1h");
  for (let n = 0; n < 20; n++) await send("browser.traffic", { n });
  await until("six events are dead", async () => await dead() >= 6);
}

async function dead() {
  const url = `http://127.0.0.1:${port}/api/outbox/overview`;
  const answer = await fetch(url, { headers: { authorization: `Bearer ${TOKENS.admin}` } });
  return (await answer.json()).dead?.count ?? 0;
}

function tests(mountedUrl) {
  const env = { ...process.env, OUTBOX_WEB_MOUNTED_URL: mountedUrl, OUTBOX_WEB_URL: `http://127.0.0.1:${port}/`, OUTBOX_WEB_TOKEN: TOKENS.admin, OUTBOX_WEB_READ_TOKEN: TOKENS.read };
  const child = spawn(process.execPath, ["--test", "--test-concurrency=1", ...process.argv.slice(2)], { env, stdio: "inherit" });
  return new Promise(done => child.once("exit", exit => done(exit ?? 1)));
}
