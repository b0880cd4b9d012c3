// The one connection that tells what happens now, and questions and orders to the daemon.
//
// It comes back by itself. Who listens hears `state` ("connecting", "live", "lost", "login"), `hello`, `beat`, `disk`
// and `events`, each with its data in `detail`. It is live only while beats come: whatever else comes does not say how
// things are now.

import { object, rows } from "./words.js";

const SILENCE_MS = 6000;
const FRESH_MS = 2500;
const LONGEST_PAUSE_MS = 5000;
const HIDDEN_MS = 60000;

class Live extends EventTarget {
  state = "connecting";
  since = Date.now();
  hello = null;
  beat = null;
  events = [];
  #source = null;
  #disk = null;
  #heard = 0;
  #tries = 0;
  #timer = 0;
  #hidden = 0;

  start() {
    setInterval(() => this.#listen(), 1000);
    document.addEventListener("visibilitychange", () => {
      clearTimeout(this.#hidden);
      if (document.hidden) this.#hidden = setTimeout(() => this.#rest(), HIDDEN_MS);
      else if (this.state !== "login") this.#wake();
    });
    this.connect();
  }

  /** Nobody looks: what is shown gets old. */
  #rest() {
    this.#close();
    if (this.state === "live") this.#become("connecting");
  }

  /** Somebody looks again; the browser may have held the page still meanwhile. */
  #wake() {
    if (this.state === "live" && Date.now() - this.#heard > FRESH_MS) this.#become("connecting");
    if (!this.#source) this.connect();
  }

  /** Looks closely at a disk, or at none. */
  look(disk) {
    if (disk === this.#disk) return;
    this.#disk = disk;
    if (this.state !== "login") this.connect();
  }

  connect() {
    this.#close();
    const wish = new URLSearchParams();
    if (this.#disk) wish.set("disk", this.#disk);
    const last = this.events.at(-1);
    if (last) wish.set("after", last.number);
    const source = new EventSource("/dashboard/stream?" + wish);
    this.#source = source;
    this.#heard = Date.now();
    const on = (name, take) => source.addEventListener(name, (event) => {
      if (source !== this.#source) return;
      take(JSON.parse(event.data));
    });
    on("hello", (hello) => this.#begin(hello));
    on("beat", (beat) => {
      this.#heard = Date.now();
      this.#tries = 0;
      this.beat = this.#read(beat);
      this.#become("live");
      this.#tell("beat", this.beat);
    });
    on("disk", (disk) => this.#tell("disk", disk));
    on("events", (events) => {
      this.events = this.events.concat(events).slice(-1024);
      this.#tell("events", events);
    });
    source.onerror = () => {
      if (source === this.#source) this.#lose();
    };
  }

  #begin(hello) {
    const another = this.hello && this.hello.pid !== hello.pid;
    this.hello = hello;
    // Numbers of events begin anew with each daemon.
    if (another) this.events = [];
    this.#tell("hello", { ...hello, another });
    if (another) this.connect();
  }

  #read(beat) {
    const columns = this.hello.columns;
    const datastores = rows(columns.datastores, beat.datastores);
    for (const datastore of datastores) {
      datastore.hosts = rows(columns.hosts, datastore.hosts);
      datastore.others = rows(columns.others, datastore.others);
    }
    const disks = rows(columns.disks, beat.disks);
    for (const disk of disks) disk.did = object(columns.did, disk.did);
    return { at: beat.at, threads: rows(columns.threads, beat.threads), datastores, disks };
  }

  #listen() {
    if (this.#source && Date.now() - this.#heard > SILENCE_MS) this.#lose();
  }

  async #lose() {
    this.#close();
    if (this.state !== "lost") this.#become("lost");
    try {
      await ask("GET", "/v1/status");
    } catch (problem) {
      if (problem.status === 401) return;
    }
    const pause = Math.min(LONGEST_PAUSE_MS, 500 * 2 ** this.#tries);
    this.#tries += 1;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.connect(), pause);
  }

  #close() {
    clearTimeout(this.#timer);
    if (this.#source) this.#source.close();
    this.#source = null;
  }

  askForLogin() {
    this.#close();
    this.#become("login");
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    this.since = Date.now();
    this.#tell("state", state);
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

export const live = new Live();

/** What the daemon said when it was not content. */
export class Refusal extends Error {
  constructor(status, problem) {
    super([problem.what, ...(problem.why || [])].join(": "));
    this.status = status;
    this.problem = problem;
  }
}

/** Asks or orders; the answer, or a Refusal. */
export async function ask(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: { "x-tidegate": "1", ...(body ? { "content-type": "application/json" } : {}) },
      body: body ? JSON.stringify(body) : undefined,
    });
  } catch {
    throw new Refusal(0, { what: "the daemon does not answer" });
  }
  if (answer.status === 401 && path !== "/dashboard/login") live.askForLogin();
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  let problem = { what: `the daemon answers ${answer.status}` };
  try {
    problem = await answer.json();
  } catch {
    // It has said nothing more.
  }
  throw new Refusal(answer.status, problem);
}
