// Shows the OpenAPI document of this server. All content is inserted as text.

const METHODS = ["get", "post", "put", "delete"];
const form = document.getElementById("sign-in");

form.addEventListener("submit", event => {
  event.preventDefault();
  const token = document.getElementById("token");
  load({ authorization: `Bearer ${token.value.trim()}` });
  token.value = "";
});
load({});

async function load(headers) {
  const problem = document.getElementById("problem");
  problem.textContent = "";
  try {
    const answer = await fetch("openapi.json", { headers, credentials: "same-origin" });
    if (answer.ok) {
      form.hidden = true;
      return show(await answer.json());
    }
    const { type, detail } = await answer.json();
    // A token is of no use where the application identifies its users.
    const isOfApplication = type.endsWith(":no-access");
    form.hidden = isOfApplication;
    document.getElementById("refused").textContent = isOfApplication ? detail : "";
    if (headers.authorization) problem.textContent = detail;
  } catch {
    form.hidden = false;
    problem.textContent = "The server does not respond.";
  }
  return undefined;
}

function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) element.setAttribute(key, value);
  element.append(...children.flat().filter(child => child !== null && child !== undefined));
  return element;
}

/** Paragraphs, `code` and **strong**: the subset of Markdown that the document uses. */
function prose(text) {
  return (text ?? "").split(/\n\n+/).filter(Boolean).map(part => h("p", null,
    part.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map(word => {
      if (word.startsWith("`")) return h("code", null, word.slice(1, -1));
      if (word.startsWith("**")) return h("strong", null, word.slice(2, -2));
      return word;
    })));
}

function show(api) {
  const tags = new Map();
  for (const [path, item] of Object.entries(api.paths)) {
    for (const method of METHODS.filter(method => item[method])) {
      const [tag = "other"] = item[method].tags ?? [];
      tags.set(tag, [...(tags.get(tag) ?? []), operation(api, method, path, item[method])]);
    }
  }
  const sections = [...tags].map(([tag, operations]) => [h("h2", { id: tag }, tag), operations]);
  const schemas = Object.entries(api.components?.schemas ?? {}).map(([name, schema]) =>
    h("details", { id: `schema-${name}` }, h("summary", null, h("code", null, name)), prose(schema.description), json(schema)));
  document.getElementById("contents").replaceChildren(...[...tags.keys(), "schemas"].map(tag => h("a", { href: `#${tag}` }, tag)));
  document.getElementById("document").replaceChildren(
    ...prose(api.info.description), h("p", { class: "muted" }, `Version ${api.info.version}, OpenAPI ${api.openapi}`),
    ...sections.flat(2), h("h2", { id: "schemas" }, "schemas"), ...schemas);
}

function operation(api, method, path, spec) {
  const role = Object.values(spec.security?.[0] ?? {})[0]?.[0];
  const body = spec.requestBody?.content?.["application/json"]?.schema;
  return h("details", { id: spec.operationId ?? `${method}-${path}` },
    h("summary", null, h("span", { class: `method ${method}` }, method), h("code", null, path), " ", spec.summary ?? "",
      role ? h("span", { class: "role" }, role) : null),
    prose(spec.description),
    spec.parameters?.length ? [h("h3", null, "Parameters"), parameters(spec.parameters)] : null,
    body ? [h("h3", null, "Body"), schema(api, body)] : null,
    h("h3", null, "Responses"),
    h("table", null, Object.entries(spec.responses).map(([status, answer]) =>
      h("tr", null, h("th", { scope: "row" }, status), h("td", null, answer.description, content(answer))))));
}

function parameters(all) {
  return h("table", null, all.map(one => h("tr", null,
    h("th", { scope: "row" }, h("code", null, one.name), one.required ? "" : h("span", { class: "muted" }, " optional")),
    h("td", null, one.description ?? "", h("div", { class: "muted" }, limits(one.schema ?? {}))))));
}

function limits(schema) {
  const type = [schema.type ?? []].flat().filter(name => name !== "null").join(", ");
  const words = [type, schema.enum && `one of ${schema.enum.filter(Boolean).join(", ")}`, schema.pattern,
    schema.minimum !== undefined && `from ${schema.minimum}`, schema.maximum !== undefined && `to ${schema.maximum}`,
    schema.maxLength !== undefined && `at most ${schema.maxLength} characters`];
  return words.filter(Boolean).join(" · ");
}

function content(answer) {
  return Object.entries(answer.content ?? {}).map(([type, { schema: found }]) =>
    h("div", { class: "muted" }, `${type} `, found?.$ref ? link(found.$ref) : null));
}

const nameOf = ref => ref.split("/").pop();

function link(ref) {
  return h("a", { href: `#schema-${nameOf(ref)}` }, nameOf(ref));
}

function schema(api, found) {
  const whole = found.$ref ? api.components.schemas[nameOf(found.$ref)] : found;
  return [found.$ref ? h("p", null, link(found.$ref)) : null, whole.example ? json(whole.example) : json(whole)];
}

function json(value) {
  return h("pre", { tabindex: "0" }, JSON.stringify(value, null, 2));
}
