// The shell: login, routes by the fragment of the address, notices.

import { html, render, useEffect, useState } from "./preact.js";
import { about, get, signIn, signOut } from "./api.js";
import { Entity } from "./entity.js";
import { Overview, link } from "./overview.js";
import { Pipeline } from "./pipeline.js";
import { Failure, Field } from "./widgets.js";

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

function Login({ onDone }) {
  const [error, setError] = useState("");
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
    <p>Your key is for <a href=${`#/entity/${encodeURIComponent(rights.entity)}`}>${rights.entity}</a> only.</p>
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

function App() {
  const [server, setServer] = useState(null);
  const [rights, setRights] = useState(null);
  const [error, setError] = useState("");
  const [notice, setNotice] = useState("");
  const [view, name, tab] = useRoute();
  useEffect(() => {
    (async () => {
      try {
        const found = await about();
        setServer(found);
        if (found.login !== "key") setRights(await get("/v1/rights"));
      } catch (problem) {
        setError(problem.message);
      }
    })();
  }, []);
  useEffect(() => {
    if (!notice) return undefined;
    const timer = setTimeout(() => setNotice(""), 6000);
    return () => clearTimeout(timer);
  }, [notice]);
  if (error) return html`<main><${Failure} text=${error} /></main>`;
  if (!server) return null;
  if (!rights) return html`<${Login} onDone=${setRights} />`;
  const can = (right) => rights.rights.includes(right) || rights.rights.includes("Manage");
  const lists = can("Monitor");
  const leave = () => {
    signOut();
    setRights(null);
  };
  return html`
    <button class="skip" onClick=${() => document.getElementById("content").focus()}>Skip to the content</button>
    <header class="top">
      <a class="brand" href="#/"><img src="icon.svg" alt="" width="24" height="24" /> Onibus</a>
      <span class="soft">${server.version}</span>
      ${!rights.entity && lists && html`<a href="#/pipeline">Pipeline</a>`}
      <span class="grow"></span>
      ${server.login === "key"
        ? html`<span class="soft">${rights.key}</span><button onClick=${leave}>Sign out</button>`
        : html`<span class="soft">${server.login === "none" ? "no key needed" : "development key"}</span>`}
    </header>
    <main id="content" tabindex="-1">
      ${view === "entity" && name
        ? html`<${Entity} key=${name} name=${name} tab=${tab || "figures"} can=${can} say=${setNotice} />`
        : rights.entity
          ? html`<${OneEntity} rights=${rights} />`
          : !lists
          ? html`<${ByName} />`
          : view === "pipeline"
          ? html`<${Pipeline} />`
          : html`<${Overview} can=${can} say=${setNotice} />`}
    </main>
    <div class="notice" role="status">${notice}</div>`;
}

render(html`<${App} />`, document.getElementById("app"));
