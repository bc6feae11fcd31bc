// The dependencies of a workflow, laid out by dagre and drawn as SVG. User text is set as text, never as markup.
(() => {
  "use strict";
  const WIDTH = 190, HEIGHT = 46, SVG = "http://www.w3.org/2000/svg";
  const make = (name, attributes, inside = []) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inside);
    return element;
  };
  const short = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

  const draw = (canvas, workflow) => {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 50, marginx: 6, marginy: 6 });
    graph.setDefaultEdgeLabel(() => ({}));
    const keys = new Map(workflow.nodes.map((node, index) => [node.id, `n${index}`]));
    for (const node of workflow.nodes) graph.setNode(keys.get(node.id), { width: WIDTH, height: HEIGHT });
    for (const edge of workflow.edges) graph.setEdge(keys.get(edge.from), keys.get(edge.to), { met: edge.met });
    dagre.layout(graph);
    const size = graph.graph();
    const arrow = make("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      [make("path", { d: "M0 0L8 4L0 8z" })]);
    const drawing = make("svg", { width: Math.ceil(size.width), height: Math.ceil(size.height) }, [make("defs", {}, [arrow])]);
    for (const name of graph.edges()) {
      const { points, met } = graph.edge(name);
      const d = points.map(({ x, y }, n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      drawing.append(make("path", { d, class: met ? "met" : "open", "marker-end": "url(#arrow)" }));
    }
    for (const node of workflow.nodes) {
      const { x, y } = graph.node(keys.get(node.id));
      const label = make("text", { x: x - WIDTH / 2 + 10, y: y - 3 });
      label.textContent = short(node.label, 26);
      const state = make("text", { x: x - WIDTH / 2 + 10, y: y + 13, class: "state" });
      state.textContent = short(`${node.kind} · ${(node.status === "skipped" ? "skipped" : node.state).replaceAll("_", " ")}`, 30);
      const title = make("title", {});
      title.textContent = `${node.label}: ${node.state.replaceAll("_", " ")}`;
      const link = make("a", { href: node.link, class: node.state }, [
        title, make("rect", { x: x - WIDTH / 2, y: y - HEIGHT / 2, width: WIDTH, height: HEIGHT, rx: 7 }), label, state,
      ]);
      drawing.append(link);
    }
    canvas.replaceChildren(drawing);
  };

  for (const panel of document.querySelectorAll("[data-graph]")) {
    fetch(panel.dataset.graph, { headers: { accept: "application/json" } })
      .then((response) => response.ok ? response.json() : Promise.reject(response.status))
      .then((workflow) => { panel.hidden = false; draw(panel.querySelector(".canvas"), workflow); })
      .catch(() => { panel.hidden = true; });
  }
})();
