// The status page: chooses between the overview and the page of one mapping, and shows the connection to the daemon.

import { h, setAttribute, setText } from "./dom.js";
import { duration, time } from "./format.js";
import { Live } from "./live.js";
import { MappingPage } from "./mapping.js";
import { Overview } from "./overview.js";

const main = document.getElementById("main");
const gone = document.getElementById("gone");
const news = document.getElementById("news");
let view = null;
let announced = new Map();

const live = new Live({ onChange, onLink });
addEventListener("hashchange", () => route(true));
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("keydown", (event) => {
  const filter = document.getElementById("filter");
  if (event.key !== "/" || !filter || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  event.preventDefault();
  filter.focus();
});
setInterval(tick, 1000);

function onChange(names, removed) {
  showDaemon();
  if (view === null) route(false);
  else view.update(names, removed);
  announce();
}

/** Tell screen readers about mappings that need attention or recovered. */
function announce() {
  const states = new Map([...live.mappings.values()].map((mapping) => [mapping.name, mapping.state]));
  const isUrgent = (state) => state === "failed" || state === "waiting";
  const changed = [...states].filter(([name, state]) => {
    const before = announced.get(name);
    return before !== undefined && before !== state && (isUrgent(state) || isUrgent(before));
  });
  announced = states;
  if (changed.length) setText(news, changed.slice(0, 3).map(([name, state]) => `${name} is ${state}`).join(", "));
}

/** Return the name of the mapping in the address; null for the overview, and if the address is malformed. */
function chosen() {
  try {
    const match = location.hash.match(/^#\/mappings\/([^/]+)$/);
    return match && decodeURIComponent(match[1]);
  } catch {
    return null;
  }
}

function route(isNavigation) {
  const name = chosen();
  view?.close();
  view = name === null ? new Overview(live) : new MappingPage(live, name);
  main.replaceChildren(view.node);
  document.title = name === null ? "ingestd" : `${name} · ingestd`;
  if (isNavigation) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
}

function onLink(link) {
  const text = { live: "Live", gone: "No connection", connecting: "Connecting" }[link];
  setText(document.getElementById("link-text"), text);
  setAttribute(document.getElementById("link"), "data-link", link);
  document.body.classList.toggle("stale", link === "gone");
  gone.hidden = link !== "gone";
  if (link === "gone") {
    gone.replaceChildren(h("strong", {}, "The daemon does not answer"), " ", h("span", { id: "gone-since" }));
    tick();
  }
}

function showDaemon() {
  const { host, pid, release, started_unix: started } = live.daemon;
  const up = duration(Math.max(0, Math.floor(live.now - started)));
  setText(document.getElementById("daemon"), `${host} · process ${pid} · version ${release} · up ${up}`);
}

function tick() {
  if (live.link === "gone") {
    const state = live.daemon ? "This is its last known state. " : "";
    setText(document.getElementById("gone-since"), `since ${time(live.since)}. ${state}The page reconnects by itself.`);
    return;
  }
  if (live.daemon) showDaemon();
  view?.tick();
}
