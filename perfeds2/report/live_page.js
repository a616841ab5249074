"use strict";
// Reload the page while the command runs, keep the scroll position, and let the reader pause it. The final page has no script.
const kept = (key, value) => {
  try {
    if (value !== undefined) sessionStorage.setItem(`perfeds2-${key}`, value);
    return sessionStorage.getItem(`perfeds2-${key}`);
  } catch { return null; } // some browsers store nothing for local files
};
const pause = document.getElementById("pause");
const age = document.getElementById("age");
const written = Number(age.dataset.written);
let paused = kept("paused") === "yes";

const show = () => {
  pause.textContent = paused ? "Resume reloading" : "Stop reloading";
  const old = Math.round(Date.now() / 1000 - written);
  age.textContent = old > 60 ? `Nothing new for ${old} s. If the command was killed, perfeds2 watch says so.` : "";
};
pause.hidden = false;
pause.addEventListener("click", () => { paused = !paused; kept("paused", paused ? "yes" : "no"); show(); });
addEventListener("pagehide", () => kept("scroll", String(scrollY)));
if (kept("scroll")) scrollTo(0, Number(kept("scroll")));
show();
setInterval(() => {
  if (!paused && !document.hidden) location.reload();
  else show();
}, 2000);
