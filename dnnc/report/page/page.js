"use strict";
// Draws the document in #data. Names come from models and machines: they reach the page as text only (textContent, and
// attributes set by name), never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// -- elements and numbers -------------------------------------------------------------------------------------------

function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "text", "path", "title", "line", "defs", "marker"].includes(name);
  const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== false) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

function scaled(value, step, units, whole) {
  let index = 0;
  while (Math.abs(value) >= step * (1 - 0.0005) && index + 1 < units.length) { value /= step; index += 1; }
  const size = Math.abs(value);
  const digits = size >= 99.95 || (whole && Number.isInteger(value)) ? 0 : size >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[index]}`.trim();
}
const known = (text) => (value) => (value === null || value === undefined ? "-" : text(value));
const format = {
  seconds: known((x) => (x === 0 ? "0 s" : Math.abs(x) >= 0.9995 ? scaled(x, Infinity, ["s"], false)
    : scaled(x * 1e9, 1000, ["ns", "us", "ms", "s"], false))),
  bytes: known((x) => scaled(x, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], true)),
  ratio: known((x) => `${x.toFixed(2)}x`),
  rate: known((x) => scaled(x, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"], true)),
  percent: known((x) => (x > 0 && x < 0.0005 ? "< 0.1 %" : `${(100 * (Math.abs(x) >= 0.0005 ? x : 0)).toFixed(1)} %`)),
  error: known((x) => (typeof x === "number" ? x.toExponential(1) : String(x))),
  text: known(String),
};
const short = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}\u2026`);
const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// -- tables ---------------------------------------------------------------------------------------------------------

// columns: {name, as: a format, bar: of which 1 fills it}; rows: lists of values.
function table(caption, columns, rows) {
  const head = columns.map((column) => make("th", { scope: "col", class: isNumber(column) ? "number" : null }, column.name));
  const body = rows.map((row) => make("tr", {}, ...row.map((value, place) => cell(columns[place], value))));
  return make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}
const isNumber = (column) => column.number ?? (column.as !== undefined && column.as !== "text");

function cell(column, value) {
  const text = format[column.as ?? "text"](value);
  const bar = column.bar && value !== null && value !== undefined ? meter(column.bar(value)) : null;
  return make("td", { class: isNumber(column) ? "number" : column.plain ? "plain" : "name" }, bar, text);
}

function meter(share) {
  return make("svg", { width: 60, height: 9, "aria-hidden": "true" },
    make("rect", { class: "bar-back", width: 60, height: 9, rx: 2 }),
    make("rect", { class: "bar", width: 60 * Math.min(1, Math.max(0, share)), height: 9, rx: 2 }));
}

function show(id, ...children) {
  $(id).replaceChildren(...children);
}

// -- the plan -------------------------------------------------------------------------------------------------------

function drawAnswers() {
  $("title").textContent = `${data.model} on ${data.topology}`;
  show("cards", ...data.answers.map(({ question, sentences }) =>
    make("article", { class: "card" }, make("h2", {}, question),
      ...sentences.map((sentence, place) => make("p", { class: place === 0 ? "first" : null }, sentence)))));
  show("stages", table("Stages", data.table.columns, data.table.rows));
  $("headline").textContent = data.headline.join("\n");
  const compared = [{ name: "stage", number: true }, { name: "device" }, { name: "tensor" }, { name: "alone", as: "error" }, { name: "chained", as: "error" }, { name: "allowed", as: "error" }, { name: "verdict" }];
  if (data.check) show("check", table("Compared with the unsplit model: largest difference over the range of each tensor", compared, data.check));
}

// -- the model ------------------------------------------------------------------------------------------------------

const OP = { name: 0, operator: 1, compute: 2, collectives: 3, bytes: 4, weights: 5, type: 6, strategy: 7, exchange: 8, formula: 9 };
const MOST_OPS = 300; // operators of a box that is drawn open
const MOST_BOXES = 500; // boxes that are drawn
const MOST_PLACES = 700; // boxes, and ranks that edges pass, which the layout looks at: its time grows with these
const opened = new Set();
let scale = 0; // not chosen yet: what fits the width

const runSeconds = (run) => run.compute + run.collectives;
const opSeconds = (op) => op[OP.compute] + op[OP.collectives];
const opsOf = (run) => data.variants[run.variant].ops;
const worst = Math.max(0, ...data.runs.map(runSeconds));

function runTitle(run) {
  const { layers } = run;
  return layers.length === 1 ? layers[0] : `${layers[0]} .. ${layers[layers.length - 1]}`;
}
function runFacts(run) {
  const equal = run.layers.length > 1 ? `${run.layers.length} equal layers of ${many(opsOf(run).length, "operator")}` : many(opsOf(run).length, "operator");
  const moved = run.collectives > 0 ? `, ${format.seconds(run.collectives)} exchange` : "";
  return [equal, `${format.seconds(run.compute)} compute${moved}`];
}

function layout() {
  const graph = new dagre.graphlib.Graph({ compound: true, multigraph: false });
  graph.setGraph({ rankdir: "TB", nodesep: 26, ranksep: 30, marginx: 40, marginy: 24 });
  const several = data.stages.length > 1;
  for (const stage of several ? data.stages : []) graph.setNode(`s${stage.index}`, { stage });
  data.runs.forEach((run, number) => {
    const id = `r${number}`;
    if (opened.has(number)) {
      graph.setNode(id, { run, number, open: true });
      opsOf(run).forEach((op, place) => {
        const label = short(op[OP.name], 30), does = short(`${op[OP.operator]}, ${format.seconds(opSeconds(op))}`, 34);
        const width = Math.max(130, 22 + 7 * label.length, 22 + 6 * does.length);
        graph.setNode(`${id}.${place}`, { op, run, number, width, height: 40, label, does });
        graph.setParent(`${id}.${place}`, id);
      });
      for (const [from, to] of data.variants[run.variant].edges) graph.setEdge(`${id}.${from}`, `${id}.${to}`, {});
    } else {
      const lines = [short(runTitle(run), 36), ...runFacts(run)];
      graph.setNode(id, { run, number, lines, width: 24 + 6.6 * Math.max(...lines.map((line) => line.length)), height: 74 });
    }
    if (several) graph.setParent(id, `s${run.stage}`);
  });
  const ends = { i: data.inputs, o: data.outputs };
  for (const [sign, list] of Object.entries(ends)) {
    list.forEach((end, number) => {
      const text = short(`${sign === "i" ? "input" : "output"} ${end.name} : ${end.type}`, 44);
      graph.setNode(`${sign}${number}`, { end: text, width: 20 + 6.6 * text.length, height: 26 });
    });
  }
  for (const [fromRun, fromOp, toRun, toOp, tensor, size] of data.edges) {
    const from = fromRun < 0 ? `i${fromOp}` : opened.has(fromRun) ? `r${fromRun}.${fromOp}` : `r${fromRun}`;
    const to = toRun < 0 ? `o${toOp}` : opened.has(toRun) ? `r${toRun}.${toOp}` : `r${toRun}`;
    const edge = graph.edge(from, to) ?? { tensors: [] };
    edge.tensors.push(`${tensor}, ${format.bytes(size)}`);
    edge.crosses = fromRun >= 0 && toRun >= 0 && data.runs[fromRun].stage !== data.runs[toRun].stage ? format.bytes(size) : "";
    graph.setEdge(from, to, edge);
  }
  const long = withoutLong(graph);
  dagre.layout(graph);
  for (const [key, edge] of long) {
    const [from, to] = [graph.node(key.v), graph.node(key.w)];
    const ends = [{ x: from.x, y: from.y + from.height / 2 }, { x: to.x, y: to.y - to.height / 2 }];
    graph.setEdge(key.v, key.w, { ...edge, crosses: "", far: true, points: [ends[0], { x: ends[0].x, y: (ends[0].y + ends[1].y) / 2 }, ends[1]] });
  }
  return graph;
}

// Takes the edges out that pass most ranks until there are few enough places; returns them.
function withoutLong(graph) {
  const rank = new Map(), left = new Map(graph.nodes().map((id) => [id, graph.inEdges(id).length]));
  const ready = [...left].filter(([, count]) => !count).map(([id]) => id);
  while (ready.length) {
    const id = ready.pop();
    for (const { w } of graph.outEdges(id)) {
      rank.set(w, Math.max(rank.get(w) ?? 0, (rank.get(id) ?? 0) + 1));
      left.set(w, left.get(w) - 1);
      if (!left.get(w)) ready.push(w);
    }
  }
  const span = (key) => Math.max(1, (rank.get(key.w) ?? 0) - (rank.get(key.v) ?? 0));
  let places = graph.nodeCount() + graph.edges().reduce((sum, key) => sum + span(key) - 1, 0);
  const out = [];
  for (const key of graph.edges().sort((one, two) => span(two) - span(one))) {
    if (places <= MOST_PLACES || span(key) < 2) break;
    places -= span(key) - 1;
    out.push([key, graph.edge(key)]);
    graph.removeEdge(key.v, key.w);
  }
  return out;
}

function drawGraph() {
  const boxes = data.runs.reduce((sum, run, number) => sum + (opened.has(number) ? opsOf(run).length : 1), 0);
  if (boxes > MOST_BOXES) {
    show("graph", make("p", { class: "empty" }, `${boxes} boxes are too many to draw; the table of operators lists what is in them.`));
    return;
  }
  const graph = layout();
  const { width, height } = graph.graph();
  if (!scale) scale = Math.min(1, Math.max(0.5, ($("graph").clientWidth - 4) / width));
  const svg = make("svg", { width: width * scale, height: height * scale, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Graph of the model" },
    make("defs", {}, make("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, make("path", { d: "M0 0L8 4L0 8z" }))));
  const clusters = make("g"), edges = make("g", { "aria-hidden": "true" }), nodes = make("g");
  const line = d3.line((point) => point.x, (point) => point.y).curve(d3.curveBasis);
  for (const key of graph.edges()) {
    const edge = graph.edge(key);
    const middle = edge.points[Math.floor(edge.points.length / 2)];
    edges.append(make("g", { class: edge.far ? "edge far" : "edge" }, make("title", {}, (edge.tensors ?? []).slice(0, 8).join("\n")),
      make("path", { d: line(edge.points), "marker-end": "url(#arrow)" }),
      edge.crosses ? make("text", { x: middle.x + 5, y: middle.y }, edge.crosses) : null));
  }
  for (const id of graph.nodes()) {
    const node = graph.node(id);
    const at = `translate(${node.x - node.width / 2},${node.y - node.height / 2})`;
    const box = { width: node.width, height: node.height, rx: 6 };
    if (node.stage) {
      const { index, devices, seconds } = node.stage;
      const label = `stage ${index} on ${short(devices, 40)}, ${format.seconds(seconds)}`;
      const wide = Math.max(node.width, 20 + 7 * label.length);
      clusters.append(make("g", { class: "stage", transform: at },
        make("rect", { ...box, x: (node.width - wide) / 2, y: -14, width: wide, height: node.height + 20 }),
        make("text", { x: (node.width - wide) / 2 + 9, y: 2 }, label)));
    } else if (node.open) {
      const toggle = button(node, at, `${runTitle(node.run)}: ${runFacts(node.run).join(", ")}. Open; close it`, true);
      toggle.classList.replace("node", "cluster");
      const label = `${runTitle(node.run)}${node.run.layers.length > 1 ? `, one of ${node.run.layers.length}` : ""}`;
      const wide = Math.max(node.width, 20 + 7 * label.length);
      toggle.append(make("rect", { ...box, x: (node.width - wide) / 2, y: -16, width: wide, height: node.height + 22 }), make("text", { x: (node.width - wide) / 2 + 9, y: 0 }, label));
      clusters.append(toggle);
    } else if (node.op) {
      nodes.append(opNode(node, at, box));
    } else if (node.end) {
      nodes.append(make("g", { class: "ends", transform: at }, make("rect", { ...box, rx: 13 }), make("text", { x: 10, y: 17 }, node.end)));
    } else {
      nodes.append(runNode(node, at, box));
    }
  }
  svg.append(clusters, edges, nodes);
  const { scrollLeft, scrollTop, clientWidth } = $("graph");
  const first = !$("graph").firstChild;
  show("graph", svg);
  $("graph").scrollTo(first ? (width * scale - clientWidth) / 2 : scrollLeft, scrollTop);
}

function button(node, at, label, open) {
  const group = make("g", { class: "node", transform: at, tabindex: 0, role: "button", "aria-expanded": String(open), "aria-label": label, "data-run": node.number });
  const toggle = () => {
    if (opsOf(node.run).length > MOST_OPS) {
      show("chosen", make("p", {}, `${runTitle(node.run)} has ${opsOf(node.run).length} operators, too many to draw; the table of operators lists them.`));
      return;
    }
    if (!opened.delete(node.number)) opened.add(node.number);
    drawGraph();
    $("graph").querySelector(`[data-run="${node.number}"][aria-expanded]`)?.focus();
  };
  group.addEventListener("click", toggle);
  group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); } });
  return group;
}

function runNode(node, at, box) {
  const { run, lines } = node;
  const group = button(node, at, `stage ${run.stage}, ${runTitle(run)}: ${runFacts(run).join(", ")}. Closed; open it`, false);
  if (run.layers.length > 1) {
    group.classList.add("many");
    group.append(make("rect", { class: "under", x: 4, y: 4, ...box }));
  }
  const full = node.width - 20;
  group.append(make("rect", { class: "box", ...box }), make("title", {}, `${runTitle(run)}\n${runFacts(run).join("\n")}`),
    ...lines.map((text, place) => make("text", { x: 10, y: 18 + 16 * place, class: place ? "soft" : null }, text)),
    make("rect", { class: "bar-back", x: 10, y: 60, width: full, height: 6, rx: 2 }),
    make("rect", { class: "bar", x: 10, y: 60, width: worst > 0 ? (full * runSeconds(run)) / worst : 0, height: 6, rx: 2 }));
  return group;
}

function opNode(node, at, box) {
  const { op, label, does } = node;
  const lines = [op[OP.name], op[OP.operator], `${format.seconds(op[OP.compute])} compute`];
  if (op[OP.collectives] > 0) lines.push(`${format.seconds(op[OP.collectives])} ${op[OP.exchange]}`);
  if (op[OP.strategy]) lines.push(`strategy ${op[OP.strategy]}`);
  lines.push(op[OP.type]);
  const group = make("g", { class: "node", transform: at, tabindex: 0, role: "button", "aria-label": lines.join(", "), "data-run": node.number });
  group.append(make("rect", { class: "box", ...box, rx: 3 }), make("title", {}, lines.join("\n")), make("text", { x: 8, y: 16 }, label),
    make("text", { class: "soft", x: 8, y: 31 }, does));
  const tell = () => show("chosen", make("p", {}, `${lines.join("; ")}.`));
  group.addEventListener("click", tell);
  group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); tell(); } });
  return group;
}

function listenToGraph() {
  $("graph").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    const nodes = [...$("graph").querySelectorAll("[tabindex='0']")];
    const next = nodes[nodes.indexOf(document.activeElement) + step];
    if (step && next) { event.preventDefault(); next.focus(); next.scrollIntoView({ block: "nearest", inline: "nearest" }); }
  });
  $("close-all").addEventListener("click", () => { opened.clear(); show("chosen"); drawGraph(); });
  $("smaller").addEventListener("click", () => { scale = Math.max(0.3, scale / 1.25); drawGraph(); });
  $("larger").addEventListener("click", () => { scale = Math.min(3, scale * 1.25); drawGraph(); });
}

// -- the timeline ---------------------------------------------------------------------------------------------------

const ROW = 26, THIN = 12;
let stretch = 1;

function drawTimelines() {
  const shown = ["predicted", "measured"].filter((name) => data[name]);
  const kinds = [...new Set(shown.flatMap((name) => data[name].kinds))];
  show("time-legend", ...kinds.map((kind) => legend(data.kinds[kind]?.name ?? kind, { fill: data.kinds[kind]?.colour ?? "#888888" })));
  $("time-text").textContent = data.timeline.map((line) => `${line[0].toUpperCase()}${line.slice(1)}.`).join(" ");
  const end = Math.max(...shown.map((name) => data[name].end));
  show("timelines", ...shown.flatMap((name) => {
    const left = data[name].left_out;
    const note = left ? make("p", { class: "empty" }, `Drawn until ${format.seconds(data[name].shown)} of ${format.seconds(data[name].end)}; ${many(left, "bar")} behind that ${left === 1 ? "is" : "are"} left out.`) : null;
    return [make("h3", {}, name === "predicted" ? "Predicted" : "Measured"), ...(note ? [note] : []), chart(name, data[name], end)];
  }));
}

const legend = (text, attributes) => make("li", {}, make("svg", { width: 12, height: 12, "aria-hidden": "true" }, make("rect", { width: 12, height: 12, rx: 2, ...attributes })), text);

function chart(name, timeline, end) {
  const room = Math.max(240, $("timelines").clientWidth - 190);
  const width = room * stretch;
  const x = d3.scaleLinear([0, end || 1], [0, width - 12]);
  let top = 4;
  const svg = make("svg", { width, role: "img", "aria-label": `${name} timeline of ${many(timeline.tracks.length, "track")} over ${format.seconds(end)}; the table of devices has the sums` });
  const names = make("div", { class: "names" });
  for (const track of timeline.tracks) {
    const height = track.lane ? THIN : ROW - 4;
    const step = track.lane ? THIN + 4 : ROW;
    svg.append(make("rect", { class: "row", x: 0, y: top, width: width - 12, height }));
    for (const [start, seconds, kind, stage, microbatch, label] of track.bars) {
      const key = timeline.kinds[kind];
      const length = Math.max(0.4, x(seconds) - x(0) - (x(seconds) > 4 ? 0.6 : 0));
      const bar = make("rect", { x: x(start), y: top, width: length, height, fill: data.kinds[key]?.colour ?? "#888888" },
        make("title", {}, `${timeline.names[label]}: ${format.seconds(start)} to ${format.seconds(start + seconds)}, ${format.seconds(seconds)}`));
      svg.append(bar);
      if (!track.lane && microbatch >= 0 && length > 10 + 7 * String(microbatch).length && !["send", "recv", "collective"].includes(key))
        svg.append(make("text", { x: x(start) + length / 2, y: top + 15, "text-anchor": "middle", "font-size": 11, "pointer-events": "none", class: "on-bar" }, microbatch));
    }
    const title = track.lane ? `${track.lane}` : track.devices;
    const label = make("div", { title: `${track.devices} ${track.lane}` }, title);
    label.style.height = `${step}px`;
    label.style.lineHeight = `${step}px`;
    names.append(label);
    top += step;
  }
  svg.append(timeAxis(x, top + 2, Math.max(3, width / 110), width));
  svg.setAttribute("height", top + 26);
  return make("div", { class: "chart" }, names, make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": `${name} timeline, scrolls sideways` }, svg));
}

// An axis of seconds. The labels of ticks near its ends start or end at their tick, so that none is cut off at the edge of the
// drawing, which is `width` pixels wide.
function timeAxis(x, top, ticks, width) {
  const axis = make("g", { class: "axis", transform: `translate(0,${top})` });
  d3.select(axis).call(d3.axisBottom(x).ticks(ticks).tickFormat(format.seconds));
  for (const tick of axis.querySelectorAll(".tick")) {
    const place = x(tick.__data__);
    const anchor = place < 24 ? "start" : place > width - 28 ? "end" : "middle";
    tick.querySelector("text").setAttribute("text-anchor", anchor);
  }
  return axis;
}

function listenToTime() {
  $("time-in").addEventListener("click", () => { stretch = Math.min(64, stretch * 2); drawTimelines(); });
  $("time-out").addEventListener("click", () => { stretch = Math.max(1, stretch / 2); drawTimelines(); });
}

// -- memory ---------------------------------------------------------------------------------------------------------

const MOST_CHARTS = 12;

function drawMemory(all = false) {
  const rows = data.memory;
  const trains = data.predicted && data.predicted.kinds.some((kind) => kind !== "F" && data.kinds[kind]?.backward);
  $("memory-text").textContent = rows.length
    ? `Weights${trains ? ", their gradients and optimizer state" : ""}, caches (counted as weights) and buffers of messages stay all the time; activations come and go.`
    : "The plan has no schedule, so its memory over time is not known.";
  show("memory-legend", ...(rows.length ? [legend("weights", { class: "area-weights" }), legend("buffers", { class: "area-buffers" }), legend("activations", { class: "area-activations" })] : []));
  const drawn = all ? rows : rows.slice(0, MOST_CHARTS);
  show("memories", ...drawn.map(memoryChart));
  if (drawn.length < rows.length) {
    const more = make("button", { type: "button" }, `Show all ${rows.length} charts`);
    more.addEventListener("click", () => drawMemory(true));
    $("memories").append(more);
  }
  const columns = [{ name: "device" }, { name: "weights", as: "bytes" }, { name: "buffers", as: "bytes" }, { name: "most at once", as: "bytes" },
    { name: "limit", as: "bytes" }, { name: "of the limit", as: "percent", bar: (share) => share }];
  show("memory-table", ...(rows.length ? [table("Memory by device", columns, rows.map((row) =>
    [row.devices, row.weights, row.buffers, row.peak, row.limit, row.limit ? row.peak / row.limit : null]))] : []));
}

function memoryChart(row) {
  const width = 380, height = 120, left = 60;
  const end = data.predicted.end || 1;
  const near = row.limit !== null && row.limit < 2.5 * row.peak;
  const x = d3.scaleLinear([0, end], [left, width - 6]);
  const y = d3.scaleLinear([0, (near ? Math.max(row.limit, row.peak) : row.peak) * 1.06 || 1], [height - 20, 6]);
  const steps = [...row.steps, [end, row.steps.length ? row.steps[row.steps.length - 1][1] : row.weights + row.buffers]];
  const base = row.weights + row.buffers;
  const band = (name, low, high) => make("path", { class: `area-${name}`, d: d3.area((step) => x(step[0]), (step) => y(low(step)), (step) => y(high(step))).curve(d3.curveStepAfter)(steps) });
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Memory of ${row.devices} over time: at most ${format.bytes(row.peak)}` },
    band("weights", () => 0, () => row.weights), band("buffers", () => row.weights, () => base), band("activations", () => base, (step) => Math.max(base, step[1])));
  const axes = make("g", { class: "axis" });
  axes.append(timeAxis(x, height - 20, 4, width));
  const top = y.domain()[1];
  d3.select(axes).append("g").attr("transform", `translate(${left},0)`).call(d3.axisLeft(y).tickValues([0, top / 3, (2 * top) / 3]).tickFormat(format.bytes));
  svg.append(axes);
  if (near) svg.append(make("line", { class: "limit", x1: left, x2: width - 6, y1: y(row.limit), y2: y(row.limit) }), make("text", { class: "limit-text", x: width - 8, y: y(row.limit) - 3, "text-anchor": "end" }, `limit ${format.bytes(row.limit)}`));
  const limit = row.limit === null ? "no limit" : `of ${format.bytes(row.limit)}`;
  return make("figure", {}, make("figcaption", {}, `${row.devices}: at most ${format.bytes(row.peak)} ${limit}`), svg);
}

// -- machines -------------------------------------------------------------------------------------------------------

function drawMachines() {
  const period = data.period || 1;
  const busy = (seconds) => seconds / period;
  const devices = [{ name: "device" }, { name: "type" }, { name: "host" }, { name: "stages" }, { name: "busy", as: "seconds", bar: busy }, { name: "compute", as: "seconds" },
    { name: "collectives", as: "seconds" }, { name: "transfers", as: "seconds" }, { name: "waits", as: "percent" }, { name: "memory", as: "bytes" }, { name: "of", as: "bytes" }];
  show("devices", table("Devices: seconds per microbatch", devices, data.devices.map((row) => [row.devices, row.type, row.hosts,
    row.stages.length ? row.stages.join(", ") : "none", row.busy, row.compute, row.collectives, row.transfers, row.waits, row.memory, row.limit])));
  const links = [{ name: "link" }, { name: "joins" }, { name: "bandwidth", as: "rate" }, { name: "latency", as: "seconds" }, { name: "mode" }, { name: "busy", as: "seconds", bar: busy }];
  show("links", data.links.length ? table("Links: seconds per microbatch in which what is sent over a link keeps it busy; - where it is a device's own port, whose seconds are the device's", links,
    data.links.map((row) => [row.links, row.ends, row.bandwidth, row.latency, row.mode, row.busy])) : make("p", { class: "empty" }, "The machines have no links."));
  const transfers = [{ name: "tensor" }, { name: "from" }, { name: "to" }, { name: "bytes", as: "bytes" }, { name: "seconds", as: "seconds" }];
  show("transfers", ...(data.transfers.length ? [table("Tensors that cross from stage to stage, per microbatch", transfers,
    data.transfers.map((row) => [row.tensor, `stage ${row.from} on ${row.devices[0]}`, `stage ${row.to} on ${row.devices[1]}`, row.bytes, row.seconds]))] : []));
}

// -- all of it ------------------------------------------------------------------------------------------------------

function listenToTheme() {
  const dark = () => getComputedStyle(document.documentElement).colorScheme === "dark"
    || (getComputedStyle(document.documentElement).colorScheme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  const name = () => { $("theme").textContent = dark() ? "Light" : "Dark"; };
  $("theme").addEventListener("click", () => { document.documentElement.style.colorScheme = dark() ? "light" : "dark"; name(); });
  name();
}

addEventListener("DOMContentLoaded", () => {
  drawAnswers();
  drawGraph();
  drawTimelines();
  drawMemory();
  drawMachines();
  listenToOps();
  drawOps();
  drawKinds();
  drawLayouts();
  listenToGraph();
  listenToTime();
  listenToTheme();
  let resized = 0;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(drawTimelines, 150); });
  document.documentElement.dataset.ready = "yes";
});
