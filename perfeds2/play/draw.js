"use strict";
// Draw a cell: a map of its UEs at one moment, and a chart of what every UE does over time.
// Times are integer ticks; the window that is shown has `ticks` of them.

const MERGED = 0, LOST = 1;
const STATES = ["idle", "computing", "sending", "waiting"];
const PHASES = ["waiting", "computing", "sending", "waiting"]; // of a job: the first for its model

/** Return the colours and patterns of the states, for light or dark mode. */
function makeTheme() {
  const css = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "soft", "grid", "card", "computing", "sending", "waiting", "merged", "lost", "accent"];
  const theme = Object.fromEntries(names.map((name) => [name, css.getPropertyValue(`--${name}`).trim()]));
  theme.font = getComputedStyle(document.body).fontFamily;
  theme.fill = { computing: theme.computing, sending: stripes(theme.sending, theme.paper), waiting: dots(theme.waiting, theme.paper) };
  return theme;
}

function tile(size, paint) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const pen = canvas.getContext("2d");
  paint(pen);
  return pen.createPattern(canvas, "repeat");
}

const stripes = (colour, paper) => tile(8, (pen) => {
  pen.fillStyle = colour; pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = paper; pen.globalAlpha = .5; pen.lineWidth = 1.6;
  for (const shift of [-8, 0, 8]) { pen.beginPath(); pen.moveTo(shift, 8); pen.lineTo(shift + 8, 0); pen.stroke(); }
});

const dots = (colour, paper) => tile(6, (pen) => {
  pen.fillStyle = paper; pen.fillRect(0, 0, 6, 6);
  pen.globalAlpha = .35; pen.fillStyle = colour; pen.fillRect(0, 0, 6, 6);
  pen.globalAlpha = 1; pen.fillRect(1, 1, 2, 2); pen.fillRect(4, 4, 2, 2);
});

/** Return a drawing context scaled to the pixels of the screen. */
function penOn(canvas, height) {
  const scale = window.devicePixelRatio || 1;
  if (height) canvas.style.height = `${height}px`;
  const width = canvas.clientWidth, tall = height || canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(tall * scale)) canvas.height = Math.round(tall * scale);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, tall);
  return { pen, width, height: tall };
}

// ---- the jobs

/** Return the jobs of each UE in order of time, for quick lookup. */
function jobsByUe(cell, ues) {
  const { ue, start } = cell.jobs;
  const own = Array.from({ length: ues }, () => []);
  for (let job = 0; job < ue.length; job++) own[ue[job]].push(job);
  for (const jobs of own) jobs.sort((a, b) => start[a] - start[b]);
  return own;
}

/** Count the sorted numbers that are at most `last`. */
function countUntil(numbers, last, of = (each) => each) {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (of(numbers[middle]) <= last) low = middle + 1; else high = middle;
  }
  return low;
}

/** Return a UE's state at a tick, its progress in that state, and the job. */
function stateAt(cell, ue, tick) {
  const { start, begun, sending, arrival, end } = cell.jobs, own = cell.byUe[ue];
  const job = own[countUntil(own, tick, (each) => start[each]) - 1];
  if (job === undefined || tick >= end[job]) return { state: "idle", share: 0, job };
  const borders = [start[job], begun[job], sending[job], arrival[job], end[job]];
  const phase = countUntil(borders.slice(1, 4), tick);
  const share = (tick - borders[phase]) / Math.max(borders[phase + 1] - borders[phase], 1);
  return { state: PHASES[phase], share, job };
}

/** Return how many rounds a base station's server had closed by a tick. */
const roundAt = (cell, tick, station) => countUntil(cell.rounds[station], tick);

// ---- the map of one moment

const FREE = .14; // share of the radius around the base station that stays empty

function drawMap(canvas, cell, { places_m: frames, stations_m: stations, cell_of: stationsOf, ticks }, tick, theme) {
  const now = Math.min(tick, cell.until), frame = frameAt(frames, now, ticks);
  const places = frames[frame], stationOf = stationsOf[frame];
  const { pen, width, height } = penOn(canvas);
  const ues = places.length, size = ues <= 12 ? 9 : ues <= 30 ? 7.5 : 5.5;
  const reach = (each) => frames[each].map(([x, y], ue) => Math.hypot(x - stations[stationsOf[each][ue]][0], y - stations[stationsOf[each][ue]][1]));
  const far = Math.max(...frames.flatMap((_, each) => reach(each)), 1);
  const [middleX, spanX] = middleAndSpan(stations, 0), [middleY, spanY] = middleAndSpan(stations, 1);
  const scale = (Math.min(width * far / (spanX / 2 + far), height * far / (spanY / 2 + far)) / 2 - size - 6) / far;
  const wide = stations.length > 1 ? 1 : Math.min(width / height, 1.6);  // use the width of the drawing
  const centres = stations.map(([x, y]) => [width / 2 + (x - middleX) * scale, height / 2 - (y - middleY) * scale]);
  const at = ([x, y], station) => {
    const dx = x - stations[station][0], dy = y - stations[station][1], distance = Math.hypot(dx, dy);
    const out = scale * (FREE * far + (1 - FREE) * distance) / Math.max(distance, .01);
    return [centres[station][0] + dx * out * wide, centres[station][1] - dy * out];
  };
  pen.strokeStyle = theme.grid; pen.lineWidth = 1;
  for (const centre of centres) for (const share of [.5, 1]) {
    pen.beginPath(); pen.ellipse(...centre, far * share * scale * wide, far * share * scale, 0, 0, 2 * Math.PI); pen.stroke();
  }
  const rounds = stations.map((_, station) => roundAt(cell, now, station)), flash = ticks / 40;
  const seen = places.map((place, ue) => ({ ...stateAt(cell, ue, now), xy: at(place, stationOf[ue]) }));
  seen.forEach(({ state, share, xy }, ue) => { if (state === "sending") drawUpload(pen, xy, centres[stationOf[ue]], share, theme); });
  for (const centre of centres) drawStation(pen, centre, theme);
  seen.forEach(({ state, job, xy }, ue) => {
    drawUe(pen, xy, size, state, job === undefined ? null : rounds[stationOf[ue]] - cell.jobs.version[job], theme);
    const own = cell.byUe[ue], { end, outcome } = cell.jobs;
    const ended = own[countUntil(own, now, (each) => end[each]) - 1];
    if (ended !== undefined && outcome[ended] !== 2 && now - end[ended] < flash) {
      drawOutcome(pen, xy, size, outcome[ended], (now - end[ended]) / flash, theme);
    }
  });
}

/** Return the number of the frame that shows where UEs are at a tick. */
const frameAt = (frames, tick, ticks) => Math.min(Math.floor(tick / ticks * frames.length), frames.length - 1);

/** Return the middle of the points along an axis, and how far they are apart. */
function middleAndSpan(points, axis) {
  const values = points.map((point) => point[axis]), low = Math.min(...values), high = Math.max(...values);
  return [(low + high) / 2, high - low];
}

function drawStation(pen, [x, y], theme) {
  pen.strokeStyle = theme.ink; pen.fillStyle = theme.ink; pen.lineWidth = 1.8;
  pen.beginPath(); pen.moveTo(x - 6, y + 9); pen.lineTo(x, y - 7); pen.lineTo(x + 6, y + 9); pen.moveTo(x - 4, y + 3); pen.lineTo(x + 4, y + 3); pen.stroke();
  pen.beginPath(); pen.arc(x, y - 8, 2.2, 0, 2 * Math.PI); pen.fill();
}

function drawUpload(pen, [x, y], [toX, toY], share, theme) {
  pen.strokeStyle = theme.sending; pen.lineWidth = 1.2; pen.globalAlpha = .55; pen.setLineDash([3, 4]);
  pen.beginPath(); pen.moveTo(x, y); pen.lineTo(toX, toY); pen.stroke();
  pen.setLineDash([]); pen.globalAlpha = 1; pen.fillStyle = theme.sending;
  pen.beginPath(); pen.arc(x + (toX - x) * share, y + (toY - y) * share, 2.6, 0, 2 * Math.PI); pen.fill();
}

/** Draw a UE: a square computes, a circle sends, an empty circle waits, a dot is idle. The number is its model's age. */
function drawUe(pen, [x, y], size, state, age, theme) {
  pen.beginPath();
  if (state === "idle") {
    pen.fillStyle = theme.soft; pen.arc(x, y, 2, 0, 2 * Math.PI); pen.fill();
    return;
  }
  if (state === "computing") pen.rect(x - size, y - size, 2 * size, 2 * size); else pen.arc(x, y, size * 1.1, 0, 2 * Math.PI);
  pen.fillStyle = state === "waiting" ? theme.paper : theme[state];
  pen.strokeStyle = state === "waiting" ? theme.soft : theme.paper; pen.lineWidth = 1.5;
  pen.fill(); pen.stroke();
  if (size > 6 && age !== null) {
    pen.fillStyle = state === "waiting" ? theme.soft : state === "sending" && theme.paper === "#ffffff" ? "#1d1200" : theme.paper;
    pen.font = `600 ${age > 99 ? 8 : 10}px ${theme.font}`; pen.textAlign = "center"; pen.textBaseline = "middle";
    pen.fillText(String(age), x, y + .5);
  }
}

function drawOutcome(pen, [x, y], size, outcome, share, theme) {
  pen.globalAlpha = 1 - .8 * share; pen.lineWidth = 2.5;
  pen.strokeStyle = outcome === MERGED ? theme.merged : theme.lost;
  pen.beginPath();
  if (outcome === MERGED) pen.arc(x, y, size + 3 + 4 * share, 0, 2 * Math.PI);
  else { const d = size + 3; pen.moveTo(x - d, y - d); pen.lineTo(x + d, y + d); pen.moveTo(x - d, y + d); pen.lineTo(x + d, y - d); }
  pen.stroke(); pen.globalAlpha = 1;
}

// ---- the activity chart over time

const LEFT = 26, BOTTOM = 20;

function activityHeight(ues) { return BOTTOM + 4 + Math.max(8, Math.min(14, 280 / ues)) * ues; }

/** Return the UE and tick at a point of the chart; null outside it. */
function placeInActivity(x, y, width, ues, ticks) {
  const row = (activityHeight(ues) - BOTTOM - 2) / ues, ue = Math.floor((y - 2) / row), tick = (x - LEFT) / (width - LEFT - 2) * ticks;
  return ue >= 0 && ue < ues && tick >= 0 && tick <= ticks ? { ue, tick } : null;
}

/** Draw the chart. Only the line of the current moment is redrawn every time; the rest is cached until something changes. */
function drawActivity(canvas, cell, ues, tick, ticks, windowS, theme) {
  const { pen, width, height } = penOn(canvas, activityHeight(ues)), kept = cell.drawn;
  if (!kept || kept.theme !== theme || kept.width !== width) {
    const base = document.createElement("canvas");
    [base.width, base.height] = [canvas.width, canvas.height];
    const own = base.getContext("2d");
    own.setTransform(pen.getTransform());
    drawAllAlong(own, width, height, cell, ues, ticks, windowS, theme);
    cell.drawn = { base, width, theme };
  }
  pen.drawImage(cell.drawn.base, 0, 0, width, height);
  const x = LEFT + tick / ticks * (width - LEFT - 2);
  pen.strokeStyle = theme.ink; pen.lineWidth = 1.5;
  pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height - BOTTOM + 3); pen.stroke();
}

function drawAllAlong(pen, width, height, cell, ues, ticks, windowS, theme) {
  const row = (height - BOTTOM - 2) / ues, x = (t) => LEFT + Math.min(t / ticks, 1) * (width - LEFT - 2), y = (ue) => 2 + ue * row;
  drawRounds(pen, cell, x, height - BOTTOM, theme);
  const { ue, start, begun, sending, arrival, end } = cell.jobs, thick = Math.max(row - (row > 6 ? 2 : .6), 1);
  [["waiting", start, begun], ["computing", begun, sending], ["sending", sending, arrival], ["waiting", arrival, end]].forEach(([state, from, to]) => {
    pen.fillStyle = theme.fill[state];
    for (let job = 0; job < ue.length; job++) {
      if (to[job] > from[job] && from[job] <= ticks) pen.fillRect(x(from[job]), y(ue[job]) + (row - thick) / 2, Math.max(x(to[job]) - x(from[job]), .5), thick);
    }
  });
  drawEnds(pen, cell, x, y, row, ticks, theme);
  if (cell.until < ticks) { // not simulated yet
    pen.fillStyle = theme.card; pen.fillRect(x(cell.until), 2, x(ticks) - x(cell.until), height - BOTTOM - 2);
  }
  drawSeconds(pen, x, ticks, windowS, width, height, theme);
  pen.textAlign = "right"; pen.textBaseline = "middle";
  const step = ues <= 12 ? 1 : ues <= 25 ? 5 : 10;
  for (let each = 0; each < ues; each += step) pen.fillText(String(each), LEFT - 5, y(each) + row / 2);
}

function drawRounds(pen, cell, x, bottom, theme) {
  const rounds = cell.rounds.flat();
  if (rounds.length > 80) return;
  pen.strokeStyle = theme.grid; pen.lineWidth = 1;
  for (const closed of rounds) { pen.beginPath(); pen.moveTo(x(closed), 2); pen.lineTo(x(closed), bottom); pen.stroke(); }
}

/** Draw a diamond where an update is merged, and a cross where a job is discarded. */
function drawEnds(pen, cell, x, y, row, ticks, theme) {
  const { ue, end, outcome } = cell.jobs, d = Math.min(row / 2 - .5, 3.6);
  for (let job = 0; job < ue.length; job++) {
    if (outcome[job] > LOST || end[job] > ticks) continue;
    const cx = x(end[job]), cy = y(ue[job]) + row / 2;
    drawEnd(pen, outcome[job], cx, cy, d, theme);
  }
}

function drawEnd(pen, outcome, cx, cy, d, theme) {
  pen.beginPath();
  if (outcome === MERGED) {
    pen.fillStyle = theme.merged; pen.strokeStyle = theme.paper; pen.lineWidth = .8;
    pen.moveTo(cx - d, cy); pen.lineTo(cx, cy - d); pen.lineTo(cx + d, cy); pen.lineTo(cx, cy + d); pen.closePath(); pen.fill(); pen.stroke();
  } else {
    pen.strokeStyle = theme.lost; pen.lineWidth = 1.8;
    pen.moveTo(cx - d, cy - d); pen.lineTo(cx + d, cy + d); pen.moveTo(cx - d, cy + d); pen.lineTo(cx + d, cy - d); pen.stroke();
  }
}

function drawSeconds(pen, x, ticks, windowS, width, height, theme) {
  pen.fillStyle = theme.soft; pen.font = `11px ${theme.font}`; pen.textBaseline = "bottom";
  const parts = width < 300 ? 2 : 4;
  for (let part = 0; part <= parts; part++) {
    pen.textAlign = part === 0 ? "left" : part === parts ? "right" : "center";
    pen.fillText(`${shortNumber(windowS * part / parts)}${part === parts ? " s" : ""}`, x(ticks * part / parts), height - 2);
  }
}

function drawKey(canvas, theme) {
  const { pen, width, height } = penOn(canvas, 14), what = canvas.dataset.key;
  if (what === "merged" || what === "lost") return drawEnd(pen, what === "merged" ? MERGED : LOST, width / 2, height / 2, 5, theme);
  pen.fillStyle = theme.fill[what];
  pen.fillRect(0, 1, width, height - 2);
}

/** Format a number with at most three significant digits. */
function shortNumber(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e4) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return String(Number(value.toPrecision(3)));
}
