// Where one is: `#/events?status=dead`. The database goes along in every link where there are several.

let database = null;

/** Puts this database into the links that are made from now on. */
export function linkDatabase(name) {
  database = name;
}

/** `{ path: ["events", "01J…"], query: { status: "dead" } }` */
export function current() {
  const hash = location.hash.replace(/^#\/?/, "");
  const [path, search = ""] = hash.split("?");
  const parts = path.split("/").filter(Boolean).map(decode);
  return { path: parts.length ? parts : ["overview"], query: Object.fromEntries(new URLSearchParams(search)) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a view: `href("events", id)` or `href(["events"], { status: "dead" })`. */
export function href(path, query = {}) {
  const parts = [path].flat().map(encodeURIComponent).join("/");
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries({ ...query, database })) {
    if (value !== undefined && value !== null && value !== "") search.set(key, value);
  }
  return `#/${parts}${search.size ? `?${search}` : ""}`;
}

/**
 * Whether an id can name its event in a path. Not if a URL would swallow it, if it has the form of a place in the table, or if
 * U+FFFD stands for an id that cannot be read.
 */
export const isName = id => !/^(\.{0,2}|\ufffd|seq:[^]*)$/.test(id);

/** The name of an event in a path: its id, or its place in the table where the id cannot name it. */
export const named = event => (isName(event.id) ? event.id : `seq:${event.seq}`);

/** Shows the same once more. */
export function again() {
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Goes there. */
export function go(path, query) {
  location.hash = href(path, query);
}
