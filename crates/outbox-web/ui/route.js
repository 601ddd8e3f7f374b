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

/** The name of an event in a path: its id, or its place in the table where a URL would swallow the id. */
export const named = event => (/^\.{0,2}$/.test(event.id) ? `seq:${event.seq}` : event.id);

/** Shows the same once more. */
export function again() {
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Goes there. */
export function go(path, query) {
  location.hash = href(path, query);
}
