// Receiving with a lock, and settling: from a queue, a session, a FIFO queue or dead letters.

import { html, useRef, useState } from "./preact.js";
import { at, post } from "./api.js";
import { Dialog, Failure, Field, preview, time } from "./widgets.js";

//: Messages and sessions that this page holds, by place: a change of view must not lose their tokens.
const kept = new Map();
const VERBS = { complete: "Complete", abandon: "Abandon", defer: "Defer", "dead-letter": "Dead-letter" };

/** Forget all of it: the next user of this page must not see it. Locks stay until they expire. */
export const forgetHeld = () => kept.clear();

/** What this page holds of an entity, or of its dead letters. */
function useKept(key) {
  const [held, show] = useState(kept.get(key) || { messages: [], session: null });
  return [held, (change) => {
    const next = { ...(kept.get(key) || held), ...change(kept.get(key) || held) };
    if (next.messages.length || next.session) kept.set(key, next);
    else kept.delete(key);
    show(next);
  }];
}

function DeadLetter({ message, onSubmit, onClose }) {
  return html`<${Dialog} title=${`Dead-letter message ${message.sequence_number}`} submit="Dead-letter it" onSubmit=${onSubmit} onClose=${onClose}>
    <p>This moves the message to the dead-letter queue. You can resubmit it from there.</p>
    <${Field} label="Reason"><input name="reason" defaultValue="console" required /><//>
    <${Field} label="Description"><input name="description" /><//>
  <//>`;
}

export function Held({ info, dead, can, say }) {
  const place = `${info.name} ${dead}`;
  const [held, setHeld] = useKept(place);
  const [error, setError] = useState("");
  const [rejecting, setRejecting] = useState(null);
  const { fifo, requires_session: sessions } = info.settings;
  const inSession = sessions && !fifo && !dead;
  const last = useRef(Promise.resolve());
  // One after the other: a session is released after its message is settled.
  const attempt = (work) => {
    last.current = last.current.then(async () => {
      try {
        setError("");
        await work();
      } catch (problem) {
        setError(problem.message);
      }
    });
  };
  const ask = () => {
    if (inSession) return post(at(info.name, "/sessions/receive"), { session_id: held.session.session_id, token: held.session.token, limit: 1 });
    return fifo && !dead ? post(at(info.name, "/fifo/receive"), { limit: 1 }) : post(at(info.name, "/receive"), { limit: 1, dead_letters: dead });
  };
  const take = () => attempt(async () => {
    const found = await ask();
    if (!found.messages.length) setError("no message is available");
    setHeld((before) => ({ messages: [...before.messages, ...found.messages] }));
  });
  const accept = (event) => {
    event.preventDefault();
    const session_id = new FormData(event.target).get("session") || undefined;
    attempt(async () => {
      const session = await post(at(info.name, "/sessions/accept"), { session_id, owner: "console" });
      setHeld(() => ({ session }));
    });
  };
  const release = () => attempt(async () => {
    const { session_id, token } = held.session;
    // A lock that expired is released already.
    await post(at(info.name, "/sessions/close"), { session_id, token }).catch((problem) => setError(problem.message));
    setHeld(() => ({ session: null, messages: [] }));
    say(`released session ${session_id}`);
  });
  const settle = async (message, verb, more = {}) => {
    // The second click of two.
    if (!kept.get(place)?.messages.includes(message)) return;
    const named = verb === "complete" ? { tokens: [message.token] } : { token: message.token };
    await post(at(info.name, `/${verb}`), { ...named, ...more });
    setHeld((before) => ({ messages: before.messages.filter((one) => one.token !== message.token) }));
    say(`${verb}: message ${message.sequence_number}`);
  };
  const forget = (message) => setHeld((before) => ({ messages: before.messages.filter((one) => one.token !== message.token) }));
  if (!can("Listen") || info.kind === "topic") return null;
  const verbs = Object.entries(VERBS).filter(([verb]) => !dead || verb !== "dead-letter");
  return html`<details open=${held.messages.length > 0 || held.session !== null}><summary>Receive with a lock</summary>
    <p class="soft">Receiving takes a message from other receivers until you settle it or its lock expires. Complete deletes it. Abandon releases it and counts a delivery. Defer sets it aside until you reactivate it.${dead ? "" : " Dead-letter moves it to the dead-letter queue."}</p>
    ${inSession && !held.session
      ? html`<form class="bar" onSubmit=${accept}><label>Session to accept <input name="session" placeholder="the next available" autocomplete="off" /></label><button>Accept session</button></form>`
      : html`<div class="bar">
          ${held.session && inSession && html`<span>Session <b>${held.session.session_id}</b> <span class="soft">until ${time(held.session.locked_until_ms)}</span></span>`}
          <button onClick=${take}>Receive the next ${dead ? "dead-lettered " : ""}message</button>
          ${held.session && inSession && html`<button onClick=${release}>Release session</button>`}
        </div>`}
    <${Failure} text=${error} />
    ${held.messages.map((message) => html`<div class="bar held" key=${message.token}>
      <b>${String(message.sequence_number)}</b> <span class="clip">${preview(message)}</span> ${message.locked_until_ms && html`<span class="soft">until ${time(message.locked_until_ms)}</span>`}<span class="grow"></span>
      ${verbs.map(([verb, label]) => html`<button key=${verb} aria-label=${`${label} message ${message.sequence_number}`} onClick=${() => (verb === "dead-letter" ? setRejecting(message) : attempt(() => settle(message, verb)))}>${label}</button>`)}
      <button class="plain" aria-label=${`Hide message ${message.sequence_number}`} title="Hide it here; its lock stays until it expires" onClick=${() => forget(message)}>✕</button>
    </div>`)}
    ${rejecting && html`<${DeadLetter} message=${rejecting} onSubmit=${(form) => settle(rejecting, "dead-letter", { reason: form.get("reason"), description: form.get("description") || undefined })} onClose=${() => setRejecting(null)} />`}
  </details>`;
}
