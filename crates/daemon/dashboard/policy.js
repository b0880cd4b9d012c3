// The form for a disk's policy. It predicts the effect of a change before it is applied.

import { ask, live } from "./live.js";
import { h, say } from "./draw.js";
import { bandwidth, bytes, count, exactly, percent, time } from "./words.js";

const MIB = 1048576;
const NAMED = { 500: "low", 1000: "normal", 2000: "high" };

const FIELDS = [
  { id: "shares", name: "Shares", hint: "500 is low, 1000 normal, 2000 high", min: 1, max: 1000000, required: true },
  { id: "reservation_iops", name: "Reservation", unit: "units/s", hint: "the minimum while the disk asks for it; empty: none", min: 0, zero: true },
  { id: "limit_iops", name: "Limit", unit: "units/s", hint: "the maximum, always; empty: none", min: 1 },
  { id: "burst_iops", name: "Burst", unit: "units/s", hint: "the maximum for a short time; empty: none", min: 1 },
  { id: "burst_seconds", name: "Burst lasts", unit: "s", hint: "30 if empty", min: 1, max: 86400 },
  { id: "limit_bytes_per_s", name: "Bandwidth limit", unit: "MiB/s", hint: "empty: none", min: 0.001, by: MIB, step: "any" },
  { id: "latency_target_us", name: "Latency target", unit: "ms", hint: "empty: none", min: 0.001, by: 1000, step: "any" },
  { id: "group", name: "Group", hint: "its limits apply to all its disks together; empty: none", text: true },
];

/** What a policy says of a field; none is null, and of reservations 0. */
const said = (policy, field) => policy[field.id] ?? (field.zero ? 0 : null);

/** What must be changed in one policy to have the other. */
const difference = (from, to) => Object.fromEntries(FIELDS.filter((field) => said(from, field) !== said(to, field)).map((field) => [field.id, said(to, field)]));

export class PolicyForm {
  constructor(name, changed) {
    this.name = name;
    this.changed = changed;
    this.disks = [];
    this.datastores = [];
    this.touched = false;
    this.inputs = {};
    this.outcome = h("p", { class: "outcome", role: "status", "data-figure": "outcome" });
    this.done = h("p", { class: "done", role: "status" });
    this.bad = h("p", { class: "bad", role: "alert" });
    this.loose = h("input", { type: "checkbox", id: "loose", onchange: () => this.#preview() });
    this.looseBox = h("p", { hidden: true }, this.loose, h("label", { for: "loose" }, " Set it as best effort: while not all reservations can be met, all are reduced"));
    this.apply = h("button", { class: "main", disabled: true }, "Apply");
    this.reset = h("button", { type: "button", onclick: () => this.#reset() }, "Reset");
    this.undo = h("button", { type: "button", hidden: true, onclick: () => this.#undo() }, "Undo");
    const fields = FIELDS.map((field) => {
      const id = `f-${field.id}`;
      const input = h("input", { id, name: field.id, "aria-describedby": `${id}-hint`, autocomplete: "off",
        ...(field.text ? { type: "text", maxlength: 64, spellcheck: "false" } : { type: "number", inputmode: "decimal", min: field.min, max: field.max, step: field.step || 1, required: field.required }),
        oninput: () => { this.touched = true; this.#preview(); } });
      this.inputs[field.id] = input;
      return h("div", { class: "field" }, h("label", { for: id }, field.name), h("span", {}, input, field.unit ? h("span", { class: "unit" }, field.unit) : null),
        h("small", { id: `${id}-hint` }, field.hint));
    });
    this.lock = h("p", { class: "warning", hidden: true }, "This connection is read-only, because the browser runs as another user than the daemon. Use tidegate disk set, or give the dashboard a token.");
    this.form = h("form", { onsubmit: (event) => { event.preventDefault(); this.#apply(); } },
      h("div", { class: "fields" }, fields), this.outcome, this.looseBox, this.bad,
      h("div", { class: "buttons" }, this.apply, this.reset, this.undo), this.done);
    this.node = h("section", { class: "card policy", "aria-labelledby": "h-policy" }, h("h2", { id: "h-policy" }, "Policy"), this.lock, this.form);
  }

  focus() {
    this.node.scrollIntoView({ block: "start" });
    this.inputs.shares.focus();
    this.inputs.shares.select();
  }

  /** The disk as the daemon tells it, and its `key` among hosts if another one serves it. What somebody is typing stays. */
  show(disk, elsewhere) {
    this.policy = disk.policy;
    this.attached = disk.attached || Boolean(elsewhere);
    this.key = elsewhere?.key;
    this.datastore = disk.datastore;
    if (!this.touched) this.#write(disk.policy);
    this.#preview();
  }

  /** Who else uses its datastore. */
  neighbours(disks, datastores) {
    this.disks = disks;
    this.datastores = datastores;
    this.lock.hidden = live.hello?.may !== "look";
    this.#preview();
  }

  #write(policy) {
    for (const field of FIELDS) {
      const value = policy[field.id];
      const none = value == null || (field.zero && value === 0);
      this.inputs[field.id].value = none ? "" : field.by ? String(Math.round((value / field.by) * 1000) / 1000) : String(value);
    }
  }

  /** What the form says, or null where it says what is no number. */
  #read() {
    const wanted = {};
    for (const field of FIELDS) {
      const input = this.inputs[field.id];
      const text = input.value.trim();
      if (!input.validity.valid) return null;
      if (field.text) wanted[field.id] = text || null;
      else if (text === "") wanted[field.id] = field.zero ? 0 : null;
      else wanted[field.id] = Math.round(Number(text) * (field.by || 1));
      // What was shown rounded and not touched is as it was.
      const shown = this.policy[field.id];
      if (field.by && shown != null && text === String(Math.round((shown / field.by) * 1000) / 1000)) wanted[field.id] = shown;
    }
    return wanted;
  }

  /** Whether a reservation that cannot be guaranteed is wanted all the same. */
  get #asFarAsItGoes() {
    return !this.looseBox.hidden && this.loose.checked;
  }

  #preview() {
    if (!this.policy) return;
    const wanted = this.#read();
    const changes = wanted && difference(this.policy, wanted);
    const some = changes && Object.keys(changes).length > 0;
    this.apply.disabled = !some || live.hello?.may === "look";
    this.reset.disabled = !this.touched;
    if (!wanted) say(this.outcome, "One of the fields has no valid number.");
    else if (!some) say(this.outcome, this.#asItIs());
    else say(this.outcome, this.#whatWillHappen(wanted, changes));
  }

  #asItIs() {
    const { shares, reservation_iops: floor, limit_iops: limit, limit_bytes_per_s: bandwidthLimit } = this.policy;
    const bounds = [floor ? `never less than ${exactly(floor)} units a second while it asks for them` : null,
      limit ? `never more than ${exactly(limit)}` : null, bandwidthLimit ? `never more than ${bandwidth(bandwidthLimit)}` : null].filter(Boolean);
    return `Now: ${this.#portion(shares)}${bounds.length ? `; ${bounds.join(", ")}` : "; no reservation, no limit"}.`;
  }

  /** Its part of the datastore with so many shares, as far as this host knows who asks. */
  #parts(shares) {
    const store = this.datastores.find((one) => one.name === this.datastore);
    const here = this.disks.filter((one) => one.datastore === this.datastore && one.name !== this.name && (one.demand > 0 || one.did.iops > 0));
    const there = (store?.others || []).filter((one) => one.demand > 0 && one.key !== this.key);
    const others = [...here, ...there].reduce((sum, one) => sum + one.shares, 0);
    return { part: shares / (shares + others), others: here.length + there.length, engaged: Boolean(store?.engaged) };
  }

  #portion(shares) {
    const { part, others } = this.#parts(shares);
    const called = NAMED[shares] ? `${exactly(shares)} shares (${NAMED[shares]})` : `${exactly(shares)} shares`;
    return others ? `${called}: ${percent(part)} of datastore ${this.datastore} while it is congested, beside ${others} other disk${others === 1 ? "" : "s"} with I/O now` : `${called}; no other disk has I/O now`;
  }

  #whatWillHappen(wanted, changes) {
    const told = [];
    if ("shares" in changes) {
      const [before, after] = [this.#parts(this.policy.shares), this.#parts(wanted.shares)];
      told.push(after.others
                ? `its part of datastore ${this.datastore} ${after.engaged ? "goes" : "goes, while that is congested,"} from ${percent(before.part)} to ${percent(after.part)} (${exactly(wanted.shares)} shares instead of ${exactly(this.policy.shares)}), and the ${after.others === 1 ? "other disk" : `${after.others} other disks`} with I/O now get${after.others === 1 ? "s" : ""} ${after.part > before.part ? "less" : "more"}`
        : `it has ${exactly(wanted.shares)} shares instead of ${exactly(this.policy.shares)}, without an effect on other disks now`);
    }
    if ("reservation_iops" in changes) {
            told.push(wanted.reservation_iops === 0 ? "it has no reservation any more"
        : `it gets at least ${exactly(wanted.reservation_iops)} units a second while it asks for them, before shares count; ${this.#asFarAsItGoes ? "if that cannot be guaranteed, it is met as far as possible, and all reservations are reduced" : "if that cannot be guaranteed, nothing changes"}`);
    }
    if ("limit_iops" in changes) {
      const now = this.disks.find((one) => one.name === this.name)?.did.units;
      told.push(wanted.limit_iops == null ? `it has no limit any more${this.#lostBurst(changes)}`
        : `it gets at most ${exactly(wanted.limit_iops)} units a second at any time${now > wanted.limit_iops ? ` (it does ${count(now)} now, so its guest will wait)` : ""}`);
    }
    if ("burst_iops" in changes || "burst_seconds" in changes) {
      told.push(wanted.burst_iops == null ? "there are no bursts beyond its limit"
                : `after a pause it can do ${exactly(wanted.burst_iops)} units a second for ${wanted.burst_seconds ?? 30} s`);
    }
    if ("limit_bytes_per_s" in changes) {
      told.push(wanted.limit_bytes_per_s == null ? "it has no bandwidth limit any more" : `it gets at most ${bytes(wanted.limit_bytes_per_s)} a second`);
    }
    if ("latency_target_us" in changes) {
      told.push(wanted.latency_target_us == null ? "it has no latency target any more" : `while the datastore is congested, its I/Os may go first to stay below ${time(wanted.latency_target_us)}, without more throughput`);
    }
    if ("group" in changes) {
            told.push(wanted.group == null ? "it is in no group any more" : `the limits of group ${wanted.group} apply to it too`);
    }
    const list = told.length > 1 ? `${told.slice(0, -1).join("; ")}; and ${told.at(-1)}` : told[0];
    return `If you apply this, ${list}. It takes effect ${this.attached ? "at once; no I/O fails or is lost" : "when the disk is attached"}.`;
  }

  /** What goes with a limit that goes: the daemon keeps no burst beyond nothing. */
  #lostBurst(changes) {
    const { burst_iops: burst, burst_seconds: lasts } = this.policy;
    if (burst == null || "burst_iops" in changes) return "";
    return `, and its burst of ${exactly(burst)} units a second for ${lasts ?? 30} s is removed too`;
  }

  #reset() {
    this.touched = false;
    say(this.bad, "");
    this.looseBox.hidden = true;
    this.#write(this.policy);
    this.#preview();
  }

  async #order(changes) {
    const body = { policy: changes };
    if (this.#asFarAsItGoes) body.unpromised = "best-effort";
    const disk = await ask("PATCH", `/dashboard/disks/${encodeURIComponent(this.name)}/policy`, body);
    this.touched = false;
    this.looseBox.hidden = true;
    this.loose.checked = false;
    this.changed(disk);
    return disk.policy;
  }

  /** What was refused, and why; with the offer to have a reservation as far as it goes. */
  #tellRefusal(problem) {
    const { what, why = [], remedy } = problem.problem || { what: problem.message };
    say(this.bad, `✗ ${[what, ...why].join(": ")}.${remedy ? ` What to do: ${remedy}.` : ""}`);
    if (problem.problem?.code === "full") this.looseBox.hidden = false;
    this.#preview();
  }

  async #apply() {
    const wanted = this.#read();
    const changes = wanted && difference(this.policy, wanted);
    if (!changes || Object.keys(changes).length === 0) return;
    say(this.bad, "");
    say(this.done, "");
    this.apply.disabled = true;
    try {
      // By all that it was and is: what the daemon changes besides comes back too.
      const { policy: before } = await ask("GET", `/v1/disks/${encodeURIComponent(this.name)}`);
      const now = await this.#order(changes);
      this.before = { policy: before, changes: difference(now, before) };
      this.undo.hidden = false;
      say(this.done, "✓ Applied.");
    } catch (problem) {
      this.#tellRefusal(problem);
    }
  }

  async #undo() {
    say(this.bad, "");
    try {
      const now = await this.#order(this.before.changes);
      this.undo.hidden = true;
      const same = Object.keys(difference(now, this.before.policy)).length === 0;
      say(this.done, same ? "✓ As before." : "✓ Undone. Changes by others meanwhile stay.");
      this.apply.focus();
    } catch (problem) {
      this.#tellRefusal(problem);
    }
  }
}
