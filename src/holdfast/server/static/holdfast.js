// Progressive enhancement: every page works without it. No inline handlers: the content security policy forbids them.
(() => {
  "use strict";

  // A destructive form needs a confirmation: in this dialog, or without JavaScript on a page of the service.
  const ask = document.getElementById("ask");
  document.addEventListener("submit", (event) => {
    const form = event.target;
    const question = event.submitter?.dataset.confirm ?? form.dataset.confirm;
    if (!question || form.elements.confirmed || event.defaultPrevented) return;
    event.preventDefault();
    const button = event.submitter;
    const picked = form.querySelectorAll("input[name=id]:checked").length;
    const which = form.elements.everything?.checked ? "all matching jobs" : `${picked} selected ${picked === 1 ? "job" : "jobs"}`;
    document.getElementById("ask-question").textContent = question.replace("{}", which);
    ask.returnValue = "";
    ask.showModal();
    ask.addEventListener("close", () => {
      if (ask.returnValue !== "yes") return button?.focus();
      const confirmed = document.createElement("input");
      Object.assign(confirmed, { type: "hidden", name: "confirmed", value: "yes" });
      form.append(confirmed);
      form.requestSubmit(button);
    }, { once: true });
  });

  // A double click submits once. (A page that is restored from the cache can be submitted again.)
  const sent = new Set();
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method !== "post") return;
    if (sent.has(event.target)) return event.preventDefault();
    sent.add(event.target);
  });
  addEventListener("pageshow", () => {
    for (const form of sent) form.elements.confirmed?.remove();
    sent.clear();
  });

  // Relative times ("3 min ago") are updated.
  const span = (s) => s < 60 ? `${Math.floor(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min`
    : s < 172800 ? `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min` : `${Math.floor(s / 86400)} d`;
  const updateTimes = () => {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const age = (Date.now() - Date.parse(time.dateTime)) / 1000;
      time.textContent = age >= 0 ? `${span(age)} ago` : `in ${span(-age)}`;
    }
  };
  setInterval(updateTimes, 5000);

  // Selected rows: a checkbox for the whole page, and a count.
  const count = (form) => {
    const boxes = [...form.querySelectorAll("input[name=id]")];
    const picked = boxes.filter((box) => box.checked).length;
    const all = form.querySelector("[data-pick-all]");
    if (all) { all.checked = picked > 0 && picked === boxes.length; all.indeterminate = picked > 0 && picked < boxes.length; }
    const label = form.querySelector("[data-picked]");
    if (label) label.textContent = picked ? `${picked} selected` : "None selected";
  };
  const prepare = () => {
    for (const form of document.querySelectorAll("form[data-pick]")) {
      for (const hidden of form.querySelectorAll("[data-with-script]")) hidden.hidden = false;
      count(form);
    }
  };
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submits]")) return event.target.form.submit();
    const form = event.target.closest("form[data-pick]");
    if (!form) return;
    if (event.target.matches("[data-pick-all]")) {
      for (const box of form.querySelectorAll("input[name=id]")) box.checked = event.target.checked;
    }
    count(form);
  });
  document.addEventListener("htmx:afterSettle", () => { prepare(); updateTimes(); });
  prepare();
})();
