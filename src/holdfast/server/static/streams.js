// Output streams of a job: new chunks are added as its handler writes them. A section of the handler that runs again
// replaces what it had written.
(() => {
  "use strict";
  const MOST = 200000; // characters that stay on the page
  const sources = new Map();
  const scan = () => {
    for (const [part, source] of sources) if (!part.isConnected || document.hidden) { source.close(); sources.delete(part); }
    if (document.hidden) return;
    for (const part of document.querySelectorAll("pre[data-stream]")) if (!sources.has(part)) sources.set(part, follow(part));
  };
  const follow = (part) => {
    const url = new URL(part.dataset.stream, location.href);
    if (part.dataset.after) url.searchParams.set("after", part.dataset.after);
    const source = new EventSource(url);
    source.addEventListener("chunk", (event) => {
      const chunk = JSON.parse(event.data), section = String(chunk.section);
      if (chunk.replaces) for (const old of part.querySelectorAll(`[data-section="${section}"]`)) old.remove();
      const end = part.scrollHeight - part.scrollTop - part.clientHeight < 40;
      const text = typeof chunk.data === "string" ? chunk.data : `${JSON.stringify(chunk.data)}\n`;
      let last = part.lastElementChild;
      if (last?.dataset.section !== section) {
        last = document.createElement("span");
        last.dataset.section = section;
        part.append(last);
      }
      last.append(text);
      while (part.textContent.length > MOST && part.firstElementChild !== last) part.firstElementChild.remove();
      part.dataset.after = event.lastEventId;
      if (end) part.scrollTop = part.scrollHeight;
    });
    source.addEventListener("end", () => { source.close(); delete part.dataset.stream; });
    return source;
  };
  document.addEventListener("htmx:afterSwap", scan);
  document.addEventListener("visibilitychange", scan);
  scan();
})();
