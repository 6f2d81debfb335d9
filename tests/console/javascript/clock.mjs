// A browser whose clock is wrong, or changes: it stays signed in, and ages are those of the server.

import assert from "node:assert/strict";
import { URL, button, go, inDialog, dialog, notice, open, walk } from "./browser.mjs";

const DAY = 86_400_000;

await walk(async (page) => {
  await page.clock.setFixedTime(Date.now() + DAY);
  await go(page, "");
  await page.getByLabel("Connection string or key name").fill(process.env.CONNECTION);
  await button(page, "Sign in").click();
  await page.getByRole("row", { name: /^orders .*\d+ (s|min)/ }).waitFor();
  for (const days of [-1, 30, 0]) {
    await page.clock.setFixedTime(Date.now() + days * DAY);
    await open(page, "orders");
    await page.getByText("Oldest message").waitFor();
    const response = await page.waitForResponse((one) => one.url().endsWith("/summary") && one.ok());
    await response.finished();
    assert.match(await page.locator(".figures div", { hasText: "Oldest message" }).locator("dd").innerText(), /^\d+ (s|min)$/);
    await button(page, "Send").click();
    await inDialog(page, "body").fill("x");
    await dialog(page).getByRole("button", { name: "Send" }).click();
    await notice(page, "sent message");
    assert.equal(await page.getByText("no longer accepts your key").count(), 0);
    await go(page, "");
    await page.getByRole("link", { name: "orders", exact: true }).waitFor();
  }
  assert.ok(URL);
});
