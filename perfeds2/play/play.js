"use strict";
// The page: controls, the three cells, the animation, training, and the equivalent commands.

const data = JSON.parse(document.getElementById("data").textContent);
const canned = data.canned;
const byId = (name) => document.getElementById(name);
const still = matchMedia("(prefers-reduced-motion: reduce)");
const narrow = matchMedia("(max-width: 56rem)"); // as in play.css
const knobs = data.knobs;
const state = Object.fromEntries(knobs.map((knob) => [knob.name, knob.start]));
const TITLES = { SYN: "Synchronous", S2: "Semi-synchronous", ASY: "Asynchronous" };
const WHOLE_S = 15; // length of the animation at speed 1

let theme = makeTheme();
let answer = null; // the latest answer with the three cells
let tick = 0, playing = false, lastFrame = 0;

// ---- answers come from the server or, on a canned page, from the page itself

async function post(path, body) {
  const reply = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  return readReply(reply);
}

async function readReply(reply) {
  const said = await reply.json();
  if (!reply.ok) throw new Error(said.sentence || reply.statusText);
  return said;
}

function cannedRounds() {
  const places = canned.grid.map((name) => knobs.find((knob) => knob.name === name).values.indexOf(state[name]));
  return canned.answers[places.join(",")];
}

const askRounds = async (whole) => (canned ? cannedRounds() : post("rounds", { knobs: state, whole }));

// ---- knobs

function written(knob, value) {
  if (typeof value === "string") return value;
  if (knob.unit !== "Hz") return `${shortNumber(value)}${knob.unit ? ` ${knob.unit}` : ""}`;
  const [size, prefix] = value >= 1e9 ? [1e9, "G"] : value >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return `${shortNumber(value / size)} ${prefix}Hz`;
}

function makeElement(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function makeKnob(knob) {
  const id = `knob-${knob.name}`, shown = makeElement("output", { htmlFor: id });
  const label = makeElement("label", { htmlFor: id, textContent: knob.label });
  const input = knob.choice ? makeElement("select", { id }) : makeElement("input", { id, type: "range", min: 0, max: knob.values.length - 1, step: 1 });
  if (knob.choice) for (const value of knob.values) input.append(makeElement("option", { textContent: value }));
  knob.place = () => {
    const number = knob.values.indexOf(state[knob.name]);
    if (knob.choice) input.selectedIndex = number; else input.value = number;
    shown.textContent = knob.choice ? "" : written(knob, state[knob.name]);
    if (!knob.choice) input.setAttribute("aria-valuetext", shown.textContent);
  };
  input.addEventListener("input", () => {
    state[knob.name] = knob.values[knob.choice ? input.selectedIndex : Number(input.value)];
    moved(knob);
  });
  const made = makeElement("div", { className: "knob" }, makeElement("div", { className: "top" }, label, shown), input);
  if (knob.hint) {
    made.append(makeElement("p", { className: "hint", id: `${id}-hint`, textContent: knob.hint }));
    input.setAttribute("aria-describedby", `${id}-hint`);
  }
  return made;
}

function makeKnobs() {
  for (const group of new Set(knobs.map((knob) => knob.group))) {
    const own = knobs.filter((knob) => knob.group === group).map(makeKnob);
    if (group === "Training") { byId("learn-knobs").append(...own); continue; }
    const open = innerWidth > 640 || byId("knobs").childElementCount === 0;
    byId("knobs").append(makeElement("details", { open }, makeElement("summary", { textContent: group }), ...own));
  }
  if (canned) {
    const said = canned.stays.map((knob) => `${knob.label}: ${written(knob, knob.start)}`).join(". ");
    byId("knobs").after(makeElement("p", { className: "stays", textContent: `With perfeds2 play you can change everything; in this file these are fixed: ${said}.` }));
  }
}

/** Keep A at most the number of UEs: a round that waits for more would never close. */
function holdQuorum() {
  if ("ues" in state && state.quorum > state.ues) state.quorum = state.ues;
}

let movedAt = 0;

function moved(knob) {
  movedAt = performance.now();
  if (knob.name === "quorum" && "ues" in state && state.quorum > state.ues) state.ues = state.quorum;
  holdQuorum();
  for (const each of knobs) each.place();
  remember();
  ask();
}

// The address stores the controls, so that a reload or a bookmark restores them.
function remember() {
  const moved_ = knobs.filter((knob) => state[knob.name] !== knob.start).map((knob) => `${knob.name}=${state[knob.name]}`);
  history.replaceState(null, "", `#${moved_.join("&")}`);
}

function recall() {
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    const knob = knobs.find((each) => each.name === name);
    const value = knob && knob.values.find((each) => String(each) === text);
    if (value !== undefined) state[name] = value;
  }
  holdQuorum();
  for (const knob of knobs) knob.place();
}

// ---- requests: one at a time, then the newest

let asking = false, askedAgain = false;

async function ask() {
  if (asking) { askedAgain = true; return; }
  asking = true;
  try {
    do {
      askedAgain = false;
      show(await askRounds(false));
      document.body.dataset.answeredMs = (performance.now() - movedAt).toFixed(1);
      if (!askedAgain && answer.cells.some((cell) => cell.complete === false)) show(await askRounds(true));
    } while (askedAgain);
    complain("");
  } catch (error) {
    complain(error instanceof TypeError ? "The server does not answer; start perfeds2 play again." : error.message);
  }
  asking = false;
}

function complain(sentence) {
  byId("trouble").textContent = sentence;
  byId("trouble").hidden = !sentence;
}

// ---- showing the cells

const views = {}; // the elements of each cell, by mode

function makeCells() {
  for (const mode of Object.keys(TITLES)) {
    const view = { title: makeElement("h2", { id: `title-${mode}` }), map: makeElement("canvas", { className: "map" }), moment: makeElement("p", { className: "moment" }) };
    Object.assign(view, { activity: makeElement("canvas", { className: "activity" }), numbers: makeElement("dl", { className: "numbers" }), warn: makeElement("p", { className: "warn" }) });
    for (const canvas of [view.map, view.activity]) canvas.setAttribute("role", "img");
    const article = makeElement("article", { className: "cell" }, view.title, view.map, view.moment, view.activity, view.warn, view.numbers);
    article.style.setProperty("--mode", `var(--${mode.toLowerCase()})`);
    article.setAttribute("aria-labelledby", view.title.id);
    view.activity.addEventListener("pointermove", (event) => readOut(mode, event));
    view.activity.addEventListener("click", (event) => { const place = pointed(view, event); if (place) goTo(place.tick); });
    views[mode] = view;
    byId("cells").append(article);
  }
}

function show(latest) {
  const ues = latest.places_m[0].length;
  for (const cell of latest.cells) if (cell.jobs) cell.byUe = jobsByUe(cell, ues);
  answer = latest;
  tick = Math.min(tick, answer.ticks);
  for (const cell of answer.cells) describe(cell, views[cell.mode], ues);
  keepScore();
  for (const name of ["shown_by", "trained_by", "python"]) byId(name).textContent = answer[name];
  drawAll();
  document.body.dataset.drawn = "yes";
}

const percent = (share) => `${(100 * share).toFixed(share < .0995 ? 1 : 0)} %`;
const number = (value) => (value === null ? "–" : shortNumber(value));

function warningOf(cell) {
  if (cell.sentence) return `No rounds: ${cell.sentence}`;
  if (cell.numbers.rounds === 0) return `No round closes in ${answer.window_s} s; show more seconds.`;
  return cell.complete === false ? `Only the first ${cell.rounds.flat().length} rounds are shown.` : "";
}

function describe(cell, view, ues) {
  const own = ues / answer.stations_m.length, each = answer.stations_m.length > 1 ? "each " : "";
  const what = `${each}waits for ${{ SYN: `all ${own}`, S2: `${cell.quorum} of ${own}`, ASY: "one" }[cell.mode]}`;
  view.title.replaceChildren(TITLES[cell.mode], " ", makeElement("small", { textContent: what }));
  view.warn.textContent = warningOf(cell);
  view.numbers.replaceChildren();
  if (!cell.jobs) return;
  const n = cell.numbers, shareOf = (share) => (n.rounds ? percent(share) : "–");
  const lines = [
    ["Seconds per round", number(n.seconds_per_round)],
    ["Rounds, updates merged", `${n.rounds}, ${n.merges}`],
    ["UEs wait", shareOf(n.waiting_share), n.waiting_share],
    ["Work discarded", shareOf(n.wasted_share), n.wasted_share],
    ["Staleness, mean and largest", `${number(n.staleness_mean)}, ${n.staleness_max}`],
    ["Joules per update", number(n.joules_per_merge)],
    ["Joules of all UEs", number(n.joules)],
    ["UEs never merged", String(n.starved)],
  ];
  for (const [term, value, share] of lines) {
    view.numbers.append(makeElement("dt", { textContent: term }), makeElement("dd", { textContent: value }));
    if (share !== undefined) {
      const bar = makeElement("dd", { className: "bar", ariaHidden: "true" }, makeElement("i"));
      bar.style.setProperty("--share", `${100 * share}%`);
      view.numbers.append(bar);
    }
  }
  view.activity.setAttribute("aria-label", `What each of ${ues} UEs does over ${answer.window_s} s, ${TITLES[cell.mode].toLowerCase()}: ${n.rounds} rounds; UEs wait ${shareOf(n.waiting_share)} of the time.`);
  view.map.setAttribute("aria-label", `Map of the ${TITLES[cell.mode].toLowerCase()} cell at the chosen moment.`);
}

/** Summarise the three cells in a small table, which a phone shows below the controls. */
function keepScore() {
  const table = byId("score"), head = ["", "Seconds per round", "UEs wait", "Joules per update"];
  const lines = answer.cells.filter((cell) => cell.jobs).map((cell) => {
    const n = cell.numbers;
    return [TITLES[cell.mode], number(n.seconds_per_round), n.rounds ? percent(n.waiting_share) : "–", number(n.joules_per_merge)];
  });
  fillTable(table, [head, ...lines]);
}

function drawAll() {
  if (!answer) return;
  for (const cell of answer.cells) if (cell.jobs) drawCell(cell);
  byId("scrub").value = Math.round(tick / answer.ticks * 1000);
  const seconds = tick / answer.ticks * answer.window_s, text = `${seconds.toPrecision(3)} s`;
  byId("now").textContent = text;
  byId("scrub").setAttribute("aria-valuetext", text);
}

function drawCell(cell) {
  const view = views[cell.mode], ues = answer.places_m[0].length, now = Math.min(tick, cell.until);
  drawMap(view.map, cell, answer, tick, theme);
  drawActivity(view.activity, cell, ues, tick, answer.ticks, answer.window_s, theme);
  const { arrival, end } = cell.jobs;
  let arrived = 0;
  for (let job = 0; job < end.length; job++) if (arrival[job] <= now && now < end[job]) arrived++;
  const open = cell.rounds.map((_, station) => roundAt(cell, now, station) + 1);
  view.moment.textContent = open.length > 1 ? `Rounds ${open.join(", ")}: ${arrived} updates are in` : `Round ${open[0]}: ${arrived} of ${cell.quorum} updates are in`;
}

function pointed(view, event) {
  const box = view.activity.getBoundingClientRect();
  return answer && placeInActivity(event.clientX - box.left, event.clientY - box.top, box.width, answer.places_m[0].length, answer.ticks);
}

function readOut(mode, event) {
  const place = pointed(views[mode], event), cell = answer && answer.cells.find((each) => each.mode === mode);
  if (!place || !cell.jobs || place.tick > cell.until) return;
  const { state: doing, job } = stateAt(cell, place.ue, place.tick), seconds = place.tick / answer.ticks * answer.window_s;
  const age = doing === "idle" ? 0 : roundAt(cell, place.tick, answer.cell_of[frameAt(answer.cell_of, place.tick, answer.ticks)][place.ue]) - cell.jobs.version[job];
  const model = doing === "idle" ? "" : `, with model ${cell.jobs.version[job]}, ${age === 1 ? "a round" : `${age} rounds`} old`;
  byId("readout").textContent = `${TITLES[mode]}, UE ${place.ue} at ${seconds.toPrecision(3)} s: ${doing === "idle" ? "nothing to do" : doing}${model}.`;
}

// ---- the animation

function goTo(where) {
  tick = Math.max(0, Math.min(where, answer ? answer.ticks : 0));
  drawAll();
}

function setPlaying(wanted) {
  playing = wanted;
  byId("go").textContent = playing ? "Pause" : "Play";
  lastFrame = performance.now();
  if (playing) requestAnimationFrame(frame);
}

/** With reduced motion, show only two frames per second. */
function frame(now) {
  if (!playing) return;
  const passed = now - lastFrame;
  if (answer && (!still.matches || passed >= 500)) {
    tick += Math.min(passed, 600) / 1000 / WHOLE_S * Number(byId("speed").value) * answer.ticks;
    if (tick > answer.ticks) tick = 0;
    lastFrame = now;
    drawAll();
  }
  requestAnimationFrame(frame);
}

// ---- training

let rows = [], watching = null, trainedFor = 10;

async function train() {
  try {
    const { number } = await post("train", { knobs: state });
    begin(number, state.train_s);
  } catch (error) { byId("said").textContent = error.message; }
}

function begin(number, seconds) {
  rows = []; watching = number; trainedFor = seconds;
  byId("train").disabled = true; byId("stop").disabled = false;
  byId("said").textContent = "Preparing: data, rounds, compiling …";
  drawLearned();
  watch(number);
}

/** After a reload, show the running training, or the last one. */
async function findTraining() {
  const news = await readReply(await fetch("training?since=1000000"));
  if (news.doing !== "nothing") begin(news.number, news.horizon_s);
}

async function watch(number) {
  while (watching === number) {
    let news;
    try { news = await readReply(await fetch(`training?since=${rows.length}`)); } catch (error) { news = { doing: "failed", sentence: error.message, rows: [], number }; }
    if (news.number !== number) break;
    rows.push(...news.rows);
    if (news.rows.length) drawLearned();
    const share = rows.length ? rows.at(-1).time_s / trainedFor : 0;
    const words = { training: `Training: ${(100 * share).toFixed(0)} %`, done: "Done.", stopped: "Stopped.", failed: `It failed: ${news.sentence}` };
    if (words[news.doing] && (news.doing !== "training" || news.rows.length)) byId("said").textContent = words[news.doing];
    if (["done", "stopped", "failed"].includes(news.doing)) { watching = null; break; }
    await new Promise((after) => setTimeout(after, 200));
  }
  byId("train").disabled = false; byId("stop").disabled = true;
}

function drawLearned() {
  byId("learned-so-far").hidden = rows.length === 0;
  if (rows.length === 0) return;
  drawCurves(byId("curves"), rows, trainedFor);
  tableOfCurves(byId("learned"), rows);
}

/** Play back the training of the canned page. */
function trainCanned() {
  const all = canned.trained;
  let shown = still.matches ? all.length : 0;
  byId("train").disabled = true;
  const grow = () => {
    shown = Math.min(shown + 3, all.length);
    rows = all.slice(0, shown);
    drawLearned();
    if (shown < all.length) return setTimeout(grow, 60);
    byId("train").disabled = false;
    byId("said").textContent = "Done; trained when this page was made, with the settings it opened with.";
    return undefined;
  };
  grow();
}

// ---- start

async function copy(button) {
  const text = byId(button.dataset.copies).textContent;
  try { await navigator.clipboard.writeText(text); byId("copy-said").textContent = "Copied."; } catch { getSelection().selectAllChildren(byId(button.dataset.copies)); byId("copy-said").textContent = "Selected; press Ctrl-C."; }
  button.firstChild.textContent = "Copied";
  setTimeout(() => { button.firstChild.textContent = "Copy"; }, 1500);
}

function repaint() {
  theme = makeTheme();
  for (const canvas of document.querySelectorAll("canvas[data-key]")) drawKey(canvas, theme);
  drawAll();
  drawLearned();
}

/** Put the rounds before the controls on a phone, and after them on a wide screen. */
function arrange() {
  byId(narrow.matches ? "knobs" : "learn").before(byId("stage"));
  byId("cells").tabIndex = narrow.matches ? 0 : -1; // on a phone the cells scroll sideways
}

arrange();
makeKnobs();
makeCells();
recall();
byId("task").textContent = data.task;
if (canned) trainedFor = canned.stays.find((knob) => knob.name === "train_s").start;
byId("go").addEventListener("click", () => setPlaying(!playing));
byId("scrub").addEventListener("input", () => { setPlaying(false); goTo(Number(byId("scrub").value) / 1000 * answer.ticks); });
byId("train").addEventListener("click", () => (canned ? trainCanned() : train()));
byId("stop").addEventListener("click", () => post("stop", {}));
for (const button of document.querySelectorAll("[data-copies]")) button.addEventListener("click", () => copy(button));
narrow.addEventListener("change", arrange);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
new ResizeObserver(() => { drawAll(); drawLearned(); }).observe(document.querySelector("main"));
repaint();
ask();
if (!canned) findTraining();
if (!still.matches) setPlaying(true);
