// The theme's script adds buttons to code and frames to tables. Screen readers list each `nav` as a
// part of the page, which a copy button is not; and who has no mouse must be able to scroll a table.
(() => {
  function complete() {
    for (const buttons of document.querySelectorAll("nav.md-code__nav")) {
      buttons.setAttribute("role", "none");
    }
    for (const frame of document.querySelectorAll(".md-typeset__scrollwrap")) {
      if (frame.scrollWidth > frame.clientWidth) {
        frame.tabIndex = 0;
        frame.setAttribute("role", "group");
        frame.setAttribute("aria-label", "Wide table");
      } else {
        for (const name of ["tabindex", "role", "aria-label"]) frame.removeAttribute(name);
      }
    }
  }
  new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
  window.addEventListener("resize", complete);
  complete();
})();
