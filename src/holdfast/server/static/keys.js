// Keyboard shortcuts: `?` lists them. They are off while the user types, and with a modifier key.
(() => {
  "use strict";
  const root = document.body.dataset.root;
  const pages = { o: "/", j: "/jobs", a: "/approvals", d: "/dead-letters", w: "/workflows", s: "/schedules", q: "/queues", k: "/workers", l: "/limits",
    t: "/tenants", u: "/audit", y: "/system" };
  const typing = (at) => at.isContentEditable || at.matches("input:not([type=checkbox]), textarea, select");
  let pendingG = 0;

  const moveFocus = (step) => {
    const rows = [...document.querySelectorAll("table[data-rows] tbody tr")].filter((row) => row.querySelector("a[href]"));
    if (!rows.length) return;
    const here = rows.findIndex((row) => row.contains(document.activeElement));
    const next = rows[here < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, here + step))];
    next.querySelector("a[href]").focus();
    next.scrollIntoView({ block: "nearest" });
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && typing(event.target)) return event.target.blur();
    if (typing(event.target) || document.querySelector("dialog[open]")) return;
    if (pendingG && Date.now() - pendingG < 1500) {
      pendingG = 0;
      const to = pages[event.key];
      if (to !== undefined) { event.preventDefault(); location.assign(root + to + document.body.dataset.query); }
      return;
    }
    const acts = {
      g: () => { pendingG = Date.now(); },
      "/": () => document.querySelector("input[type=search]")?.focus(),
      "?": () => document.getElementById("keys").showModal(),
      j: () => moveFocus(1),
      k: () => moveFocus(-1),
      x: () => document.activeElement.closest("tr")?.querySelector("input[type=checkbox]")?.click(),
      p: () => document.dispatchEvent(new Event("holdfast:pause")),
    };
    if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
  });
})();
