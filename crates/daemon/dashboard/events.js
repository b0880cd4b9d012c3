// The events page: events of datastores, live.

import { live } from "./live.js";
import { h } from "./draw.js";
import { diskHref } from "./host.js";
import { List } from "./table.js";
import { clock } from "./words.js";

// Where a promise is not kept or hosts do not agree: as the daemon's log has it.
const GRAVE = new Set(["reservation-unmet", "reservations-shrunk", "alone", "mute", "displaced", "paused", "trouble", "certificate", "missed", "cache-lost", "cache-device-astray", "cache-device-lost", "cache-corrupt", "cache-discarded", "cache-budget-spent"]);

function grave(event) {
  if (event.event === "host-lost") return !event.left;
  if (event.event === "external-load" || event.event === "alone" || event.event === "mute") return event.on;
  return GRAVE.has(event.event);
}

export class EventsPage {
  constructor(main) {
    this.list = new List({
      label: "Events", key: (event) => event.number, href: (event) => (event.disk ? diskHref(event.disk) : event.datastore ? `#/datastore/${encodeURIComponent(event.datastore)}` : "#/"),
      sorted: "when", empty: "No events since the daemon started.",
      columns: [
        { name: "when", text: (event) => clock(event.at_ms), by: (event) => event.number, num: false },
        { name: "datastore", text: (event) => event.datastore ?? "", wide: true },
        { name: "event", text: (event) => event.event, wide: true },
                { name: "description", text: (event) => (grave(event) ? "⚠ " : "") + event.text, sign: (event) => (grave(event) ? "stuck" : "") },
      ],
    });
    this.list.node.classList.add("events");
    main.append(h("h1", {}, "Events"), h("p", { class: "muted" }, "The latest 1024 events, newest first. On the command line: tidegate events --follow."),
      h("section", { "aria-label": "Events" }, this.list.node));
    this.list.update(live.events);
  }

  close() {}

  events() { this.list.update(live.events); }

  press(key) { return this.list.press(key); }
}
