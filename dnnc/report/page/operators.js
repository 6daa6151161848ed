"use strict";
// Draws the table of operators and the layouts of a block, with what page.js defines.

// -- operators ------------------------------------------------------------------------------------------------------

const STEP = 100;
const opRows = data.runs.flatMap((run) => opsOf(run).map((op, place) => ({
  place, name: op[OP.name], layers: runTitle(run), all: run.layers, count: run.layers.length, stage: run.stage, operator: op[OP.operator], compute: op[OP.compute], formula: op[OP.formula],
  collectives: op[OP.collectives], total: opSeconds(op) * run.layers.length, bytes: op[OP.bytes], type: op[OP.type], strategy: op[OP.strategy], exchange: op[OP.exchange],
})));
const whole = opRows.reduce((sum, row) => sum + row.total, 0);
const OPS = [["name", "operator's name"], ["layers", "layers"], ["count", "times", "count"], ["stage", "stage", "count"], ["operator", "operator"], ["compute", "compute", "seconds"],
  ["formula", "by formula", "seconds"], ["collectives", "collectives", "seconds"], ["total", "all copies", "seconds"], ["bytes", "results", "bytes"], ["type", "type"], ["strategy", "strategy"], ["exchange", "exchange"]]
  .filter(([key]) => !["formula", "collectives", "strategy", "exchange"].includes(key) || opRows.some((row) => row[key]));
format.count = known(String);
const sorting = { key: null, down: true };
let most = STEP;

function foundOps() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const stage = $("stage-filter").value;
  const hit = (row) => words.every((word) => [row.name, row.operator, row.type, row.strategy, row.exchange, ...row.all, ...row.all.map((layer) => `${layer}.${row.name}`)]
    .some((text) => text.toLowerCase().includes(word)));
  const rows = opRows.filter((row) => (stage === "" || String(row.stage) === stage) && hit(row));
  const { key, down } = sorting;
  if (key) rows.sort((one, two) => (down ? -1 : 1) * (typeof one[key] === "number" ? one[key] - two[key] : one[key] < two[key] ? -1 : one[key] > two[key] ? 1 : 0));
  return rows;
}

function drawOps() {
  const rows = foundOps();
  const head = OPS.map(([key, title, as]) => {
    const sort = make("button", { type: "button", "data-sort": key }, title);
    sort.addEventListener("click", () => {
      Object.assign(sorting, sorting.key === key ? { down: !sorting.down } : { key, down: as !== undefined });
      drawOps();
      document.querySelector(`[data-sort="${key}"]`).focus();
    });
    const order = sorting.key === key ? (sorting.down ? "descending" : "ascending") : "none";
    return make("th", { scope: "col", "aria-sort": order, class: as ? "number" : null }, sort);
  });
  const body = rows.slice(0, most).map((row) => make("tr", {}, ...OPS.map(([key, , as]) =>
    cell({ as: as ?? "text", plain: key === "type" || key === "operator", bar: key === "total" && whole > 0 ? (value) => value / whole : null }, row[key]))));
  show("ops-table", make("table", {}, make("caption", {}, "Operators; a title sorts"), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
  $("found").textContent = `${many(rows.length, "row")}${rows.length > most ? `, ${most} shown` : ""}, ${many(rows.reduce((sum, row) => sum + row.count, 0), "operator")}`;
  $("more").hidden = rows.length <= most;
}

// Seconds of all operators of a kind, where a profile told any: those of the formulas beside those that the plan counts.
function drawKinds() {
  const kinds = new Map();
  for (const row of opRows) {
    if (row.formula === null) continue;
    const sums = kinds.get(row.operator) ?? { count: 0, formula: 0, compute: 0 };
    kinds.set(row.operator, { count: sums.count + row.count, formula: sums.formula + row.count * row.formula, compute: sums.compute + row.count * row.compute });
  }
  const rows = [...kinds].map(([operator, { count, formula, compute }]) => [operator, count, formula, compute, compute > 0 ? formula / compute : null])
    .sort((one, two) => Math.max(two[2], two[3]) - Math.max(one[2], one[3]));
  const columns = [{ name: "operator", plain: true }, { name: "copies", number: true }, { name: "predicted", as: "seconds" }, { name: "measured", as: "seconds" }, { name: "ratio", as: "ratio" }];
  show("kinds", ...(rows.length ? [make("details", {}, make("summary", {}, "Predicted and measured seconds by operator"), table("Predicted: by formulas; measured: by the profile that the plan was made with, each with the operators that are fused into it", columns, rows))] : []));
}

function listenToOps() {
  $("stage-filter").append(make("option", { value: "" }, "all"), ...data.stages.map((stage) => make("option", { value: stage.index }, `${stage.index} on ${short(stage.devices, 40)}`)));
  const again = () => { most = STEP; drawOps(); };
  $("search").addEventListener("input", again);
  $("stage-filter").addEventListener("change", again);
  $("more").addEventListener("click", () => { most += 5 * STEP; drawOps(); });
}

// -- layouts --------------------------------------------------------------------------------------------------------

function drawLayouts() {
  const split = data.runs.map((run, number) => ({ run, number })).filter(({ run }) => data.variants[run.variant].layouts);
  if (!split.length) { $("layouts").hidden = true; $("to-layouts").hidden = true; return; }
  const typical = split.reduce((one, two) => (runSeconds(two.run) > runSeconds(one.run) ? two : one));
  $("block").append(...split.map(({ run, number }) => make("option", { value: number, selected: number === typical.number ? "" : false },
    `stage ${run.stage}: ${short(runTitle(run), 60)}${run.layers.length > 1 ? ` (${run.layers.length} equal layers)` : ""}`)));
  const draw = () => {
    const run = data.runs[Number($("block").value)];
    const { columns, rows } = data.variants[run.variant].layouts;
    const plain = columns.map((column) => ({ ...column, plain: column.name !== "op" }));
    show("layout-table", table(`One layer of ${runTitle(run)} on stage ${run.stage}`, plain, rows));
  };
  $("block").addEventListener("change", draw);
  draw();
}
