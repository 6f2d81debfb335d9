// Every view and dialog: without serious faults for people with disabilities, and no wider than the
// window, in light and dark colours, at 1280 and at 400 pixels.

import assert from "node:assert/strict";
import { accessible, button, closed, dialog, go, messages, open, picture, walk } from "./browser.mjs";

const enter = async (page, name) => {
  await button(page, name).first().click();
  await dialog(page).waitFor();
};

//: The name of a view → how to open it. A dialog is closed again with Escape.
const VIEWS = {
  overview: async (page) => {
    await go(page, "");
    await page.getByRole("link", { name: "orders", exact: true }).waitFor();
  },
  "new entity": async (page) => {
    await enter(page, "New entity");
    await dialog(page).getByText("More settings").click();
  },
  keys: async (page) => enter(page, "Keys"),
  pipeline: async (page) => {
    await go(page, "pipeline");
    await page.getByRole("row", { name: /jobs messages/ }).waitFor();
  },
  figures: async (page) => {
    await open(page, "orders");
    await page.getByText("Messages per second").waitFor();
  },
  send: async (page) => enter(page, "Send"),
  pause: async (page) => enter(page, "Pause"),
  purge: async (page) => enter(page, "Purge"),
  delete: async (page) => enter(page, "Delete"),
  messages: async (page) => {
    await open(page, "later", "messages");
    await messages(page).first().waitFor();
    await page.getByText("Receive with a lock").click();
  },
  message: async (page) => {
    await messages(page).first().getByRole("button").click();
    await page.getByLabel("Body", { exact: true }).waitFor();
    await page.getByText("Life so far").waitFor();
  },
  sections: async (page) => {
    await button(page, "AMQP sections").click();
    await page.getByLabel("message annotations").waitFor();
  },
  move: async (page) => enter(page, "Move messages that match"),
  "dead-lettered": async (page) => {
    await open(page, "jobs", "dead-lettered");
    await page.getByRole("row", { name: /timeout 300/ }).waitFor();
    await messages(page).first().waitFor();
  },
  resubmit: async (page) => enter(page, "Resubmit these 300"),
  sessions: async (page) => {
    await open(page, "invoices", "sessions");
    await page.getByRole("row", { name: /^customer-1/ }).waitFor();
  },
  groups: async (page) => {
    await open(page, "tenants", "groups");
    await page.getByRole("row", { name: /^loud/ }).waitFor();
  },
  receivers: async (page) => {
    await open(page, "tenants", "readers");
    await page.getByRole("row", { name: /a receiver/ }).waitFor();
  },
  partitions: async (page) => {
    await open(page, "orders", "partitions");
    await page.getByRole("row", { name: /^15 / }).waitFor();
  },
  settings: async (page) => {
    await open(page, "news/subscriptions/all", "settings");
    await page.getByRole("row", { name: /^weighty/ }).waitFor();
  },
  "change settings": async (page) => enter(page, "Change settings"),
  "add rule": async (page) => enter(page, "Add rule"),
  topic: async (page) => {
    await open(page, "news");
    await page.getByRole("link", { name: "news/subscriptions/all" }).waitFor();
  },
};

for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 400]) {
    await walk(async (page) => {
      await page.emulateMedia({ colorScheme });
      for (const [name, show] of Object.entries(VIEWS)) {
        const view = `${name}, ${colorScheme}, ${width} pixels`;
        await show(page);
        await accessible(page, view);
        assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width, view);
        if (name === "message" && width === 400) await picture(page, "small");
        if (await dialog(page).count()) {
          await page.keyboard.press("Escape");
          await closed(page);
        }
      }
    }, { width, height: 900 });
  }
}
console.log(Object.keys(VIEWS).length * 4);
