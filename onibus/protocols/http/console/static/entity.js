// One entity: figures over time, messages, sessions, readers, partitions, settings and rules.

import { html, useState } from "./preact.js";
import { admin, at, encode, get, patch, remove } from "./api.js";
import { ChangeSettings, EditRule, Purge, Send } from "./forms.js";
import { Messages } from "./messages.js";
import { link } from "./overview.js";
import { Chart, Confirm, Dialog, Failure, Sign, Tabs, age, bytes, duration, number, time, useLoaded } from "./widgets.js";

const KINDS = ["queue", "topic", "subscription"];

/** Load what a key without Manage may see of an entity. */
async function summary(name, listens, signal) {
  const row = listens
    ? await get(at(name, "/summary"), signal)
    : (await get(`/v1/overview?limit=200&search=${encodeURIComponent(name)}`, signal)).rows.find((one) => one.name === name);
  if (!row) throw new Error(`there is no entity ${name}`);
  return {
    name, kind: row.kind, size_bytes: row.size_bytes ?? 0, availability: row.offline ? "limited" : "available",
    active_count: row.active ?? 0, held_count: row.held ?? 0, deferred_count: row.deferred ?? 0,
    scheduled_count: row.scheduled ?? 0, dead_lettered_count: row.dead_lettered ?? 0,
    duplicates_dropped: row.duplicates ?? 0,
    settings: { status: row.status, requires_session: row.requires_session ?? false, fair_delivery: row.fair_delivery ?? false },
  };
}

/** Load an entity whose kind only the server knows. */
async function load(name, can, signal) {
  if (!can("Manage")) return summary(name, can("Listen"), signal);
  const kinds = name.includes("/subscriptions/") ? ["subscription"] : KINDS.slice(0, 2);
  for (const [place, kind] of kinds.entries()) {
    try {
      return await get(admin(kind, name), signal);
    } catch (problem) {
      if (problem.status !== 404 || place === kinds.length - 1) throw problem;
    }
  }
  return null;
}

function Figures({ name, info }) {
  const { value: past, error } = useLoaded((signal) => get(at(name, "/history"), signal), [name], 10);
  const last = past ? past.dwell_p99_ms.findLastIndex((one) => one !== null) : -1;
  const dwell = (values) => (last < 0 ? "–" : duration(values[last]));
  const figures = [
    ["Active", info.active_count], ["Held", info.held_count], ["Deferred", info.deferred_count],
    ["Scheduled", info.scheduled_count], ["Dead-lettered", info.dead_lettered_count],
    ["Duplicates dropped", info.duplicates_dropped], ["Recorded ids", info.remembered_ids],
  ];
  return html`
    <dl class="figures">
      ${figures.map(([label, value]) => html`<div key=${label}><dt>${label}</dt><dd>${number(value)}</dd></div>`)}
      ${past && info.kind !== "topic" && html`<div><dt title="From enqueue to first delivery, in the last ten seconds with a delivery">Dwell p50</dt><dd>${dwell(past.dwell_p50_ms)}</dd></div>
        <div><dt title="From enqueue to first delivery, in the last ten seconds with a delivery">Dwell p99</dt><dd>${dwell(past.dwell_p99_ms)}</dd></div>`}
      <div><dt>Size</dt><dd>${bytes(info.size_bytes)}</dd></div>
      <div><dt>Availability</dt><dd>${info.availability}</dd></div>
    </dl>
    <${Failure} text=${error} />
    ${past && past.times.length > 1
      ? html`<div class="charts">
          <${Chart} title="Messages" times=${past.times} series=${[["active", past.active, "--blue"], ["dead-lettered", past.dead_lettered, "--red"], ["deferred", past.deferred, "--amber"], ["scheduled", past.scheduled, "--green"]]} />
          <${Chart} title="Messages per second" times=${past.times} series=${[["in", past.accepted, "--blue"], ["out", past.gone, "--green"], ["delivered", past.delivered, "--amber"]]} />
          ${last >= 0 && html`<${Chart} title="Milliseconds from enqueue to first delivery" times=${past.times} points series=${[["p50", past.dwell_p50_ms, "--blue"], ["p99", past.dwell_p99_ms, "--amber"]]} />`}
        </div>`
      : html`<p class="soft">The history of the last hour appears here after ten seconds.</p>`}
    ${info.subscriptions && html`<h2>Subscriptions</h2><ul>${info.subscriptions.map((one) => html`<li key=${one}><a href=${link(one)}>${one}</a></li>`)}</ul>`}`;
}

function Sessions({ name }) {
  const { value, error } = useLoaded((signal) => get(at(name, "/sessions"), signal), [name], 5);
  if (!value) return html`<${Failure} text=${error} />`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Sessions"><table>
    <thead><tr><th scope="col">Session</th><th scope="col" class="num">Ready</th><th scope="col" class="num">Held</th><th scope="col" class="num">Oldest</th><th scope="col">Holder</th><th scope="col">Locked until</th></tr></thead>
    <tbody>${value.sessions.slice(0, 1000).map((one) => html`<tr key=${one.session_id}>
      <th scope="row">${one.session_id}</th><td class="num">${number(one.ready_count)}</td><td class="num">${number(one.held_count)}</td>
      <td class="num">${age(one.oldest_enqueued_time_ms)}</td><td>${one.lock_holder ?? "–"}</td><td>${time(one.locked_until_ms)}</td></tr>`)}</tbody>
  </table></div>
  <p class="soft">${number(value.sessions.length)} sessions${value.sessions.length > 1000 ? ", the first 1,000 shown" : ""}</p>`;
}

function Groups({ name }) {
  const { value, error } = useLoaded((signal) => get(at(name, "/groups"), signal), [name], 5);
  if (!value) return html`<${Failure} text=${error} />`;
  return html`<${Failure} text=${error} />
  <div class="scroll" tabindex="0" role="region" aria-label="Groups"><table>
    <thead><tr><th scope="col">Group</th><th scope="col">State</th><th scope="col" class="num">In flight</th><th scope="col" class="num">Found waiting behind others</th></tr></thead>
    <tbody>${value.groups.map((one) => html`<tr key=${one.group}>
      <th scope="row">${one.group}</th><td class=${one.noisy ? "warn" : ""}>${one.noisy ? html`<${Sign} at="warn" />noisy` : "quiet"}</td>
      <td class="num">${number(one.in_flight)}</td><td class="num">${number(one.passed)}</td></tr>`)}</tbody>
  </table></div>
  <p class="soft">${number(value.count)} groups have messages in flight or are noisy${value.count > value.groups.length ? `, the first ${number(value.groups.length)} shown` : ""}. Messages of noisy groups are delivered after those of quiet ones.</p>`;
}

const total = (values) => values.reduce((sum, one) => sum + Number(one ?? 0), 0);

function Keys({ name }) {
  const { value, error } = useLoaded((signal) => get("/v1/keys", signal), [name]);
  if (!value) return error ? html`<h2>Keys</h2><p class="soft">${error}</p>` : null;
  const topic = name.split("/subscriptions/")[0];
  const keys = value.keys.filter((one) => !one.entity || [name, topic].includes(one.entity));
  return html`<h2>Keys</h2><table>
    <thead><tr><th scope="col">Key</th><th scope="col">Scope</th><th scope="col">Rights</th></tr></thead>
    <tbody>${keys.map((one) => html`<tr key=${`${one.entity} ${one.name}`}><th scope="row">${one.name}</th><td>${one.entity || "all entities"}</td><td>${one.rights.join(", ")}</td></tr>`)}</tbody>
  </table>`;
}

function Readers({ name }) {
  const readers = useLoaded((signal) => get(at(name, "/readers"), signal), [name], 5);
  const claims = useLoaded((signal) => get(at(name, "/claims"), signal), [name], 5);
  const lost = (one) => one.lost.filter(Boolean).length;
  return html`<h2>Readers</h2><${Failure} text=${readers.error} />
    ${readers.value && (readers.value.readers.length
      ? html`<div class="scroll" tabindex="0" role="region" aria-label="Readers"><table><thead><tr><th scope="col">Reader</th><th scope="col">Log</th><th scope="col" class="num">Rows behind</th><th scope="col" class="num">Rows lost</th><th scope="col" class="num">Last moved</th><th scope="col">Next numbers</th></tr></thead><tbody>
          ${readers.value.readers.map((one) => html`<tr key=${one.name + one.log}><th scope="row">${one.name}${one.address && html`<div class="soft">${one.address}</div>`}</th><td>${one.log}</td>
            <td class="num">${number(total(one.lag))}</td><td class=${`num ${lost(one) ? "bad" : ""}`}>${lost(one) ? html`<${Sign} at="bad" />in ${lost(one)} partitions` : "none"}</td>
            <td class="num">${age(one.moved_ms)} ago</td><td><code>${one.positions.map(String).join(" ")}</code></td></tr>`)}</tbody></table></div>`
      : html`<p class="soft">No program reads the log under a name.</p>`)}
    <h2>Claims</h2><${Failure} text=${claims.error} />
    ${claims.value && (claims.value.claims.length
      ? html`<div class="scroll" tabindex="0" role="region" aria-label="Claims"><table><thead><tr><th scope="col">Reader</th><th scope="col" class="num">Claim</th><th scope="col" class="num">Messages</th><th scope="col" class="num">Age</th><th scope="col">State</th></tr></thead><tbody>
          ${claims.value.claims.map((one) => html`<tr key=${`${one.reader} ${one.number}`}><th scope="row">${one.reader}</th><td class="num">${String(one.number)}</td><td class="num">${number(one.count)}</td><td class="num">${duration(one.age_ms)}</td>
            <td>${one.committing ? "committing" : one.read ? "read" : `not read, lease until ${time(one.lease_until_ms)}`}</td></tr>`)}</tbody></table></div>`
      : html`<p class="soft">No claim is open.</p>`)}`;
}

function Partitions({ name }) {
  const { value, error } = useLoaded((signal) => get(at(name, "/partitions"), signal), [name], 5);
  if (!value) return html`<${Failure} text=${error} />`;
  return html`<${Failure} text=${error} /><div class="scroll" tabindex="0" role="region" aria-label="Partitions"><table>
    <thead><tr><th scope="col">Partition</th><th scope="col">Store</th><th scope="col">Owner</th><th scope="col">State</th><th scope="col" class="num">Active</th><th scope="col" class="num">Dead-lettered</th><th scope="col" class="num">Size</th><th scope="col" class="num">Recorded ids</th></tr></thead>
    <tbody>${value.partitions.map((one) => html`<tr key=${one.index}>
      <th scope="row">${one.index}</th><td>${one.store}</td><td>${one.owner}</td><td class=${one.is_online ? "" : "bad"}>${one.is_online ? "online" : html`<${Sign} at="bad" />${one.error}`}</td>
      <td class="num">${number(one.active)}</td><td class="num">${number(one.dead_lettered)}</td><td class="num">${bytes(one.size_bytes)}</td><td class="num">${number(one.recorded_ids)}</td></tr>`)}</tbody>
  </table></div>`;
}

function Settings({ info, can, say, again }) {
  const [editing, setEditing] = useState(false);
  const [rule, setRule] = useState(null);
  const [dropped, setDropped] = useState(null);
  const shown = Object.entries(info.settings);
  const dropRule = async (one) => {
    await remove(`${admin("subscription", info.name)}/rules/${encodeURIComponent(one.name)}`);
    say(`deleted rule ${one.name}`);
    again();
  };
  return html`
    <div class="bar"><h2>Settings</h2><span class="grow"></span>${can("Manage") && html`<button onClick=${() => setEditing(true)}>Change settings</button>`}</div>
    <table><tbody>${shown.map(([key, value]) => html`<tr key=${key}><th scope="row">${key}</th><td>${value === null ? "–" : typeof value === "object" ? encode(value) : String(value)}</td></tr>`)}</tbody></table>
    ${info.rules && html`
      <div class="bar"><h2>Rules</h2><span class="grow"></span>${can("Manage") && html`<button onClick=${() => setRule({})}>Add rule</button>`}</div>
      <table><thead><tr><th scope="col">Rule</th><th scope="col">Filter</th><th scope="col">Action</th><th><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${info.rules.map((one) => html`<tr key=${one.name}><th scope="row">${one.name}</th><td><code>${encode(one.filter)}</code></td><td><code>${one.action ? encode(one.action) : "–"}</code></td>
        <td>${can("Manage") && html`<button class="danger" onClick=${() => setDropped(one)}>Delete</button>`}</td></tr>`)}</tbody></table>`}
    <${Keys} name=${info.name} />
    ${editing && html`<${ChangeSettings} info=${info} onClose=${() => setEditing(false)} onDone=${() => { say("settings changed"); again(); }} />`}
    ${dropped && html`<${Confirm} title=${`Delete rule ${dropped.name}`} text="Messages that only this rule selects no longer reach the subscription." submit="Delete rule" onSubmit=${() => dropRule(dropped)} onClose=${() => setDropped(null)} />`}
    ${rule && html`<${EditRule} name=${info.name} onClose=${() => setRule(null)} onDone=${() => { say("rule added"); again(); }} />`}`;
}

function Delete({ info, onClose }) {
  const held = info.active_count + info.deferred_count + info.scheduled_count + info.dead_lettered_count;
  const submit = async (form) => {
    if (form.get("name") !== info.name) throw new Error("type the name exactly as shown");
    await remove(admin(info.kind, info.name));
    location.hash = "#/";
  };
  return html`<${Dialog} title=${`Delete ${info.kind} ${info.name}`} submit="Delete" danger onSubmit=${submit} onClose=${onClose}>
    <p>This deletes the ${info.kind} with ${number(held)} messages${info.subscriptions?.length ? ` and ${info.subscriptions.length} subscriptions` : ""}. You cannot undo it.</p>
    <label class="field"><span>Type <b>${info.name}</b> to confirm</span><input name="name" autocomplete="off" /></label>
  <//>`;
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

function Whole({ name, tab, can, say }) {
  const { value: info, error, again } = useLoaded((signal) => load(name, can, signal), [name], 5);
  const [dialog, setDialog] = useState("");
  if (!info) return html`<section><h1>${name}</h1><${Failure} text=${error} /></section>`;
  const isTopic = info.kind === "topic";
  const tabs = [
    ["figures", "Figures"],
    ["messages", isTopic ? "Scheduled" : "Messages"],
    ...(isTopic ? [] : [["dead-lettered", `Dead-lettered (${number(info.dead_lettered_count)})`]]),
    ...(info.settings.requires_session ? [["sessions", info.settings.fifo ? "Groups" : "Sessions"]] : []),
    ...(info.settings.fair_delivery ? [["groups", "Groups"]] : []),
    ["readers", "Readers and claims"],
    ["partitions", "Partitions"],
    ...(can("Manage") ? [["settings", info.rules ? "Settings, rules, keys" : "Settings and keys"]] : []),
  ];
  if (!tabs.some(([key]) => key === tab)) tab = "figures";
  const paused = info.settings.status !== "active";
  const toggle = async () => {
    await patch(admin(info.kind, info.name), { status: paused ? "active" : "disabled" });
    say(paused ? "resumed" : "paused");
    again();
  };
  const close = () => setDialog("");
  const done = (text) => {
    say(text);
    again();
  };
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
    <${Tabs} tabs=${tabs} chosen=${tab} href=${(key) => link(name, key)} />
    ${tab === "figures" && html`<${Figures} name=${name} info=${info} />`}
    ${tab === "messages" && html`<${Messages} key="live" info=${info} dead=${false} can=${can} say=${done} />`}
    ${tab === "dead-lettered" && html`<${Messages} key="dead" info=${info} dead=${true} can=${can} say=${done} />`}
    ${tab === "sessions" && html`<${Sessions} name=${name} />`}
    ${tab === "groups" && html`<${Groups} name=${name} />`}
    ${tab === "readers" && html`<${Readers} name=${name} />`}
    ${tab === "partitions" && html`<${Partitions} name=${name} />`}
    ${tab === "settings" && html`<${Settings} info=${info} can=${can} say=${say} again=${again} />`}
    ${dialog === "send" && html`<${Send} info=${info} onClose=${close} onDone=${done} />`}
    ${dialog === "purge" && html`<${Purge} info=${info} onClose=${close} onDone=${done} />`}
    ${dialog === "pause" && html`<${Confirm} title=${`${paused ? "Resume" : "Pause"} ${info.name}`} text=${paused ? "The broker accepts and delivers messages again." : "The broker rejects sends and receives until you resume."} submit=${paused ? "Resume now" : "Pause now"} onSubmit=${toggle} onClose=${close} />`}
    ${dialog === "delete" && html`<${Delete} info=${info} onClose=${close} />`}
  </section>`;
}
