// Sequence numbers stay exact on their way through the console.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const { encode, parse } = await import(pathToFileURL(process.env.API));
assert.equal(parse('{"next": 9223372036854775807}').next, "9223372036854775807");
assert.deepEqual(parse('[1.2345678901234567, -9007199254740993, 12]'), [1.2345678901234567, "-9007199254740993", 12]);
const text = '{"body": "\\"9007199254740993, [\\\\\\": 9007199254740993", "n": 1e300}';
assert.deepEqual(parse(text), JSON.parse(text));
assert.equal(encode({ numbers: [9223372036854775807n], of: "1" }), '{"numbers":[9223372036854775807],"of":"1"}');
