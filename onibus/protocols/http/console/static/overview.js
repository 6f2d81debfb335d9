// All entities: a tree with search, figures that change while you look, health of stores.

import { html, useState } from "./preact.js";
import { get, now } from "./api.js";
import { NewEntity } from "./settings.js";
import { Failure, Pager, Sign, Spark, age, bytes, count, growth, level, link, number, rate, short, useLoaded } from "./widgets.js";
import { useChanges } from "./watching.js";

const PAGE = 100;
const COLUMNS = [
  ["name", "Entity"],
  ["active", "Active"],
  ["scheduled", "Scheduled"],
  ["dead_lettered", "Dead-lettered"],
  ["accepted", "In"],
  ["gone", "Out"],
  ["duplicates", "Duplicates"],
  ["oldest", "Oldest"],
];

const TITLES = { accepted: "messages accepted since the start", gone: "messages gone since the start", oldest: "the oldest waiting message" };
const BETWEEN = "/subscriptions/";

/** The name of an entity; a subscription under its topic needs only its own. */
function Name({ row, inTree, folded, onFold }) {
  const [topic, own] = row.name.split(BETWEEN);
  if (own && inTree) return html`<a href=${link(row.name)} class="sub" aria-label=${row.name}>${own}</a>`;
  if (own) return html`<a href=${link(row.name)}><span class="soft">${topic} / </span>${own}</a>`;
  return html`${onFold && html`<button class="plain fold" aria-expanded=${!folded} aria-label=${`Subscriptions of ${row.name}`} onClick=${onFold}>${folded ? "▸" : "▾"}</button> `}<a href=${link(row.name)}>${row.name}</a>`;
}

/** The class of a figure: zeros stand back, so that the others are seen. */
const quiet = (value) => (value ? "num" : "num soft");

function Row({ row, inTree, folded, onFold }) {
  const dead = level("dead_lettered", row.dead_lettered || 0);
  const old = row.oldest_ms ? level("oldest_ms", now() - Number(row.oldest_ms)) : "";
  const grown = growth(row.depths);
  const more = level("growth", grown);
  return html`<tr class=${row.deleted ? "deleted" : ""}>
    <th scope="row">
      <${Name} row=${row} inTree=${inTree} folded=${folded} onFold=${onFold} />
      ${row.kind && row.kind !== "queue" && html`<span class="tag">${row.kind}</span>`}
      ${row.deleted && html`<span class="tag">deleted</span>`}
      ${row.status && row.status !== "active" && html`<span class="tag warn">${row.status}</span>`}
      ${row.offline > 0 && html`<span class="tag bad">${row.offline} offline</span>`}
    </th>
    <td class=${`${quiet(row.active)} ${more}`}><${Sign} at=${more} />${short(row.active || 0)}${more && html`<small> +${short(grown)}</small>`}${row.held ? html`<small class="soft"> ${short(row.held)} held</small>` : ""}</td>
    <td class=${quiet(row.scheduled || row.deferred)}>${short(row.scheduled || 0)}${row.deferred ? html`<small class="soft"> ${short(row.deferred)} deferred</small>` : ""}</td>
    <td class=${`${quiet(row.dead_lettered)} ${dead}`}><${Sign} at=${dead} />${row.dead_lettered ? html`<a href=${link(row.name, "dead-lettered")}>${short(row.dead_lettered)}</a>` : "0"}</td>
    <td class=${quiet(row.accepted_per_s)}>${rate(row.accepted_per_s || 0)}</td>
    <td class=${quiet(row.gone_per_s)}>${rate(row.gone_per_s || 0)}</td>
    <td class=${quiet(row.duplicates)}>${short(row.duplicates || 0)}</td>
    <td class=${`${quiet(row.oldest_ms)} ${old}`}><${Sign} at=${old} />${age(row.oldest_ms)}</td>
    <td><${Spark} values=${row.depths} /></td>
  </tr>`;
}

/** The rows of a page: subscriptions under their topic, unless it is folded or on another page. */
function Rows({ rows, changes, byName, folded, setFolded }) {
  const topics = new Set(byName ? rows.filter((row) => row.kind === "topic").map((row) => row.name) : []);
  const parents = new Set(rows.map((row) => row.name.split(BETWEEN)).filter((one) => one[1]).map((one) => one[0]));
  const fold = (name) => () => setFolded((before) => (before.includes(name) ? before.filter((one) => one !== name) : [...before, name]));
  return rows.map((row) => {
    const [topic, own] = row.name.split(BETWEEN);
    const inTree = own !== undefined && topics.has(topic);
    if (inTree && folded.includes(topic)) return null;
    const folds = topics.has(row.name) && parents.has(row.name);
    return html`<${Row} key=${row.name} row=${changes.get(row.name) || row} inTree=${inTree} folded=${folded.includes(row.name)} onFold=${folds && fold(row.name)} />`;
  });
}

/** The process and its stores. */
function Health({ found }) {
  const { node } = found;
  return html`<div class="cards" role="group" aria-label="Health">
    <div class=${`card ${node.ready ? "" : "bad"}`}>
      <b>${node.name}</b> <span class="soft">${node.ready ? "ready" : "not ready"}</span>
      <div class="soft">up for ${age(node.started_ms)}, ${bytes(node.memory_bytes)} of memory, ${count(node.connections, "connection")}</div>
    </div>
    ${found.stores.map(
      (store) => html`<div key=${store.name} class=${`card ${store.is_up ? "" : "bad"}`}>
        <b>${store.name}</b> <span class="soft">${store.is_up ? "up" : "down"}</span>
        <div class="soft">${store.is_up ? `${bytes(store.size_bytes)} used${store.free_bytes < 1e18 ? `, ${bytes(store.free_bytes)} free` : ", in memory"}` : store.error}</div>
      </div>`,
    )}
    ${found.alarms > 0 && html`<div class="card bad"><b><${Sign} at="bad" />${count(found.alarms, "alarm")}</b><div class="soft">${found.last_alarm}</div></div>`}
  </div>`;
}

function Heads({ sort, onSort }) {
  return html`<thead><tr>
    ${COLUMNS.map(([key, label]) => html`<th key=${key} scope="col" class=${key === "name" ? "" : "num"} aria-sort=${sort === key ? (["name", "oldest"].includes(key) ? "ascending" : "descending") : undefined}><button class="plain" title=${`Sort by ${TITLES[key] || label.toLowerCase()}`} onClick=${() => onSort(key)}>${label}</button></th>`)}
    <th scope="col">Last 5 min</th>
  </tr></thead>`;
}

export function Overview({ can, say }) {
  const [asked, setAsked] = useState({ search: "", kind: "", only: "", sort: "name", start: 0 });
  const [making, setMaking] = useState(false);
  const [folded, setFolded] = useState([]);
  const query = new URLSearchParams({ ...asked, limit: PAGE });
  const [names, setNames] = useState([]);
  const { changes, live, setLive, crowded, stale } = useChanges("/v1/overview/watch", names);
  const load = async (signal) => {
    const value = await get(`/v1/overview?${query}`, signal);
    setNames(value.rows.map((row) => row.name));
    return value;
  };
  const { value: found, error, again } = useLoaded(load, [String(query), live, crowded], live ? (crowded ? 5 : 30) : 0);
  const set = (change) => setAsked((before) => ({ ...before, start: 0, ...change }));
  return html`<section>
    <div class="bar">
      <h1>Entities</h1>
      <input type="search" data-search placeholder="Search by name" aria-label="Search by name" value=${asked.search} onInput=${(event) => set({ search: event.target.value })} />
      <select aria-label="Kind" onChange=${(event) => set({ kind: event.target.value })}>
        <option value="">all kinds</option><option value="queue">queues</option><option value="topic">topics</option><option value="subscription">subscriptions</option>
      </select>
      <select aria-label="Condition" onChange=${(event) => set({ only: event.target.value })}>
        <option value="">any condition</option><option value="dead-lettered">with dead-lettered messages</option><option value="limited">with offline partitions</option>
      </select>
      <span class="grow"></span>
      <button aria-pressed=${!live} onClick=${() => setLive(!live)}>${live ? "Pause updates" : "Resume updates"}</button>
      ${can("Manage") && html`<button class="primary" onClick=${() => setMaking(true)}>New entity</button>`}
    </div>
    <${Failure} text=${error || stale} wait=${!found} />
    ${found && html`
      <${Health} found=${found} />
      <p class="soft" role="status">${count(found.count, "entity", "entities")}, ${count(found.total.active, "active message")}, ${number(found.total.dead_lettered)} dead-lettered</p>
      <div class="scroll" tabindex="0" role="region" aria-label="Entities">
      <table>
        <${Heads} sort=${asked.sort} onSort=${(sort) => set({ sort })} />
        <tbody><${Rows} rows=${found.rows} changes=${changes} byName=${asked.sort === "name"} folded=${folded} setFolded=${setFolded} /></tbody>
      </table></div>
      <${Pager} start=${asked.start} page=${PAGE} total=${found.count} onStart=${(start) => set({ start })} />
      <p class="soft"><${Sign} at="warn" /> from 1 dead-lettered message, an age of 5 minutes or 100 more active messages in 5 minutes; <${Sign} at="bad" /> from 100, 1 hour or 1,000.</p>
      ${!found.count && html`<p>No entity matches. ${can("Manage") ? "Create one with New entity." : ""}</p>`}
    `}
    ${making && html`<${NewEntity} onClose=${() => setMaking(false)} onDone=${(name) => { say(`created ${name}`); again(); }} />`}
  </section>`;
}
