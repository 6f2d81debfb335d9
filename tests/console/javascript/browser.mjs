// A real browser, with what every walk through the console needs.

import assert from "node:assert/strict";
import { access, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { setTimeout as pause } from "node:timers/promises";

const require = createRequire(`${process.env.NODE_HOME}/package.json`);
const { chromium } = require("playwright-core");
const AXE = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");

export const URL = process.env.URL;
const ARGUMENTS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
  // A site whose owner points its name to this machine.
  "--host-resolver-rules=MAP elsewhere.example 127.0.0.1",
];
//: Errors that walks provoke: the page shows those of the server, a browser rejects other sites, and
//: a report runs and loads nothing.
const EXPECTED = /Failed to load resource|net::ERR|has been blocked by CORS policy|(Blocked script execution in|Loading the image) '[^']*\/console\/reports\//;

/** Run a walk on a new page; any error of the page, and any dialog of a script, fails it. */
export async function walk(steps, viewport = { width: 1280, height: 900 }) {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ARGUMENTS });
  const context = await browser.newContext({ viewport });
  const wrong = [];
  // A second tab counts too.
  context.on("page", (page) => {
    page.setDefaultTimeout(180_000);
    page.on("pageerror", (error) => wrong.push(error.message));
    page.on("dialog", (dialog) => wrong.push(`a script opened a dialog: ${dialog.message()}`));
    page.on("console", (line) => {
      if (line.type() === "error" && !EXPECTED.test(line.text())) wrong.push(line.text());
    });
  });
  const page = await context.newPage();
  if (process.env.LATENCY_MS) {
    const tools = await context.newCDPSession(page);
    const bytes = Number(process.env.BYTES_PER_S);
    await tools.send("Network.emulateNetworkConditions", { offline: false, latency: Number(process.env.LATENCY_MS), downloadThroughput: bytes, uploadThroughput: bytes });
  }
  try {
    await steps(page, context);
    assert.deepEqual(wrong, []);
  } catch (error) {
    console.error(await page.locator("body").innerText().catch(() => ""));
    if (process.env.FAILED) await page.screenshot({ path: process.env.FAILED }).catch(() => {});
    throw error;
  } finally {
    await browser.close();
  }
}

/** Check a view for faults that shut people out. */
export async function accessible(page, view) {
  const found = await page.evaluate(async (source) => {
    if (!window.axe) (0, eval)(source);
    const { violations } = await window.axe.run();
    return violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) => `${one.id}: ${one.nodes[0].html}`);
  }, AXE);
  assert.deepEqual(found, [], view);
}

/** Open a view, and wait until it shows what it is about. */
export async function go(page, hash) {
  await page.goto(`${URL}/console/#/${hash}`);
  const [view, name] = hash.split("/");
  const title = view === "entity" ? `Entities / ${decodeURIComponent(name)}` : /Entities|Onibus/;
  await page.getByRole("heading", { level: 1, name: title }).waitFor();
}

/** Open a view of an entity. */
export const open = (page, name, tab = "figures") => go(page, `entity/${encodeURIComponent(name)}/${tab}`);

export const button = (page, name) => page.getByRole("button", { name, exact: true });
export const dialog = (page) => page.getByRole("dialog");
export const inDialog = (page, name) => dialog(page).locator(`[name=${name}]`);
export const notice = (page, text) => page.locator(".notice").filter({ hasText: text }).waitFor();
export const closed = (page) => dialog(page).waitFor({ state: "detached" });
export const messages = (page) => page.locator("table.messages tbody tr");
export const row = (page, name) => page.locator("table.messages").getByRole("row", { name });

/** Keep a picture for the documentation, if its maker asks: PICTURES=docs/pictures pytest tests/console. */
export async function picture(page, name) {
  if (!process.env.PICTURES) return;
  // The folder of a test is different each time, and nothing for a picture.
  await page.evaluate((folder) => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(folder, "/srv");
  }, process.env.FOLDER);
  await page.screenshot({ path: `${process.env.PICTURES}/${name}.png` });
}

/** Have the test do something to the server, and wait until it is done. */
export async function ask(what) {
  await writeFile(`${process.env.ASKS}/${what}`, "");
  for (;;) {
    if (await access(`${process.env.ASKS}/${what}.done`).then(() => true, () => false)) return;
    await pause(50);
  }
}
