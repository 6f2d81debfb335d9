// Pages of other sites, and other names of this server: they change nothing and see nothing.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { URL, walk } from "./browser.mjs";

const PAGE = `<!doctype html><title>elsewhere</title>
<iframe id="framed" name="framed" src="${URL}/console/"></iframe><iframe name="posted"></iframe>
<form id="form" method="post" target="posted" enctype="text/plain" action="${URL}/v1/entities/orders/messages">
<input name='{"body": "by a form", "x' value='": 1}'></form>
<a href="${URL}/console/#/entity/orders/messages">a link</a>`;

await walk(async (page, context) => {
  const site = createServer((_, response) => response.setHeader("content-type", "text/html").end(PAGE));
  await new Promise((resolve) => site.listen(0, "127.0.0.1", resolve));
  try {
    await page.goto(`http://127.0.0.1:${site.address().port}/`);
    const read = await page.evaluate(async (url) => {
      const attempt = (path, options) => fetch(url + path, options).then(async (one) => one.type === "opaque" ? "sent" : one.text(), () => "rejected by the browser");
      const body = '{"body": "by a script"}';
      return Promise.all([
        attempt("/v1/overview"),
        attempt("/console/about.json"),
        attempt("/v1/entities/orders/messages", { method: "POST", body, headers: { "content-type": "application/json" } }),
        attempt("/v1/entities/orders/messages", { method: "POST", mode: "no-cors", body }),
        attempt("/v1/entities/orders/purge", { method: "POST", mode: "no-cors", body: "{}" }),
        attempt("/v1/queues/orders", { method: "DELETE" }),
      ]);
    }, URL);
    assert.deepEqual(read, ["rejected by the browser", "rejected by the browser", "rejected by the browser", "sent", "sent", "rejected by the browser"]);
    const posting = page.waitForResponse("**/v1/entities/orders/messages");
    await page.evaluate(() => document.getElementById("form").submit());
    assert.ok([401, 403].includes((await posting).status()));
    assert.ok(await page.frame("framed").evaluate(() => document.getElementById("app") === null));
    // A window that this page opens is refused as well.
    const [opened] = await Promise.all([context.waitForEvent("page"), page.evaluate((url) => { window.mine = window.open(`${url}/console/`); }, URL)]);
    await opened.waitForLoadState();
    assert.ok(await opened.evaluate(() => document.getElementById("app") === null));
    await opened.close();
    // The server under the name of a site that its owner points to this machine.
    for (const path of ["/console/", "/console/about.json", "/v1/overview", "/v1/entities/orders/messages/1/body"]) {
      const response = await page.goto(URL.replace("localhost", "elsewhere.example") + path);
      assert.ok([401, 403].includes(response.status()), path);
    }
  } finally {
    site.close();
  }
});
