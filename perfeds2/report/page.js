"use strict";
// Draw the charts in light or dark mode, and let one legend control several of them.
const charts = JSON.parse(document.getElementById("charts").textContent);
const touch = matchMedia("(pointer: coarse)").matches;
const config = {
  responsive: true, displaylogo: false, scrollZoom: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], // listed by name, because the default includes a button that uploads the data
};
const hidden = new Set(); // hidden lines
const switches = Array.from(document.querySelectorAll("button[data-bands]")); // one per legend; all act together
let bands = switches.every((button) => button.getAttribute("aria-pressed") === "true"); // whether intervals are drawn

function template() {
  const css = getComputedStyle(document.documentElement);
  const value = (name) => css.getPropertyValue(name).trim();
  const clear = "rgba(0,0,0,0)";
  const axis = { gridcolor: value("--grid"), zeroline: false, ticks: "outside", ticklen: 4, tickcolor: clear };
  const title = { font: { size: 12, color: value("--soft") }, standoff: 8 };
  return {
    layout: {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: value("--ink") },
      paper_bgcolor: clear, plot_bgcolor: clear, dragmode: touch ? false : "zoom",
      modebar: { bgcolor: clear, color: value("--soft"), activecolor: value("--ink") },
      xaxis: { ...axis, title }, yaxis: { ...axis, title },
      hoverlabel: { bgcolor: value("--card"), bordercolor: value("--grid"), font: { size: 11.5, color: value("--ink") } },
    },
    data: { scatter: [{ marker: { color: value("--ink") }, line: { color: value("--ink") } }] },
  };
}

function draw(chart) {
  const { data, layout } = charts[chart.id];
  for (const trace of data) if ("meta" in trace) trace.visible = !hidden.has(trace.meta.line) && (bands || !trace.meta.band);
  return Plotly.react(chart, data, { ...layout, template: template() }, config);
}

const drawAll = () => Promise.all(Array.from(document.querySelectorAll(".chart"), draw));

function show(button, visible) {
  hidden[visible ? "delete" : "add"](button.dataset.line);
  button.setAttribute("aria-pressed", visible);
}

for (const button of document.querySelectorAll(".legend button[data-line]")) {
  button.addEventListener("click", () => { show(button, hidden.has(button.dataset.line)); drawAll(); });
  button.addEventListener("dblclick", () => {
    const all = Array.from(button.closest(".legend").querySelectorAll("button[data-line]"));
    const alone = all.every((other) => other === button || hidden.has(other.dataset.line));
    for (const other of all) show(other, alone || other === button);
    drawAll();
  });
}
function showBands(visible) {
  bands = visible;
  for (const button of switches) button.setAttribute("aria-pressed", bands);
}

showBands(bands);
for (const button of switches) button.addEventListener("click", () => { showBands(!bands); drawAll(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll().then(() => { document.body.dataset.drawn = "yes"; });
