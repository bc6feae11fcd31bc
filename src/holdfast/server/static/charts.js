// Each chart is drawn from the table beside it, so the two always agree.
(() => {
  "use strict";
  const colorOf = (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`; // the content security policy allows this, but not a style attribute
    document.body.append(probe);
    const color = getComputedStyle(probe).color;
    probe.remove();
    return color;
  };
  const draw = (figure) => {
    const plot = figure.querySelector(".plot");
    const rows = [...figure.querySelectorAll("tbody tr")];
    if (plot.firstChild || rows.length < 2) return;
    const names = [...figure.querySelectorAll("thead th")].slice(1).map((cell) => cell.textContent);
    const number = (cell) => (cell.dataset.value === "" ? null : Number(cell.dataset.value));
    const data = [rows.map((row) => Number(row.dataset.at)),
      ...names.map((_, n) => rows.map((row) => number(row.querySelectorAll("td")[n])))];
    const [quiet, line] = [colorOf("--quiet"), colorOf("--line")];
    const axis = { stroke: quiet, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const unit = figure.dataset.unit, days = "days" in figure.dataset;
    const clock = (at) => new Date(at * 1e3).toISOString().slice(days ? 5 : 11, 16).replace("T", " ");
    const dashes = [undefined, [6, 3], [2, 2], [10, 3], [4, 2, 1, 2], [1, 3], [8, 2, 2, 2]];
    const chart = new uPlot({
      width: plot.clientWidth || 400, height: 180, tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "UTC"),
      cursor: { y: false }, legend: { live: true },
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((at) => (days ? clock(at).slice(0, 5) : clock(at))) },
        { ...axis, size: 48, values: (_, ticks) => ticks.map((tick) => `${tick}${unit}`) }],
      series: [{ value: (_, at) => (at ? clock(at) : "–") },
        ...names.map((label, n) => ({ label, stroke: colorOf(`--bar-${n % 7 + 1}`), width: 1.6, dash: dashes[n % 7], spanGaps: true,
          points: { show: rows.length < 4 || unit !== "", size: 4 }, value: (_, value) => (value === null || value === undefined ? "–" : `${+value.toFixed(2)}${unit}`) }))],
    }, data, plot);
    new ResizeObserver(() => { if (plot.clientWidth) chart.setSize({ width: plot.clientWidth, height: 180 }); }).observe(plot);
  };
  const all = () => document.querySelectorAll("[data-chart]").forEach(draw);
  document.addEventListener("htmx:afterSettle", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of document.querySelectorAll("[data-chart] .plot")) plot.replaceChildren();
    all();
  });
  all();
})();
