// One stream per page says that something changed; then the live parts of the page are fetched again. Nothing is drawn
// from the stream itself, so the page shows what a reload would show.
(() => {
  "use strict";
  const state = document.getElementById("live-state");
  const parts = () => document.querySelectorAll("[data-live]");
  if (!state || !parts().length) return;
  const [words, button] = [state.querySelector("span"), state.querySelector("button")];
  const clock = () => new Date().toLocaleTimeString();
  const interval = () => Math.max(...[...parts()].map((part) => Number(part.dataset.live) || 1)) * 1000;
  const TIMEOUT = 40000; // the stream sends something every 15 s
  const POLL = 10000, EVERY = "Refreshed every 10 s";
  let source = null, timer = 0, polling = 0, last = 0, lastMessage = 0, due = false, paused = sessionStorage.getItem("paused") === "yes";

  const show = (is, text) => { state.dataset.is = is; words.textContent = text; state.hidden = false; };
  const stale = () => { if (!paused && state.dataset.is !== "stale") show("stale", `Stale since ${clock()}`); };

  // While the user types, chooses or sees a dialog, the page stays as it is.
  const busy = () => document.querySelector("dialog[open], details.action[open]") || document.hidden
    || [...parts()].some((part) => part.matches(":has(input:focus:not([type=checkbox]), textarea:focus, select:focus)"));
  const refresh = () => {
    timer = 0;
    if (paused) return;
    if (busy() || running.size) { due = true; return; }
    due = false;
    last = Date.now();
    for (const part of parts()) window.htmx.trigger(part, "changed");
  };
  // A change during a request may be missing in its answer: read again afterwards.
  const running = new Set();
  document.addEventListener("htmx:beforeSend", (event) => { if (event.target.matches("[data-live]")) running.add(event.detail.xhr); });
  document.addEventListener("htmx:afterRequest", (event) => setTimeout(() => { running.delete(event.detail.xhr); wake(); }, 50)); // after htmx settled
  const changed = () => { if (!timer) timer = setTimeout(refresh, Math.max(0, last + interval() - Date.now())); };
  const wake = () => { if (due && !busy()) changed(); };
  // A hidden page closes its stream: browsers have few connections for all their tabs.
  document.addEventListener("visibilitychange", () => {
    if (paused) return;
    if (document.hidden) { source?.close(); lastMessage = 0; } else reconnect();
  });
  document.addEventListener("focusout", () => setTimeout(wake, 50));
  document.addEventListener("close", () => setTimeout(wake, 50), true);
  document.addEventListener("toggle", () => setTimeout(wake, 50), true);

  // Keep checkboxes, open details and scroll positions.
  const kept = new Map();
  document.addEventListener("htmx:beforeSwap", (event) => {
    const part = event.detail.target;
    if (!part.matches("[data-live]")) return;
    if (event.detail.xhr.status >= 400) { event.detail.shouldSwap = false; stale(); return; }
    if (busy()) { event.detail.shouldSwap = false; due = true; return; } // the user began while the request was running
    const focus = document.activeElement;
    kept.set(part.id, {
      ticked: [...part.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value),
      open: [...part.querySelectorAll("details")].map((each) => each.open),
      scrolled: [...part.querySelectorAll(".scroll, pre")].map((each) => [each.scrollLeft, each.scrollTop]),
      link: part.contains(focus) ? focus.getAttribute("href") : null,
      at: [...part.querySelectorAll("button, summary")].indexOf(focus),
    });
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    for (const [id, was] of kept) {
      const part = document.getElementById(id);
      if (!part) continue;
      for (const box of part.querySelectorAll("input[type=checkbox]")) box.checked = was.ticked.includes(box.value);
      part.querySelectorAll("details").forEach((each, n) => { each.open = was.open[n] ?? each.open; });
      part.querySelectorAll(".scroll, pre").forEach((each, n) => { [each.scrollLeft, each.scrollTop] = was.scrolled[n] ?? [0, 0]; });
      if (was.link) part.querySelector(`a[href="${CSS.escape(was.link)}"]`)?.focus({ preventScroll: true });
      else if (was.at >= 0) part.querySelectorAll("button, summary")[was.at]?.focus({ preventScroll: true });
    }
    kept.clear();
    if (polling && !paused) show("live", EVERY);
  });
  document.addEventListener("htmx:sendError", stale);

  const open = () => {
    source = new EventSource(state.dataset.from);
    source.onopen = () => { lastMessage = Date.now(); show("live", "Live"); changed(); };
    source.onerror = () => { stale(); if (source.readyState === EventSource.CLOSED) pollInstead(); };
    source.addEventListener("changed", () => { lastMessage = Date.now(); if (state.dataset.is === "stale") show("live", "Live"); changed(); });
    source.addEventListener("here", () => { lastMessage = Date.now(); });
  };
  // A server that cannot keep connections open (Django under WSGI) responds with 204: then the page polls.
  const pollInstead = async () => {
    const probe = new AbortController();
    let status = 0;
    try {
      status = (await fetch(state.dataset.from, { headers: { accept: "text/event-stream" }, signal: probe.signal })).status;
    } catch { /* unreachable: reconnects below */ }
    probe.abort();
    if (status !== 204) setTimeout(reconnect, 5000);
    else if (!paused && !polling) { polling = setInterval(() => { if (!document.hidden) changed(); }, POLL); show("live", EVERY); }
  };
  const reconnect = () => { source?.close(); if (polling) changed(); else if (!paused && !document.hidden) open(); };
  const toggle = () => {
    paused = !paused;
    sessionStorage.setItem("paused", paused ? "yes" : "no");
    button.textContent = paused ? "Resume" : "Pause";
    if (paused) { source?.close(); clearInterval(polling); polling = 0; show("paused", `Paused at ${clock()}`); } else { show("connecting", "Connecting"); open(); }
  };
  button.addEventListener("click", toggle);
  document.addEventListener("holdfast:pause", toggle);
  setInterval(() => { if (!paused && lastMessage && Date.now() - lastMessage > TIMEOUT) { stale(); lastMessage = Date.now(); reconnect(); } }, 5000);
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (event) => { if (event.persisted) reconnect(); });
  if (paused) { paused = false; toggle(); } else open();
})();
