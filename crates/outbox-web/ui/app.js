// Entry point: session, database, and the current view.

import { get, onSignedOut, useCaller, useDatabase } from "./api.js";
import { fill, h } from "./dom.js";
import { keepTimes } from "./format.js";
import { listen } from "./keyboard.js";
import { connect, disconnect } from "./live.js";
import { signedInAs } from "./role.js";
import { current, go, linkDatabase } from "./route.js";
import { shell } from "./shell.js";
import { empty, failed, loading } from "./state.js";
import { applyTheme } from "./theme.js";
import { audit } from "./views/audit.js";
import { databases } from "./views/databases.js";
import { dead } from "./views/dead.js";
import { event } from "./views/event.js";
import { events } from "./views/events.js";
import { join, joins } from "./views/joins.js";
import { keys } from "./views/keys.js";
import { login } from "./views/login.js";
import { nodes } from "./views/nodes.js";
import { overview } from "./views/overview.js";
import { publishers } from "./views/publishers.js";

/**
 * A view gets `{ main, path, query, signal }`, fills `main`, and stops its timers and requests when
 * the signal is aborted.
 */
const VIEWS = { overview, events, dead, keys, publishers, joins, databases, nodes, audit };
const DETAILS = { events: event, joins: join };
const TITLES = { overview: "Overview", events: "Events", dead: "Dead letters", keys: "Blocked keys", publishers: "Publishers",
  joins: "Joins", databases: "Databases", nodes: "Nodes", audit: "Audit" };

const app = document.getElementById("app");
let frame = null;
let at = {};
let session = new AbortController();
let visit = new AbortController();

applyTheme();
keepTimes();
listen();
onSignedOut(problem => (problem.status === 401 ? signIn() : refuse(problem)));
addEventListener("hashchange", () => (frame ? move() : start()));
start();

/** Determines the current session. A token in the URL is removed from it first. */
async function start() {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (given) {
    history.replaceState(null, "", `${location.pathname}${location.search}#/overview`);
    return signIn(decodeURIComponent(given[1]));
  }
  fill(app, loading());
  try {
    open(await get("whoami"));
  } catch (error) {
    if (!error.signedOut) fill(app, failed(error, start));
  }
}

/** Shows the sign-in form. */
function signIn(token) {
  leave();
  login(app, { token, done: open });
}

/** Shows that the application has ended the access of this user. */
function refuse(problem) {
  leave();
  fill(app, h("main.login", { id: "main" }, h("div.card", null, failed(problem, () => location.reload()))));
  document.title = "No access · outbox";
}

function leave() {
  session.abort();
  visit.abort();
  disconnect();
  frame = null;
}

/** Builds the page around the views for a session. */
function open(me) {
  leave();
  session = new AbortController();
  useCaller(me);
  signedInAs(me);
  const names = me.databases;
  const wanted = current().query.database;
  const database = names.length > 1 ? (names.includes(wanted) ? wanted : names[0]) : null;
  useDatabase(database);
  linkDatabase(database);
  const switchDatabase = name => {
    linkDatabase(name);
    go(current().path[0]);
  };
  frame = shell({ me, databases: names, database, switchDatabase, signal: session.signal });
  at = { me, names, database };
  fill(app, frame.el);
  connect();
  show();
}

/** Handles a change of the URL: shows another view, or rebuilds the page for another database. */
function move() {
  const wanted = current().query.database;
  if (at.database && wanted !== at.database && at.names.includes(wanted)) open(at.me);
  else show();
}

/** Shows the view of the URL. */
function show() {
  const { path, query } = current();
  const [name, id] = path;
  const view = id ? DETAILS[name] : VIEWS[name];
  visit.abort();
  visit = new AbortController();
  frame.at(name);
  document.title = `${id ? `${id} · ` : ""}${TITLES[name] ?? "Not found"} · outbox`;
  const page = h("div.pile");
  const moved = frame.main.dataset.path !== path.join("/");
  frame.main.dataset.path = path.join("/");
  fill(frame.main, page);
  if (moved) scrollTo(0, 0);
  if (view) view({ main: page, path, query, signal: visit.signal });
  else fill(page, empty("Page not found.", "Choose a view on the left."));
}
