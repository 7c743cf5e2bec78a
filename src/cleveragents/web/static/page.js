// What htmx does not do: the row whose panel is shown, keys, folds loaded when opened, live output.
// Nothing here is needed to read, and nothing to act: every link and form works without it.
"use strict";

function mark(key) {
  for (const row of document.querySelectorAll(".moment[aria-current='true']")) row.removeAttribute("aria-current");
  const at = document.getElementById("m-" + key);
  const row = at && at.closest(".moment");
  if (row) row.setAttribute("aria-current", "true");
}

document.addEventListener("htmx:afterSwap", () => {
  const panel = document.getElementById("panel");
  if (!panel) return;
  mark(panel.dataset.row);
  const plan = document.querySelector(".plan");
  if (plan) plan.classList.add("at");
  // On a narrow screen the panel is in the place of the list, which had the focus.
  if (matchMedia("(max-width: 940px)").matches) {
    panel.tabIndex = -1;
    panel.focus({ preventScroll: true });
    panel.scrollIntoView();
  }
});
document.addEventListener("htmx:historyRestore", () => location.reload());
addEventListener("popstate", () => location.reload());

// Parts that are loaded later: folds when they are first opened, the rest at once.
async function part(address) {
  const answer = await fetch(address, { headers: { "HX-Request": "true" } });
  return answer.ok ? answer.text() : null;
}
document.addEventListener("toggle", async (event) => {
  const fold = event.target;
  if (!fold.open || !fold.dataset.load) return;
  const address = fold.dataset.load;
  delete fold.dataset.load;
  const text = await part(address);
  if (text === null) return;
  for (const old of [...fold.children]) if (old.tagName !== "SUMMARY") old.remove();
  fold.insertAdjacentHTML("beforeend", text);
  htmx.process(fold);
}, true);

async function since() {
  for (const place of document.querySelectorAll("[data-since]")) {
    const text = await part(place.dataset.since);
    if (text !== null) place.outerHTML = text;
  }
}

async function exact() {
  const rows = [...document.querySelectorAll("[data-exact]")];
  if (!rows.length) return;
  const keys = rows.map((row) => row.dataset.exact);
  const main = document.getElementById("plan");
  const text = main && (await part(main.dataset.lines + "?rows=" + keys.join(",")));
  if (!text) return;
  const holder = document.createElement("template");
  holder.innerHTML = text;
  for (const row of holder.content.querySelectorAll("[id]")) {
    const old = document.getElementById(row.id);
    if (old) old.replaceWith(row);
  }
}

// j and k, or the arrows, from row to row; Enter opens it.
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, details")) return;
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const links = [...document.querySelectorAll("#moments h3 a, .item h3 a")];
  if (!links.length) return;
  const row = document.querySelector(".moment[aria-current='true']");
  let at = links.indexOf(document.activeElement);
  if (at < 0 && row) at = links.findIndex((link) => row.contains(link));
  const next = links[Math.min(links.length - 1, Math.max(0, at + step))];
  if (next) {
    next.focus();
    event.preventDefault();
  }
});

// A plan that runs: lines as they come, and the page anew when a step or the state changes.
let events = null;
function live() {
  const main = document.querySelector("main[data-events]");
  if (!main) return;
  events = new EventSource(main.dataset.events);
  events.addEventListener("line", (event) => {
    const tail = document.getElementById("tail");
    if (tail) tail.textContent += JSON.parse(event.data);
  });
  events.addEventListener("all", (event) => {
    const tail = document.getElementById("tail");
    if (tail) tail.textContent = JSON.parse(event.data);
  });
  events.addEventListener("state", (event) => {
    const sentence = document.getElementById("sentence");
    if (sentence) sentence.textContent = JSON.parse(event.data);
  });
  events.addEventListener("step", async () => {
    events.close(); // the fresh page begins anew, with all that was printed until then
    const text = await part(location.pathname + location.search);
    const fresh = text && new DOMParser().parseFromString(text, "text/html").querySelector("main");
    if (!fresh) return setTimeout(live, 1000);
    document.querySelector("main").replaceWith(fresh);
    htmx.process(fresh);
    const word = document.getElementById("fresh");
    if (!fresh.dataset.events && word) word.textContent = "";
    live();
    later();
  });
}
addEventListener("pagehide", () => events && events.close());

function later() {
  since();
  exact();
}
live();
later();
