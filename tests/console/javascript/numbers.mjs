// Sequence numbers stay exact on their way through the console.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const { encode, indented, parse } = await import(pathToFileURL(process.env.API));
assert.equal(parse('{"next": 9223372036854775807}').next, 9223372036854775807n);
assert.deepEqual(parse('[1.2345678901234567, -9007199254740993, 12]'), [1.2345678901234567, -9007199254740993n, 12]);
const text = '{"body": "\\"9007199254740993, [\\\\\\": 9007199254740993", "n": 1e300}';
assert.deepEqual(parse(text), JSON.parse(text));
assert.equal(encode({ numbers: [9223372036854775807n], of: "1" }), '{"numbers":[9223372036854775807],"of":"1"}');
const exact = '{"id": 9007199254740993, "price": 1.0, "a": 1, "a": 2, "e": {}, "l": [], "s": "{\\"}"}';
assert.equal(indented(exact).replace(/\s+/g, ""), exact.replace(/\s+/g, ""));
assert.ok(indented(exact).includes('\n  "price": 1.0,\n'));
assert.equal(indented("not {json"), "not {json");
assert.equal(indented('[{"s": "[ ]"}, [ ], {"e": { } }]'), '[\n  {\n    "s": "[ ]"\n  },\n  [],\n  {\n    "e": {}\n  }\n]');
// Deep brackets need little more room than the text.
const deep = "[".repeat(400_000) + "1" + "]".repeat(400_000);
assert.ok(indented(deep).length < 2 * deep.length);
assert.equal(indented(deep).replace(/\s+/g, ""), deep);
const quotes = JSON.stringify({ body: '"'.repeat(5_000_000), n: 1 });
assert.equal(parse(quotes).body.length, 5_000_000);
