// Chooses the page, handles the keyboard, and shows the state of the connection.

import { live, ask } from "./live.js";
import { h, say } from "./draw.js";
import { clock } from "./words.js";
import { HostPage } from "./host.js";
import { DatastorePage } from "./datastore.js";
import { DiskPage } from "./disk.js";
import { CachesPage } from "./caches.js";
import { PoolsPage } from "./pools.js";
import { ThreadsPage } from "./threads.js";
import { EventsPage } from "./events.js";

const main = document.getElementById("page");
const nav = document.getElementById("nav");
const banner = document.getElementById("banner");
const state = document.getElementById("state");
const help = document.getElementById("help");

let page = null;
let place = { kind: "host", name: null };
let datastores = [];
let caches = 0;
let pools = 0;
let unread = 0;

function where() {
  const [kind, name] = location.hash.replace(/^#\/?/, "").split("/");
  const known = { "": "host", datastore: "datastore", disk: "disk", caches: "caches", pools: "pools", threads: "threads", events: "events" };
  return { kind: known[kind] || "host", name: name ? decodeURIComponent(name) : null };
}

function open() {
  place = where();
  page?.close();
  main.replaceChildren();
  live.look(place.kind === "disk" ? place.name : null);
  const pages = { host: HostPage, datastore: DatastorePage, disk: DiskPage, caches: CachesPage, pools: PoolsPage, threads: ThreadsPage, events: EventsPage };
  page = new pages[place.kind](main, place.name);
  document.title = `${place.name || { host: "Host", caches: "Flash caches", pools: "Pools", threads: "I/O threads", events: "Events" }[place.kind]} · Tidegate`;
  if (place.kind === "events") unread = 0;
  tellPages();
  scrollTo(0, 0);
  if (live.beat) page.beat?.(live.beat);
}

function tellPages() {
  const link = (text, href, current) => h("a", { href, "aria-current": current ? "page" : null }, text);
  const shown = [
    link("Host", "#/", place.kind === "host"),
    ...datastores.map((name) => link(name, `#/datastore/${encodeURIComponent(name)}`, place.kind === "datastore" && place.name === name)),
    (caches > 0 || place.kind === "caches") && link("Flash caches", "#/caches", place.kind === "caches"),
    (pools > 0 || place.kind === "pools") && link("Pools", "#/pools", place.kind === "pools"),
    link("I/O threads", "#/threads", place.kind === "threads"),
    place.kind === "disk" && link(place.name, location.hash, true),
    link(unread ? `Events (${unread})` : "Events", "#/events", place.kind === "events"),
  ].filter(Boolean);
  const key = (list) => list.map((one) => one.outerHTML).join();
  if (key([...nav.children]) !== key(shown)) {
    const focused = nav.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    nav.replaceChildren(...shown);
    if (focused) nav.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
}

async function learnDatastores() {
  try {
    const list = await ask("GET", "/v1/datastores");
    datastores = list.datastores.map((one) => one.name);
    caches = (await ask("GET", "/v1/caches")).caches.length;
    pools = list.datastores.filter((one) => one.settings.kind === "pool").length;
    tellPages();
  } catch {
    // The banner says that the daemon does not answer.
  }
}

function tellState() {
  state.dataset.state = live.state;
  say(state, { connecting: "connecting", live: "live", lost: "no answer", login: "logged out" }[live.state]);
  document.body.classList.toggle("stale", live.state === "lost" || (live.state === "connecting" && live.beat !== null));
  document.body.classList.toggle("out", live.state === "login");
  if (live.state === "lost") {
        const last = live.beat ? `This page shows data of ${clock(live.beat.at)}. ` : "";
    banner.replaceChildren(h("p", {}, h("b", {}, "The daemon does not answer. "),
      `${last}It may still serve its disks. Trying again…`));
    banner.hidden = false;
  } else if (live.state === "login") {
    banner.replaceChildren(login());
    banner.hidden = false;
    banner.querySelector("input").focus();
  } else if (!banner.hidden && live.state === "live") {
    banner.hidden = true;
    banner.replaceChildren();
  }
}

function login() {
  const token = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const wrong = h("p", { class: "bad", role: "alert" });
  return h("form", { class: "login", onsubmit: async (event) => {
    event.preventDefault();
    say(wrong, "");
    try {
      await ask("POST", "/dashboard/login", { token: token.value });
      live.connect();
      learnDatastores();
      open();
    } catch (problem) {
      say(wrong, problem.status === 401 ? "That is not the token." : problem.message);
      token.select();
    }
  } },
  h("label", { for: "token" }, "Token"), token, h("button", { class: "main" }, "Log in"),
  h("p", { class: "muted" }, "The token is in the file that the daemon's configuration names as dashboard.token_file."), wrong);
}

function up() {
  const disk = live.beat?.disks.find((one) => one.name === place.name) || page?.described;
  location.hash = place.kind === "disk" && disk ? `#/datastore/${encodeURIComponent(disk.datastore)}` : "#/";
}

function key(event) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const acts = {
    "?": () => help.showModal(),
    h: () => { location.hash = "#/"; },
    e: () => { location.hash = "#/events"; },
    c: () => { location.hash = "#/caches"; },
    o: () => { location.hash = "#/pools"; },
    t: () => { location.hash = "#/threads"; },
    d: () => {
      const at = place.kind === "datastore" ? datastores.indexOf(place.name) : -1;
      if (datastores.length) location.hash = `#/datastore/${encodeURIComponent(datastores[(at + 1) % datastores.length])}`;
    },
    u: up,
  };
  if (page?.press?.(event.key)) event.preventDefault();
  else if (acts[event.key]) {
    event.preventDefault();
    acts[event.key]();
  }
}

document.getElementById("help-button").addEventListener("click", () => help.showModal());
document.addEventListener("keydown", key);
addEventListener("hashchange", () => {
  if (location.hash === "#page") return;
  open();
  main.focus({ preventScroll: true });
});
live.addEventListener("state", tellState);
live.addEventListener("hello", ({ detail }) => {
  learnDatastores();
  if (detail.another) open();
});
live.addEventListener("beat", ({ detail }) => page?.beat?.(detail));
live.addEventListener("disk", ({ detail }) => page?.disk?.(detail));
live.addEventListener("events", ({ detail }) => {
  const first = live.events.length === detail.length;
  if (place.kind !== "events" && !first) unread += detail.length;
  page?.events?.(detail);
  tellPages();
});

tellState();
open();
live.start();
