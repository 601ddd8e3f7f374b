// Functions that need a browser but no data: JSON formatting, error grouping, filters.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { BASE, launch } from "./browser.js";

let browser;
let page;
before(async () => {
  browser = await launch();
  page = await browser.newPage();
  await page.goto(BASE);
});
after(() => browser?.close());

/** Calls an exported function of a module of the dashboard. */
const call = (file, name, ...args) => page.evaluate(
  async ([from, what, given]) => (await import(from))[what](...given), [new URL(file, BASE).href, name, args]);

test("formatting JSON keeps every digit, escape and empty value", async () => {
  const text = '{"id":12345678901234567890,"half":1.50,"text":"a \\"quoted\\" \\u00e9, {not} [a] : list","none":[],"nothing":{},"in":[1,{"a":null}]}';
  const pretty = await call("json.js", "pretty", text);
  assert.equal(pretty, `{
  "id": 12345678901234567890,
  "half": 1.50,
  "text": "a \\"quoted\\" \\u00e9, {not} [a] : list",
  "none": [],
  "nothing": {},
  "in": [
    1,
    {
      "a": null
    }
  ]
}`);
  assert.equal(await call("json.js", "compact", pretty), text);
});

test("invisible and direction-changing characters are shown as escapes", async () => {
  assert.equal(await call("dom.js", "visible", "a\u202eb\u2066c\u200fd\u009b2J\u001b[0m\u2028\u0000"),
    "a\\u{202e}b\\u{2066}c\\u{200f}d\\u{9b}2J\\u{1b}[0m\\u{2028}\\u{0}");
  assert.equal(await call("dom.js", "visible", "two\n\tlines, Zürich, 東京"), "two\n\tlines, Zürich, 東京");
  const shown = await page.evaluate(async from => {
    const { h } = await import(from);
    return h("a", { title: "\u202ex" }, "\u202ey").outerHTML;
  }, new URL("dom.js", BASE).href);
  assert.equal(shown, '<a title="\\u{202e}x">\\u{202e}y</a>');
});

test("text that is not JSON is unchanged", async () => {
  for (const text of ["", "plain words", "{\"a\":", "<b>1</b>"]) {
    assert.equal(await call("json.js", "pretty", text), text);
    assert.equal(await call("json.js", "compact", text), text);
  }
});

test("of two errors only the words that differ are marked", async () => {
  assert.deepEqual(await call("diff.js", "diff", "order 17 is closed", "order 18 is closed"), [
    { kind: "same", text: "order " }, { kind: "gone", text: "17" }, { kind: "new", text: "18" }, { kind: "same", text: " is closed" }]);
  const long = "word ".repeat(5_000);
  const parts = await call("diff.js", "diff", long, `${long}more`);
  assert.equal(parts.length, 2, "too long to compare: shown one after the other");
});

test("typed filters are parsed", async () => {
  assert.deepEqual(await call("filter.js", "parse", 'type:order.placed tenant:"a b" newer:2h'),
    { filter: { event_type: "order.placed", tenant_id: "a b", within: "2h" }, id: null });
  assert.deepEqual(await call("filter.js", "parse", "01JD2Q7M3T5V9XKQ8B4N6C0ZRA"), { filter: {}, id: "01JD2Q7M3T5V9XKQ8B4N6C0ZRA" });
  await assert.rejects(call("filter.js", "parse", "colour:red"), /Unknown filter “colour:”/);
});

test("errors that differ only in numbers and ids are grouped", async () => {
  const reason = error => call("views/dead.js", "reason", error);
  assert.equal(await reason("order 17 of 01JD2Q7M3T5V9XKQ8B4N6C0ZRA is closed"), await reason("order 4711 of 01JD2Q7M3T5V9XKQ8B4N6C0ZRB is closed"));
  assert.notEqual(await reason("10.0.0.1:80 answers 404"), await reason("10.0.0.1:80 answers 503"));
});

test("numbers and times are short", async () => {
  for (const [ms, text] of [[0, "0 ms"], [999, "999 ms"], [1_500, "1.5 s"], [90_000, "90 s"], [7_000_000, "117 min"], [90_000_000, "25 h"]]) {
    assert.equal(await call("format.js", "span", ms), text);
  }
  assert.equal(await call("format.js", "counted", { count: 10_000, more: true }), "10,000+");
  assert.equal(await call("format.js", "rate", 0.01), "<0.1");
});

test("a gap in the history stays a gap in the chart", async () => {
  const points = [0, 1, 2, 60, 61].map(second => ({ at: second * 1_000, delivered: 10 }));
  const drawn = await call("series.js", "buckets", points, 120_000, ["delivered"]);
  assert.ok(drawn.some(point => point.delivered === undefined), JSON.stringify(drawn));
});

test("an event is linked by its sequence number if its id cannot be used in a path", async () => {
  for (const [id, name] of [["01JD2Q", "01JD2Q"], ["", "seq:7"], ["..", "seq:7"], ["seq:4711", "seq:7"], ["seq:x\ny", "seq:7"], ["\ufffd", "seq:7"], ["my-seq:1", "my-seq:1"]]) {
    assert.equal(await call("route.js", "named", { id, seq: 7 }), name, JSON.stringify(id));
  }
});
