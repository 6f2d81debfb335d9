// Lakes and other named readers: how far behind they are, their files, last batch and verdict.

import { html, useState } from "./preact.js";
import { at, get, post } from "./api.js";
import { Failure, Pager, Sign, Table, ago, bytes, count, link, number, time, useLoaded } from "./widgets.js";

const PAGE = 100;
const VERDICTS = { PASSED: "good", FAILED: "bad", INCOMPLETE: "warn" };
const sum = (values) => values.reduce((total, one) => total + Number(one ?? 0), 0);

/** Put the readers of one lake together; a reader without an address stands alone. */
function lakes(readers) {
  const found = new Map();
  for (const one of readers) {
    const key = one.address || `reader ${one.name}`;
    found.set(key, [...(found.get(key) || []), one]);
  }
  return [...found].sort(([one], [other]) => one.localeCompare(other));
}

/** Open the page about a lake: the server gives out a path that works once, without a key. */
async function openPage(one, say) {
  try {
    const { path } = await post(at(one.entity, `/readers/${encodeURIComponent(one.name)}/page`));
    window.open(path, "_blank", "noopener");
  } catch (problem) {
    say(problem.message);
  }
}

function Verdict({ one, say }) {
  const lake = one.lake;
  if (!lake?.verdict) return html`<td>–</td>`;
  const level = VERDICTS[lake.verdict] || "";
  return html`<td>
    <span class=${level}>${level !== "good" && html`<${Sign} at=${level} />`}${lake.verdict}</span>
    <small class="soft" title=${time(lake.verdict_ms)}> ${ago(lake.verdict_ms)}${lake.verdict_key ? `, key ${lake.verdict_key}` : ""}: ${count(lake.messages ?? 0, "message")}, ${count(lake.outcomes ?? 0, "outcome")}</small>
    ${lake.findings?.length > 0 && html`<details><summary>${count(lake.findings.length, "note")}</summary><ul>${lake.findings.map((text) => html`<li key=${text}>${text}</li>`)}</ul></details>`}
    ${lake.page_ms && html`<div><button class="plain" onClick=${() => openPage(one, say)}>Open report</button> <small class="soft">${ago(lake.page_ms)}</small></div>`}
  </td>`;
}

function Reader({ one, say }) {
  const lost = one.lost.filter(Boolean).length;
  const lake = one.lake;
  return html`<tr>
    <th scope="row"><a href=${link(one.entity, "readers")}>${one.entity}</a></th><td>${one.log}</td>
    <td class="num">${number(sum(one.lag))}</td>
    <td class=${`num ${lost ? "bad" : ""}`}>${lost ? html`<${Sign} at="bad" />in ${count(lost, "partition")}` : "none"}</td>
    <td class="num">${lake?.batch_ms ? html`${count(lake.batch_rows, "row")}<small class="soft"> ${ago(lake.batch_ms)}</small>` : "–"}</td>
    <td class="num">${lake && lake.files !== undefined ? html`${number(lake.files)}<small class="soft"> ${count(lake.rows ?? 0, "row")}, ${bytes(lake.size_bytes ?? 0)}</small>` : "–"}</td>
    <td class="num" title=${time(one.moved_ms)}>${ago(one.moved_ms)}</td>
    <${Verdict} one=${one} say=${say} />
  </tr>`;
}

const COLUMNS = ["Entity", "Log", ["Rows behind", "num"], ["Rows lost", "num"], ["Last batch", "num"], ["Files", "num"], ["Last moved", "num"], "Audit"];

export function Pipeline({ say }) {
  const [asked, setAsked] = useState({ search: "", start: 0 });
  const query = new URLSearchParams({ ...asked, limit: PAGE });
  const { value, error } = useLoaded((signal) => get(`/v1/readers?${query}`, signal), [String(query)], 5);
  return html`<section>
    <div class="bar"><h1><a href="#/" class="soft">Entities</a> / Pipeline</h1>
      <input type="search" data-search placeholder="Search lakes and entities" aria-label="Search lakes and entities" onInput=${(event) => setAsked({ search: event.target.value, start: 0 })} /></div>
    <${Failure} text=${error} wait=${!value} />
    ${value && !value.count && html`<p>${asked.search ? "No lake or reader matches." : html`No lake or other reader is known. Start one with <code>onibus pipeline capture</code>.`}</p>`}
    ${value && lakes(value.readers).map(([address, readers]) => html`<div key=${address}>
      <h2>${address}</h2>
      <${Table} label=${address} columns=${COLUMNS} rows=${readers.map((one) => html`<${Reader} key=${`${one.entity} ${one.name}`} one=${one} say=${say} />`)} />
    </div>`)}
    ${value && html`<${Pager} start=${asked.start} page=${PAGE} total=${value.count} onStart=${(start) => setAsked({ ...asked, start })} />`}
    <p class="soft">Captures and audits report files, batches and verdicts; the server does not read lakes. Run <code>onibus pipeline audit</code> for a verdict, with <code>--report</code> for a page.</p>
  </section>`;
}
