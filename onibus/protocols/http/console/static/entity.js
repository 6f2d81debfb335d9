// One entity: figures over time, messages, sessions, receivers, partitions, settings and rules.

import { html, useState } from "./preact.js";
import { admin, at, get, now } from "./api.js";
import { Purge, Send } from "./forms.js";
import { Messages } from "./messages.js";
import { Reading } from "./receivers.js";
import { Delete, Pause, Settings } from "./settings.js";
import { Chart, Failure, Sign, Table, Tabs, age, bytes, count, duration, level, link, number, time, useLoaded } from "./widgets.js";
import { useChanges } from "./watching.js";

const KINDS = ["queue", "topic", "subscription"];
const SESSIONS = 200;
//: Seconds after which an entity is loaded again: with a stream of its figures, and without.
const REST_S = 10;
const LOAD_S = 5;

/** Load what a key without Manage may see of an entity. */
async function summary(name, listens, signal) {
  const row = listens
    ? await get(at(name, "/summary"), signal)
    : (await get(`/v1/overview?limit=200&search=${encodeURIComponent(name)}`, signal)).rows.find((one) => one.name === name);
  if (!row) throw new Error(`there is no entity ${name}`);
  return { name, kind: row.kind, settings: {}, ...figuresOf(row), row };
}

/** The figures of an entity, from its row; zeros are left out there. */
const figuresOf = (row) => ({
  size_bytes: row.size_bytes ?? 0, availability: row.offline ? "limited" : "available",
  active_count: row.active ?? 0, held_count: row.held ?? 0, deferred_count: row.deferred ?? 0,
  scheduled_count: row.scheduled ?? 0, dead_lettered_count: row.dead_lettered ?? 0,
  duplicates_dropped: row.duplicates ?? 0,
});

/** Load an entity whose kind only the server knows. */
async function load(name, can, signal) {
  const seen = can("Listen") || !can("Manage") ? await summary(name, can("Listen"), signal) : null;
  const { requires_session = false, fair_delivery = false, fifo = false } = seen?.row || {};
  if (!can("Manage")) return { ...seen, settings: { ...seen.settings, requires_session, fair_delivery, fifo } };
  const kinds = seen ? [seen.kind] : name.includes("/subscriptions/") ? ["subscription"] : KINDS.slice(0, 2);
  for (const [place, kind] of kinds.entries()) {
    try {
      return { ...(await get(admin(kind, name), signal)), row: seen?.row };
    } catch (problem) {
      if (problem.status !== 404 || place === kinds.length - 1) throw problem;
    }
  }
  return null;
}

/** What an operator should know first: why messages do not move. */
function findings(info) {
  const { row = {}, settings } = info;
  const found = [];
  const ready = info.active_count - info.held_count;
  if (settings.status !== "active") found.push(["bad", `It is paused: its status is ${settings.status}.`]);
  if (info.availability === "limited") found.push(["bad", "A partition is offline: see Partitions."]);
  if (info.rules && !info.rules.length) found.push(["bad", "It has no rule, so it gets no message."]);
  if (info.active_count && !ready) found.push(["warn", `Receivers hold every active message (${number(info.held_count)}): see Receivers and readers.`]);
  if (info.kind !== "topic" && ready > 0 && !row.receivers && !row.gone_per_s && row.oldest_ms && level("oldest_ms", now() - Number(row.oldest_ms))) {
    found.push(["warn", `No receiver waits for messages. The oldest has waited for ${age(row.oldest_ms)}.`]);
  }
  if (info.dead_lettered_count) found.push([level("dead_lettered", info.dead_lettered_count), html`Dead-lettered messages: <a href=${link(info.name, "dead-lettered")}>${number(info.dead_lettered_count)}</a>.`]);
  return found;
}

function Figures({ name, info }) {
  const { value: past, error } = useLoaded((signal) => get(at(name, "/history"), signal), [name], 10);
  const last = past ? past.dwell_p99_ms.findLastIndex((one) => one !== null) : -1;
  const dwell = (values) => (last < 0 ? "–" : duration(values[last]));
  const isTopic = info.kind === "topic";
  const figures = [
    ["Active", info.active_count], ["Held", info.held_count], ["Deferred", info.deferred_count],
    ["Scheduled", info.scheduled_count], ["Dead-lettered", info.dead_lettered_count],
    ["Duplicates dropped", info.duplicates_dropped], ["Recorded ids", info.remembered_ids],
    ["Waiting receives", isTopic ? undefined : info.row?.receivers ?? 0],
  ].filter(([, value]) => value !== undefined);
  const recent = "From enqueue to first delivery, in the last ten seconds with a delivery";
  return html`
    <ul class="findings">${findings(info).map(([at, text], place) => html`<li key=${place} class=${at}><${Sign} at=${at} />${text}</li>`)}</ul>
    <dl class="figures">
      ${figures.map(([label, value]) => html`<div key=${label}><dt>${label}</dt><dd>${number(value)}</dd></div>`)}
      ${!isTopic && html`<div><dt>Oldest message</dt><dd>${age(info.row?.oldest_ms)}</dd></div>`}
      ${past && !isTopic && html`<div><dt title=${recent}>Dwell p50</dt><dd>${dwell(past.dwell_p50_ms)}</dd></div>
        <div><dt title=${recent}>Dwell p99</dt><dd>${dwell(past.dwell_p99_ms)}</dd></div>`}
      <div><dt>Size</dt><dd>${bytes(info.size_bytes)}</dd></div>
      <div><dt>Availability</dt><dd>${info.availability}</dd></div>
    </dl>
    <${Failure} text=${error} wait=${!past} />
    ${past && past.times.length > 1
      ? html`<div class="charts">
          <${Chart} title="Messages by state" times=${past.times} series=${[["active", past.active, "--blue"], ["held", past.held, "--green"], ["dead-lettered", past.dead_lettered, "--red"], ["deferred", past.deferred, "--amber"], ["scheduled", past.scheduled, "--soft"]]} />
          <${Chart} title="Messages per second" times=${past.times} series=${[["in", past.accepted, "--blue"], ["out (delivered)", past.delivered, "--amber"], ["settled (gone)", past.gone, "--green"]]} />
          ${last >= 0 && html`<${Chart} title="Milliseconds from enqueue to first delivery" times=${past.times} points series=${[["p50", past.dwell_p50_ms, "--blue"], ["p99", past.dwell_p99_ms, "--amber"]]} />`}
        </div>`
      : past && html`<p class="soft">The history of the last hour appears here after ten seconds.</p>`}
    ${info.subscriptions && html`<h2>Subscriptions</h2><ul>${info.subscriptions.map((one) => html`<li key=${one}><a href=${link(one)}>${one}</a></li>`)}</ul>`}`;
}

function Sessions({ name, groups }) {
  const [search, setSearch] = useState("");
  const query = new URLSearchParams({ limit: SESSIONS, search });
  const { value, error } = useLoaded((signal) => get(at(name, `/sessions?${query}`), signal), [name, search], 5);
  const word = groups ? "group" : "session";
  return html`<${Failure} text=${error} wait=${!value} />
    <div class="bar"><input type="search" data-search placeholder=${`Search ${word}s`} aria-label=${`Search ${word}s`} onInput=${(event) => setSearch(event.target.value)} /></div>
    ${value && html`<${Table} label=${groups ? "Groups" : "Sessions"} columns=${[groups ? "Group" : "Session", ["Ready", "num"], ["Held", "num"], ["Oldest", "num"], "Holder", "Locked until"]} rows=${value.sessions.map((one) => html`<tr key=${one.session_id}>
      <th scope="row"><a href=${link(name, "messages", { session_id: one.session_id })}>${one.session_id || "(empty)"}</a></th><td class="num">${number(one.ready_count)}</td><td class="num">${number(one.held_count)}</td>
      <td class="num">${age(one.oldest_enqueued_time_ms)}</td><td>${one.lock_holder ?? "–"}</td><td>${time(one.locked_until_ms)}</td></tr>`)} />
    <p class="soft">${count(value.count, word)}${value.count > value.sessions.length ? `, the ${number(value.sessions.length)} that wait longest shown` : ""}</p>`}`;
}

function Groups({ name }) {
  const { value, error } = useLoaded((signal) => get(at(name, "/groups"), signal), [name], 5);
  return html`<${Failure} text=${error} wait=${!value} />
    ${value && html`<${Table} label="Groups" columns=${["Group", "State", ["In flight", "num"], ["Found waiting behind others", "num"]]} rows=${value.groups.map((one) => html`<tr key=${one.group}>
      <th scope="row">${one.group}</th><td class=${one.noisy ? "warn" : ""}>${one.noisy ? html`<${Sign} at="warn" />noisy` : "quiet"}</td>
      <td class="num">${number(one.in_flight)}</td><td class="num">${number(one.passed)}</td></tr>`)} />
    <p class="soft">Groups with messages in flight, or noisy: ${number(value.count)}${value.count > value.groups.length ? `, the first ${number(value.groups.length)} shown` : ""}. Messages of noisy groups are delivered after those of quiet ones.</p>`}`;
}

function Partitions({ name }) {
  const { value, error } = useLoaded((signal) => get(at(name, "/partitions"), signal), [name], 5);
  return html`<${Failure} text=${error} wait=${!value} />
    ${value && html`<${Table} label="Partitions" columns=${["Partition", "Store", "Owner", "State", ["Active", "num"], ["Dead-lettered", "num"], ["Size", "num"], ["Recorded ids", "num"]]} rows=${value.partitions.map((one) => html`<tr key=${one.index}>
      <th scope="row">${one.index}</th><td>${one.store}</td><td>${one.owner}</td><td class=${one.is_online ? "" : "bad"}>${one.is_online ? "online" : html`<${Sign} at="bad" />${one.error}`}</td>
      <td class="num">${number(one.active)}</td><td class="num">${number(one.dead_lettered)}</td><td class="num">${bytes(one.size_bytes)}</td><td class="num">${number(one.recorded_ids)}</td></tr>`)} />`}`;
}

/** What a key with only Send can do. */
function SendOnly({ name, say }) {
  const [asked, setAsked] = useState(false);
  const info = { name, settings: {} };
  return html`<section>
    <div class="bar"><h1><a href="#/" class="soft">Entities</a> / ${name}</h1><span class="grow"></span><button class="primary" onClick=${() => setAsked(true)}>Send</button></div>
    <p>Your key can send messages. Figures and messages need a key with Listen.</p>
    ${asked && html`<${Send} info=${info} onClose=${() => setAsked(false)} onDone=${say} />`}
  </section>`;
}

export function Entity(props) {
  const sees = props.can("Listen") || props.can("Monitor");
  return sees ? html`<${Whole} ...${props} />` : html`<${SendOnly} ...${props} />`;
}

/** The views of an entity that a key may see, with their names. */
function tabsOf(info, can) {
  const isTopic = info.kind === "topic";
  const listens = can("Listen");
  return [
    ...(listens ? [["figures", "Figures"], ["messages", isTopic ? "Scheduled" : "Messages"]] : [["counts", "Counts"]]),
    ...(listens && !isTopic ? [["dead-lettered", `Dead-lettered (${number(info.dead_lettered_count)})`]] : []),
    ...(listens && info.settings.requires_session ? [["sessions", info.settings.fifo ? "Groups" : "Sessions"]] : []),
    ...(listens && info.settings.fair_delivery ? [["groups", "Groups"]] : []),
    ...(listens ? [["readers", "Receivers and readers"], ["partitions", "Partitions"]] : []),
    ...(can("Manage") ? [["settings", info.rules ? "Settings, rules, keys" : "Settings and keys"]] : []),
  ];
}

/** The counts alone, for a key that may only monitor. */
function Counts({ info }) {
  const figures = [["Active", info.active_count], ["Held", info.held_count], ["Deferred", info.deferred_count], ["Scheduled", info.scheduled_count], ["Dead-lettered", info.dead_lettered_count]];
  return html`<dl class="figures">${figures.map(([label, value]) => html`<div key=${label}><dt>${label}</dt><dd>${number(value)}</dd></div>`)}</dl>
    <p class="soft">Plots and messages need a key with Listen.</p>`;
}

//: Figures that a row leaves out if they are zero.
const NONE = { receivers: 0, accepted_per_s: 0, gone_per_s: 0, oldest_ms: undefined };

/** Load an entity, and again now and then; a stream brings its figures in between. */
function useEntity(name, can) {
  const whole = !can("Listen");
  const { changes, crowded, stale } = useChanges(whole ? "/v1/overview/watch" : at(name, "/watch"), [name], whole ? undefined : {});
  const row = changes.get(name);
  const follows = row && !row.deleted && !crowded && !stale;
  const { value, error, again } = useLoaded(
    async (signal) => ({ ...(await load(name, can, signal)), loaded: performance.now() }),
    [name, row?.deleted, row?.status],
    follows ? REST_S : LOAD_S,
  );
  const newer = follows && value && row.seen > value.loaded;
  return { info: newer ? { ...value, ...figuresOf(row), row: { ...value.row, ...NONE, ...row } } : value, error, again };
}

function Whole({ name, tab, filter, can, say }) {
  const { info, error, again } = useEntity(name, can);
  const [dialog, setDialog] = useState("");
  const [round, setRound] = useState(0);
  if (!info) return html`<section><h1><a href="#/" class="soft">Entities</a> / ${name}</h1><${Failure} text=${error} wait /></section>`;
  const tabs = tabsOf(info, can);
  const chosen = tabs.some(([key]) => key === tab) ? tab : tabs[0][0];
  const paused = info.settings.status !== "active";
  const close = () => setDialog("");
  const done = (text) => {
    say(text);
    again();
    setRound((before) => before + 1);
  };
  const messages = (dead) => html`<${Messages} key=${dead ? "dead" : "live"} info=${info} dead=${dead} filter=${filter} can=${can} round=${round} say=${done} />`;
  return html`<section>
    <div class="bar">
      <h1><a href="#/" class="soft">Entities</a> / ${info.name}</h1>
      <span class="tag">${info.kind}</span>${paused && html`<span class="tag warn">${info.settings.status}</span>`}
      <span class="grow"></span>
      ${info.kind !== "subscription" && can("Send") && html`<button class="primary" onClick=${() => setDialog("send")}>Send</button>`}
      ${can("Manage") && html`<button onClick=${() => setDialog("pause")}>${paused ? "Resume" : "Pause"}</button>
        <button onClick=${() => setDialog("purge")}>Purge</button>
        <button class="danger" onClick=${() => setDialog("delete")}>Delete</button>`}
    </div>
    <${Failure} text=${error} />
    <${Tabs} tabs=${tabs} chosen=${chosen} href=${(key) => link(name, key)} />
    ${chosen === "counts" && html`<${Counts} info=${info} />`}
    ${chosen === "figures" && html`<${Figures} name=${name} info=${info} />`}
    ${chosen === "messages" && messages(false)}
    ${chosen === "dead-lettered" && messages(true)}
    ${chosen === "sessions" && html`<${Sessions} name=${name} groups=${info.settings.fifo} />`}
    ${chosen === "groups" && html`<${Groups} name=${name} />`}
    ${chosen === "readers" && html`<${Reading} info=${info} />`}
    ${chosen === "partitions" && html`<${Partitions} name=${name} />`}
    ${chosen === "settings" && html`<${Settings} info=${info} can=${can} say=${say} again=${again} />`}
    ${dialog === "send" && html`<${Send} info=${info} onClose=${close} onDone=${done} />`}
    ${dialog === "purge" && html`<${Purge} info=${info} onClose=${close} onDone=${done} />`}
    ${dialog === "pause" && html`<${Pause} info=${info} onClose=${close} onDone=${done} />`}
    ${dialog === "delete" && html`<${Delete} info=${info} onClose=${close} />`}
  </section>`;
}
