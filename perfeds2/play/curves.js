"use strict";
// Draw accuracy over simulated time as evaluations arrive.

const LINES = { SYN: { word: "synchronous", dash: "8 4" }, S2: { word: "semi-synchronous", dash: "" }, ASY: { word: "asynchronous", dash: "2 4" } };
const SVG = "http://www.w3.org/2000/svg";

function svgElement(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/** Draw the server's rows: mode, algorithm, time_s, test_accuracy_personal. */
function drawCurves(place, rows, endS) {
  const width = Math.max(place.clientWidth, 240), height = place.clientHeight || 300, left = 38, bottom = 34, right = 12, top = 8;
  const shares = rows.map((row) => row.test_accuracy_personal).filter((value) => value !== null);
  const low = Math.min(.8, Math.floor(Math.min(...shares, 1) * 10) / 10);
  const x = (s) => left + s / endS * (width - left - right), y = (share) => top + (1 - share) / (1 - low) * (height - top - bottom);
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  for (let level = low; level < 1.001; level += low >= .5 ? .1 : .2) {
    svg.append(svgElement("line", { class: "grid", x1: left, x2: width - right, y1: y(level), y2: y(level) }));
    svg.append(svgElement("text", { x: left - 6, y: y(level) + 4, "text-anchor": "end" }, (100 * level).toFixed(0)));
  }
  for (let part = 0; part <= 4; part++) {
    const anchor = part === 0 ? "start" : part === 4 ? "end" : "middle";
    svg.append(svgElement("text", { x: x(endS * part / 4), y: height - bottom + 16, "text-anchor": anchor }, shortNumber(endS * part / 4)));
  }
  svg.append(svgElement("text", { x: width - right, y: height - 4, "text-anchor": "end" }, "simulated seconds"));
  for (const [mode, line] of Object.entries(LINES)) {
    const own = rows.filter((row) => row.mode === mode && row.test_accuracy_personal !== null);
    const points = own.map((row) => `${x(row.time_s).toFixed(1)},${y(row.test_accuracy_personal).toFixed(1)}`).join(" ");
    svg.append(svgElement("polyline", { class: "curve", points, "data-mode": mode, stroke: `var(--${mode.toLowerCase()})`, "stroke-dasharray": line.dash }));
  }
  place.replaceChildren(svg);
  place.setAttribute("aria-label", sayCurves(rows));
}

function sayCurves(rows) {
  const said = Object.entries(LINES).flatMap(([mode, line]) => {
    const last = rows.filter((row) => row.mode === mode).at(-1);
    return last && last.test_accuracy_personal !== null ? [`${line.word} ${(100 * last.test_accuracy_personal).toFixed(1)} %`] : [];
  });
  return said.length ? `Personalised test accuracy so far: ${said.join(", ")}.` : "Nothing has been trained yet.";
}

/** Tabulate the latest accuracy, and when 90 and 95 % were first reached. */
function tableOfCurves(table, rows) {
  const cells = [["", "After", "Accuracy now", "Global model", "90 % after", "95 % after"]];
  for (const [mode, line] of Object.entries(LINES)) {
    const own = rows.filter((row) => row.mode === mode), last = own.at(-1);
    if (!last) continue;
    const first = (share) => own.find((row) => row.test_accuracy_personal >= share);
    const when = (share) => (first(share) ? `${shortNumber(first(share).time_s)} s` : "–");
    const percent = (value) => (value === null ? "diverged" : `${(100 * value).toFixed(1)} %`);
    cells.push([`${last.algorithm} (${line.word})`, `${shortNumber(last.time_s)} s`, percent(last.test_accuracy_personal), percent(last.test_accuracy), when(.9), when(.95)]);
  }
  fillTable(table, cells);
  Object.keys(LINES).forEach((mode, number) => {
    const head = table.tBodies[0] && table.tBodies[0].rows[number];
    if (head) head.cells[0].prepend(lineSample(mode), " ");
  });
}

/** Fill a table with texts. The first line is the header, and the first cell of each line is its title. */
function fillTable(table, lines) {
  table.replaceChildren();
  const parts = [table.createTHead(), table.createTBody()];
  lines.forEach((texts, number) => {
    const row = parts[Math.min(number, 1)].insertRow();
    texts.forEach((text, column) => {
      const isHead = (number === 0) !== (column === 0), cell = document.createElement(isHead ? "th" : "td");
      if (isHead) cell.scope = number ? "row" : "col";
      cell.textContent = text;
      row.append(cell);
    });
  });
}

function lineSample(mode) {
  const svg = svgElement("svg", { class: "line", width: 26, height: 8, "aria-hidden": "true" });
  svg.append(svgElement("line", { x1: 0, y1: 4, x2: 26, y2: 4, stroke: `var(--${mode.toLowerCase()})`, "stroke-width": 2.5, "stroke-dasharray": LINES[mode].dash }));
  return svg;
}
