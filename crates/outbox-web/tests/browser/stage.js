// Sets the stage with the real command: a database, a receiver that fails once, a relay, the events that the tests look for.
// Then runs the tests. `OUTBOX_BIN=target/debug/outbox npm run staged`

import { execFile, spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

const BIN = resolve(process.env.OUTBOX_BIN ?? "../../../../target/debug/outbox");
const TOKENS = { admin: "the-admin-of-the-browser-tests", read: "a-reader-of-the-browser-tests" };
const run = promisify(execFile);

const folder = await mkdtemp(join(tmpdir(), "outbox-browser-"));
const database = `sqlite:${join(folder, "shop.db")}`;
const receiver = await receive();
const port = await freePort();
const relay = await startRelay();
let code = 1;
try {
  await ready();
  await seed();
  const traffic = setInterval(() => send("browser.traffic", { at: Date.now() }).catch(() => {}), 400);
  code = await tests();
  clearInterval(traffic);
} finally {
  relay.kill("SIGTERM");
  receiver.close();
  await new Promise(done => relay.once("exit", done));
  await rm(folder, { recursive: true, force: true });
}
process.exit(code);

/** Fails the first two attempts at every event, and takes the third: the event dies, and a replay brings it home. */
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

async function freePort() {
  const probe = createServer();
  await new Promise(done => probe.listen(0, "127.0.0.1", done));
  const { port: free } = probe.address();
  await new Promise(done => probe.close(done));
  return free;
}

async function startRelay() {
  const config = join(folder, "outbox.toml");
  await writeFile(config, `
mode = "ordered"
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
listen = "127.0.0.1:${port}"
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
  const started = spawn(BIN, ["relay", "--config", config], { stdio: ["ignore", "inherit", "inherit"] });
  started.once("error", error => { throw error; });
  return started;
}

async function ready() {
  for (let tries = 0; tries < 150; tries++) {
    if (relay.exitCode !== null) throw new Error(`the relay ended with ${relay.exitCode}`);
    const answer = await fetch(`http://127.0.0.1:${port}/readyz`).catch(() => null);
    if (answer?.ok) return;
    await sleep(100);
  }
  throw new Error("the relay is not ready after 15 s");
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
  // No route is for it: it is dead at once, and its error names it.
  await send("browser.<b>html</b>", { note: "<img src=x onerror=alert(1)>" });
  // No route is for it either: an event without a destination holds back its key for all destinations.
  await send("browser.key", { step: 1 }, "--key", "browser-key");
  await send("browser.behind", { step: 2 }, "--key", "browser-key");
  await send("browser.later", {}, "--after", "1h");
  for (let n = 0; n < 20; n++) await send("browser.traffic", { n });
  for (let tries = 0; tries < 150; tries++) {
    if (await dead() >= 6) return;
    await sleep(200);
  }
  throw new Error("the events that are to die do not");
}

async function dead() {
  const url = `http://127.0.0.1:${port}/api/outbox/overview`;
  const answer = await fetch(url, { headers: { authorization: `Bearer ${TOKENS.admin}` } });
  return (await answer.json()).dead?.count ?? 0;
}

function tests() {
  const env = { ...process.env, OUTBOX_WEB_URL: `http://127.0.0.1:${port}/`, OUTBOX_WEB_TOKEN: TOKENS.admin, OUTBOX_WEB_READ_TOKEN: TOKENS.read };
  const child = spawn(process.execPath, ["--test", "--test-concurrency=1", ...process.argv.slice(2)], { env, stdio: "inherit" });
  return new Promise(done => child.once("exit", exit => done(exit ?? 1)));
}
