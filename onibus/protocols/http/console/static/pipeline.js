// Lakes and other named readers: how far behind they are, and when they last moved.

import { html } from "./preact.js";
import { get } from "./api.js";
import { link } from "./overview.js";
import { Failure, age, number, useLoaded } from "./widgets.js";

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

export function Pipeline() {
  const { value, error } = useLoaded((signal) => get("/v1/readers", signal), [], 5);
  return html`<section>
    <div class="bar"><h1><a href="#/" class="soft">Entities</a> / Pipeline</h1></div>
    <${Failure} text=${error} />
    ${value && !value.readers.length && html`<p>No lake or other reader is known. Start one with <code>onibus pipeline capture</code>.</p>`}
    ${value && lakes(value.readers).map(([address, readers]) => html`
      <h2 key=${address}>${address}</h2>
      <table>
        <thead><tr><th scope="col">Entity</th><th scope="col">Log</th><th scope="col">Reader</th><th scope="col" class="num">Rows behind</th><th scope="col" class="num">Rows lost</th><th scope="col" class="num">Last moved</th></tr></thead>
        <tbody>${readers.map((one) => {
          const lost = one.lost.filter(Boolean).length;
          return html`<tr key=${one.entity + one.log + one.name}>
            <th scope="row"><a href=${link(one.entity, "readers")}>${one.entity}</a></th><td>${one.log}</td><td class="clip">${one.name}</td>
            <td class="num">${number(sum(one.lag))}</td><td class=${`num ${lost ? "bad" : ""}`}>${lost ? `in ${lost} partitions` : "none"}</td>
            <td class="num">${one.moved_ms ? `${age(one.moved_ms)} ago` : "–"}</td></tr>`;
        })}</tbody>
      </table>`)}
    <p class="soft">Run <code>onibus pipeline audit</code> for a verdict on a lake.</p>
  </section>`;
}
