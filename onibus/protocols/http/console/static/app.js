// The shell: login, routes by the fragment of the address, notices.

import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./preact.js";
import { about, onRejected, parse, rights as askRights, signIn, signOut } from "./api.js";
import { Entity } from "./entity.js";
import { Overview } from "./overview.js";
import { Pipeline } from "./pipeline.js";
import { forgetHeld } from "./settle.js";
import { Dialog, Failure, Field, link } from "./widgets.js";

/** Return the parts of the fragment; an unreadable one opens the first view. */
function routeOf() {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    return [""];
  }
}

function useRoute() {
  const [route, setRoute] = useState(routeOf());
  useEffect(() => {
    const changed = () => setRoute(routeOf());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function Login({ reason, onDone }) {
  const [error, setError] = useState(reason);
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      onDone(await signIn(form.get("connection"), form.get("key")));
    } catch (problem) {
      setError(problem.message);
    }
  };
  return html`<main class="login">
    <h1>Onibus</h1>
    <form onSubmit=${submit}>
      <${Field} label="Connection string or key name" hint="The server writes one to connection-string in its data directory.">
        <input name="connection" autocomplete="off" spellcheck=${false} required autofocus />
      <//>
      <${Field} label="Key" hint="Leave empty if you pasted a connection string. For a key of one entity, paste one with EntityPath.">
        <input name="key" type="password" autocomplete="off" />
      <//>
      <${Failure} text=${error} />
      <button class="primary">Sign in</button>
      <p class="soft">The key stays in this tab's memory. Reload the page to forget it.</p>
    </form>
  </main>`;
}

function OneEntity({ rights }) {
  return html`<section><h1>One entity</h1>
    <p>Your key is for <a href=${link(rights.entity)}>${rights.entity}</a> only.</p>
  </section>`;
}

/** A key for all entities that may not list them: the operator types a name. */
function ByName() {
  const open = (event) => {
    event.preventDefault();
    location.hash = link(new FormData(event.target).get("name").trim().toLowerCase());
  };
  return html`<section><h1>Entities</h1>
    <p>The list of entities needs a key with Monitor or Manage.</p>
    <form onSubmit=${open}>
      <${Field} label="Name" hint="a queue, a topic, or topic/subscriptions/name"><input name="name" required autocomplete="off" spellcheck=${false} /><//>
      <button class="primary">Open</button>
    </form>
  </section>`;
}

/** Return the filter in the address; an unreadable one is none. */
function filterOf(text) {
  try {
    const found = parse(text);
    return found && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}

const KEYS = [
  ["/", "Search in this view"],
  ["g", "Show all entities"],
  ["p", "Show the pipeline"],
  ["↑ ↓", "In a list of messages: the previous or next one"],
  ["Enter", "Open the message, or follow the link"],
  ["Escape", "Close the message or the dialog"],
  ["?", "Show this list"],
];

/** Keys for the whole page; none while the operator types or a dialog is open. */
function useKeys(onHelp) {
  useEffect(() => {
    const pressed = (event) => {
      const busy = event.target.closest("input, select, textarea, dialog") || document.querySelector("dialog[open]");
      if (busy || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") document.querySelector("main [data-search]")?.focus();
      else if (event.key === "g") location.hash = "#/";
      else if (event.key === "p") location.hash = "#/pipeline";
      else if (event.key === "?") onHelp();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function Help({ onClose }) {
  return html`<${Dialog} title="Keys" onSubmit=${() => true} onClose=${onClose}>
    <table><tbody>${KEYS.map(([key, text]) => html`<tr key=${key}><th scope="row"><kbd>${key}</kbd></th><td>${text}</td></tr>`)}</tbody></table>
  <//>`;
}

/** The chosen view; an error in it leaves the rest of the page usable. */
function View({ route, rights, can, say }) {
  const [broken, mend] = useErrorBoundary();
  const [view, name, tab, filter] = route;
  useEffect(mend, [route.join("/")]);
  const lists = can("Monitor");
  if (broken) return html`<section><h1>Onibus</h1><${Failure} text=${`this view failed: ${broken.message}. Reload the page`} /></section>`;
  if (view === "entity" && name) {
    return html`<${Entity} key=${name} name=${name} tab=${tab || "figures"} filter=${filterOf(filter)} can=${can} say=${say} />`;
  }
  if (rights.entity) return html`<${OneEntity} rights=${rights} />`;
  if (!lists) return html`<${ByName} />`;
  return view === "pipeline" ? html`<${Pipeline} say=${say} />` : html`<${Overview} can=${can} say=${say} />`;
}

function App() {
  const [server, setServer] = useState(null);
  const [rights, setRights] = useState(null);
  const [error, setError] = useState("");
  const [notice, setNotice] = useState("");
  const [rejected, setRejected] = useState("");
  const [help, setHelp] = useState(false);
  const route = useRoute();
  const [view, name] = route;
  const first = useRef(true);
  useKeys(() => setHelp(true));
  useEffect(() => {
    (async () => {
      onRejected(setRejected);
      try {
        const found = await about();
        if (found.login !== "key") setRights(await askRights());
        setServer(found);
      } catch (problem) {
        setError(problem.message);
      }
    })();
  }, []);
  useEffect(() => {
    document.title = view === "entity" && name ? `${name} – Onibus` : view === "pipeline" ? "Pipeline – Onibus" : "Onibus";
    if (!first.current) document.getElementById("content")?.focus();
    first.current = false;
  }, [view, name]);
  useEffect(() => {
    if (!notice) return undefined;
    const timer = setTimeout(() => setNotice(""), 8000);
    return () => clearTimeout(timer);
  }, [notice]);
  if (error) return html`<main><h1>Onibus</h1><${Failure} text=${error} /><button onClick=${() => location.reload()}>Try again</button></main>`;
  if (!server) return null;
  if (!rights) return html`<${Login} reason=${rejected} onDone=${(found) => { setRejected(""); setServer({ ...server, login: "key" }); setRights(found); }} />`;
  const can = (right) => rights.rights.includes(right) || rights.rights.includes("Manage");
  const leave = () => {
    signOut();
    forgetHeld();
    setRights(null);
  };
  return html`
    <button class="skip" onClick=${() => document.getElementById("content").focus()}>Skip to the content</button>
    <header class="top">
      <a class="brand" href="#/"><img src="icon.svg" alt="" width="24" height="24" /> Onibus</a>
      <span class="soft">${server.version}</span>
      ${!rights.entity && can("Monitor") && html`<a href="#/pipeline">Pipeline</a>`}
      <span class="grow"></span>
      <button class="plain" onClick=${() => setHelp(true)}>Keys</button>
      ${server.login === "key"
        ? html`<span class="soft">${rights.key}</span><button onClick=${leave}>Sign out</button>`
        : html`<span class="soft">${server.login === "none" ? "no key needed" : "development key"}</span>`}
    </header>
    ${rejected && html`<div class="banner" role="alert">The server no longer accepts your key: ${rejected}. <button onClick=${leave}>Sign in again</button></div>`}
    <main id="content" tabindex="-1"><${View} key=${`${view}/${name}`} route=${route} rights=${rights} can=${can} say=${setNotice} /></main>
    <div class="notice" role="status">${notice}</div>
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}`;
}

render(html`<${App} />`, document.getElementById("app"));
