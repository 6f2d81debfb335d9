// The console with a keyboard alone: no step of this walk uses a pointer.

import assert from "node:assert/strict";
import { closed, dialog, go, messages, notice, open, walk } from "./browser.mjs";

/** Describe where the focus is. */
const focused = (page) => page.evaluate(() => {
  const { tagName, name, textContent, ariaLabel } = document.activeElement;
  return `${tagName.toLowerCase()} ${ariaLabel || name || (tagName === "MAIN" ? "" : textContent.trim().slice(0, 60))}`.trim();
});

/** Press Tab until the focus is on something, at most so often. */
async function tabTo(page, wanted, most = 60, key = "Tab") {
  for (let count = 0; count < most; count += 1) {
    if (wanted.test(await focused(page))) return;
    await page.keyboard.press(key);
  }
  assert.fail(`${wanted} is not reached with ${most} times ${key}: ${await focused(page)}`);
}
const press = async (page, ...keys) => {
  for (const key of keys) await page.keyboard.press(key);
};
const focusIs = (page, wanted) => page.waitForFunction((text) => {
  const { tagName, id, textContent, ariaLabel } = document.activeElement;
  return `${tagName.toLowerCase()} ${id || ariaLabel || textContent.trim()}`.startsWith(text);
}, wanted);

await walk(async (page) => {
  await go(page, "");
  await page.getByRole("link", { name: "orders", exact: true }).waitFor();
  await press(page, "Tab");
  assert.equal(await focused(page), "button Skip to the content");
  await press(page, "Enter");
  await focusIs(page, "main content");

  // Search, and open what was found.
  await press(page, "/");
  assert.equal(await focused(page), "input Search by name");
  await page.keyboard.type("archive");
  await page.getByText("1 entity").waitFor();
  await tabTo(page, /^a archive$/);
  await press(page, "Enter");
  await page.getByRole("heading", { name: "Entities / archive" }).waitFor();
  await focusIs(page, "main content");
  assert.equal(await page.title(), "archive – Onibus");

  // Send a message; the focus comes back to the button that opened the dialog.
  await tabTo(page, /^button Send$/);
  await press(page, "Enter");
  await dialog(page).waitFor();
  await tabTo(page, /^textarea body$/);
  await page.keyboard.type("typed with keys");
  await tabTo(page, /^button Send$/);
  await press(page, "Enter");
  await closed(page);
  await notice(page, "sent message");
  await focusIs(page, "button Send");
  await tabTo(page, /^button Purge$/);
  await press(page, "Enter");
  await dialog(page).waitFor();
  await press(page, "Escape");
  await closed(page);
  await focusIs(page, "button Purge");

  // From tab to tab, then through a list of messages, into one and back.
  await tabTo(page, /^a Messages$/);
  await press(page, "Enter");
  await messages(page).first().waitFor();
  await open(page, "region/05", "messages");
  await messages(page).nth(2).waitFor();
  await tabTo(page, /^button 1$/);
  await press(page, "ArrowDown", "ArrowDown", "ArrowUp");
  assert.equal(await focused(page), "button 2");
  await press(page, "Enter");
  await page.getByRole("heading", { name: "Message 2", exact: true }).waitFor();
  await focusIs(page, "aside Message");
  await tabTo(page, /^button hex$/);
  await press(page, "Space");
  await page.getByLabel("Body", { exact: true }).getByText("00000000").waitFor();
  await tabTo(page, /^button Next message$/, 60, "Shift+Tab");
  await press(page, "Enter");
  await page.getByRole("heading", { name: "Message 3", exact: true }).waitFor();
  await press(page, "Escape");
  await page.getByLabel("Message", { exact: true }).waitFor({ state: "detached" });
  await focusIs(page, "button 2");

  // Resubmit by reason, with a dry run before.
  await open(page, "jobs", "dead-lettered");
  await page.getByRole("row", { name: /bad address 400/ }).waitFor();
  await tabTo(page, /^button Resubmit these 400$/);
  await press(page, "Enter");
  await dialog(page).waitFor();
  await tabTo(page, /^button Dry run$/);
  await press(page, "Enter");
  await page.getByText("400 would be resubmitted").waitFor();
  await tabTo(page, /^button Resubmit 400$/);
  await press(page, "Enter");
  await notice(page, "resubmitted 400");
  await closed(page);
  // Its row is gone, and the focus continues near it.
  await page.getByRole("row", { name: /bad address 400/ }).waitFor({ state: "detached" });
  await tabTo(page, /^button Resubmit these 300$/, 8);

  // Keys for the whole page, and their list.
  await press(page, "?");
  await dialog(page).getByText("Show all entities").waitFor();
  await press(page, "Escape");
  await closed(page);
  await press(page, "p");
  await page.getByRole("heading", { name: "Entities / Pipeline" }).waitFor();
  await tabTo(page, /^button Open report$/);
  await press(page, "g");
  await page.getByRole("heading", { name: "Entities", exact: true }).waitFor();

  // A tree folds, and columns sort.
  await page.getByRole("link", { name: "news/subscriptions/all" }).waitFor();
  await tabTo(page, /^button Subscriptions of news$/, 90);
  await press(page, "Enter");
  await page.getByRole("link", { name: "news/subscriptions/all" }).waitFor({ state: "detached" });
  await tabTo(page, /^button Active$/, 90, "Shift+Tab");
  await press(page, "Enter");
  await page.locator("tbody tr").first().getByRole("link", { name: "orders" }).waitFor();
});
