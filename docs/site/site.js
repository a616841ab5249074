// What scrolls can be reached with the keyboard.
const letScrollByKeys = () => {
  for (const each of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .equation, .picture, td")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
  }
};
addEventListener("load", letScrollByKeys);
addEventListener("resize", letScrollByKeys);
