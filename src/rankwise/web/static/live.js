// Keeps a page up to date. Without it, pages show the same when they are loaded again.
"use strict";
(() => {
  const body = document.body;
  const state = document.getElementById("link-state");
  const said = document.getElementById("said");
  const LONGEST_LOG = 5000;
  const SPEAK_MS = 10000;
  const RETRY_MS = 3000;
  let source = null;
  let waiting = null;
  let isAsking = false;
  let askedAt = 0;
  let told = 0;
  let spokenAt = 0;
  let isOver = false;

  function show(isOn, words) {
    state.textContent = words;
    state.classList.toggle("on", isOn);
  }

  // The same words as the server's.
  function duration(seconds) {
    const two = (number) => String(number).padStart(2, "0");
    if (seconds < 0.9995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds);
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
    return `${Math.floor(whole / 86400)} d ${two(Math.floor((whole % 86400) / 3600))} h`;
  }

  function countOn() {
    for (const one of document.querySelectorAll("[data-since]")) {
      one.textContent = duration(Date.now() / 1000 - Number(one.dataset.since));
    }
  }

  // What a reader has unfolded stays so, and who is at a link stays there.
  function replace(old, fresh) {
    const folds = (part) => [...part.querySelectorAll("details")];
    const name = (fold, number) => fold.id || `${number} ${fold.querySelector("summary").textContent}`;
    const open = new Map(folds(old).map((fold, number) => [name(fold, number), fold.open]));
    folds(fresh).forEach((fold, number) => {
      const known = open.get(name(fold, number));
      if (known !== undefined) fold.open = known;
    });
    const active = document.activeElement;
    const isInside = active && old.contains(active);
    const address = isInside ? active.getAttribute("href") : null;
    const scrolled = [...old.querySelectorAll(".table, .plot, pre")].map((one) => [one.scrollLeft, one.scrollTop]);
    old.replaceChildren(...fresh.childNodes);
    [...old.querySelectorAll(".table, .plot, pre")].forEach((one, number) => {
      if (scrolled[number]) [one.scrollLeft, one.scrollTop] = scrolled[number];
    });
    if (!isInside) return;
    const links = address === null ? [] : [...old.querySelectorAll("a[href]")];
    const again = links.find((link) => link.getAttribute("href") === address) || old.querySelector("[tabindex]");
    if (again) again.focus({ preventScroll: true });
  }

  function speak(words) {
    const isNews = words && words !== said.textContent;
    if (isNews && (isOver || Date.now() - spokenAt > SPEAK_MS)) {
      said.textContent = words;
      spokenAt = Date.now();
    }
  }

  function newest(page) {
    return Number(new URL(page.body.dataset.changes, location.href).searchParams.get("seen")) || 0;
  }

  async function ask() {
    waiting = null;
    if (isAsking) return later();
    isAsking = true;
    askedAt = Date.now();
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (!answer.ok) throw new Error(answer.statusText);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const old of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(old.id);
        if (fresh && fresh.innerHTML !== old.innerHTML) replace(old, fresh);
      }
      document.title = page.title;
      isOver = !page.body.dataset.changes;
      // A page that takes long is made for all who ask within some seconds: it may be from before.
      if (!isOver && newest(page) < told) later();
      speak(page.getElementById("said").textContent);
      if (isOver) {
        disconnect();
        document.getElementById("cancel-form")?.remove();
        show(false, "over");
      }
    } catch {
      show(false, "the server is gone");
    } finally {
      isAsking = false;
    }
  }

  function later() {
    const pause = Number(body.dataset.interval || 1000);
    if (waiting === null) waiting = setTimeout(ask, Math.max(0, askedAt + pause - Date.now()));
  }

  function disconnect() {
    if (source) source.close();
    source = null;
  }

  // A browser has few connections for all of its tabs: only those that are looked at have one.
  function connect() {
    if (source || isOver || document.hidden || !body.dataset.changes) return;
    source = new EventSource(body.dataset.changes);
    source.addEventListener("open", () => show(true, "live"));
    source.addEventListener("change", (event) => {
      told = Math.max(told, Number(event.lastEventId) || 0);
      later();
    });
    source.addEventListener("error", () => {
      show(false, "waiting for the server");
      if (source && source.readyState === EventSource.CLOSED) {
        disconnect();
        setTimeout(connect, RETRY_MS);
      }
    });
  }

  function follow(log) {
    const box = document.getElementById("follow");
    const isAtEnd = () => box.checked;
    const toEnd = () => { if (isAtEnd()) log.scrollTop = log.scrollHeight; };
    let stream = null;
    const address = new URL(log.dataset.stream, location.href);
    box.closest("[hidden]").hidden = false;
    box.addEventListener("change", toEnd);
    toEnd();
    const leave = () => { if (stream) stream.close(); stream = null; };
    const enter = () => {
      if (stream || isOver || document.hidden) return;
      stream = new EventSource(address);
      stream.addEventListener("open", () => show(true, "live"));
      stream.addEventListener("error", () => show(false, "waiting for the server"));
      stream.addEventListener("lines", (event) => {
        // Who comes back goes on from here.
        address.searchParams.set("at", event.lastEventId);
        log.insertAdjacentHTML("beforeend", JSON.parse(event.data).map((line) => `${line}\n`).join(""));
        while (log.childNodes.length > LONGEST_LOG) log.firstChild.remove();
        toEnd();
      });
      stream.addEventListener("over", () => {
        isOver = true;
        leave();
        show(false, "over");
        said.textContent = "The process has ended.";
      });
    };
    document.addEventListener("visibilitychange", () => (document.hidden ? leave() : enter()));
    enter();
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) disconnect();
    else if (body.dataset.changes && !isOver) { later(); connect(); }
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey;
    const field = document.querySelector("input[type=search]");
    if (event.key === "/" && !isTyping && field) {
      event.preventDefault();
      field.focus();
    }
  });
  // A browser may show a page again that it has kept.
  window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  window.addEventListener("pagehide", disconnect);

  setInterval(countOn, 1000);
  const log = document.querySelector("[data-stream]");
  if (log) follow(log);
  connect();
})();
