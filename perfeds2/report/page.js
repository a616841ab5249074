"use strict";
// Draw the charts in light or dark mode, and let one legend control several of them.
let charts; // data and layout of each
const touch = matchMedia("(pointer: coarse)").matches;
const config = {
  responsive: true, displaylogo: false, scrollZoom: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], // listed by name, because the default includes a button that uploads the data
};
const hidden = new Set(); // hidden lines
const switches = Array.from(document.querySelectorAll("button[data-bands]")); // one per legend; all act together
let bands = switches.every((button) => button.getAttribute("aria-pressed") === "true"); // whether intervals are drawn

const LETTERS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;"=>?@^_`{|}~'; // base 85
async function unpacked(name) {
  const element = document.getElementById(name), text = element.textContent, values = new Uint8Array(128);
  for (let place = 0; place < 85; place++) values[LETTERS.charCodeAt(place)] = place;
  const words = new DataView(new ArrayBuffer((text.length / 5) * 4));
  for (let word = 0; word < text.length / 5; word++) {
    let sum = 0;
    for (let place = 0; place < 5; place++) sum = sum * 85 + values[text.charCodeAt(5 * word + place)];
    words.setUint32(4 * word, sum);
  }
  const packed = new Blob([words.buffer.slice(0, Number(element.dataset.bytes))]);
  return new Response(packed.stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

async function load() {
  const script = document.createElement("script");
  script.textContent = await unpacked("library"); // the page's policy has its hash
  document.body.append(script);
  charts = JSON.parse(await unpacked("charts"));
}

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
load().then(drawAll).then(() => { document.body.dataset.drawn = "yes"; });
