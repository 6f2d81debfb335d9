// How much memory the browser needs for the console: prints the largest figures of a walk.

import { readFile } from "node:fs/promises";
import { button, go, open, walk } from "./browser.mjs";

const BIG = process.env.BIG;
//: Pages of the list of entities, and of a list of messages.
const ENTITY_PAGES = Number(process.env.ENTITY_PAGES);
const MESSAGE_PAGES = 25;

/** Return the memory of the process that shows the page, in bytes, and the largest so far. */
async function sample(session, client, before) {
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  const { metrics } = await client.send("Performance.getMetrics");
  const found = { heap: metrics.find((one) => one.name === "JSHeapUsedSize").value };
  for (const { id } of processInfo.filter((one) => one.type === "renderer")) {
    const rollup = await readFile(`/proc/${id}/smaps_rollup`, "utf8").catch(() => "");
    const sum = (...names) => names.reduce((total, name) => total + 1024 * Number(new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(rollup)?.[1] ?? 0), 0);
    const memory = { rss: sum("Rss"), shared: sum("Pss"), own: sum("Private_Clean", "Private_Dirty") };
    for (const [name, value] of Object.entries(memory)) found[name] = Math.max(found[name] ?? 0, value);
  }
  for (const [name, value] of Object.entries(found)) before[name] = Math.max(before[name] ?? 0, value);
}

// In a long list, the locators of Playwright would measure their own copies of all its strings.
const has = (page, selector, text) =>
  page.waitForFunction(([one, begin]) => [...document.querySelectorAll(one)].some((found) => found.textContent.startsWith(begin)), [selector, text]);
const press = (page, selector, place) => page.evaluate(([one, at]) => document.querySelectorAll(one)[at].click(), [selector, place]);
const pressNamed = (page, text) => page.evaluate((name) => [...document.querySelectorAll("button")].find((one) => one.textContent === name).click(), text);

await walk(async (page, context) => {
  const session = await context.browser().newBrowserCDPSession();
  const client = await context.newCDPSession(page);
  await client.send("Performance.enable");
  const largest = {};
  const look = () => sample(session, client, largest);
  await page.goto("about:blank");
  const empty = {};
  await sample(session, client, empty);
  await go(page, "");
  await page.getByRole("link", { name: BIG, exact: true }).waitFor();
  await look();
  for (let count = 0; count + 1 < ENTITY_PAGES; count += 1) {
    await button(page, "Next").click();
    await page.getByText(`${(count + 1) * 100 + 1} to`.replace(/^(\d)(\d{3})/, "$1,$2")).waitFor();
  }
  await look();
  await go(page, "pipeline");
  await page.getByRole("table").first().waitFor();
  await look();
  await open(page, BIG);
  await page.getByText("Messages per second").waitFor();
  await look();
  await open(page, BIG, "messages");
  for (let count = 1; count <= MESSAGE_PAGES; count += 1) {
    await has(page, ".bar > [role=status]", `${new Intl.NumberFormat("en-GB").format(count * 50)} found`);
    await has(page, ".bar > button:last-child", "Load more");
    await pressNamed(page, "Load more");
    if (count % 5 === 0) await look();
  }
  for (let count = 0; count < 20; count += 1) {
    await press(page, "table.messages tbody button", count);
    await has(page, ".detail h3", "Life so far");
  }
  await look();
  for (const tab of ["partitions", "readers", "settings"]) {
    await open(page, BIG, tab);
    await page.getByRole("heading", { level: 1, name: BIG }).waitFor();
    await look();
  }
  await open(page, "sessions", "sessions");
  await has(page, "tbody th", "s-");
  await look();
  await open(page, "dead", "dead-lettered");
  await has(page, "tbody th", "timeout");
  await has(page, ".bar > [role=status]", "50 found");
  await look();
  console.log(JSON.stringify({ empty, largest }));
});
