// Keeps a page as the store is: it asks for what has changed since, and the answer comes once something has.
// Numbers are written where they stand; for anything else the whole of <main> is exchanged. A hidden page asks
// nothing: a browser has six connections to a server, for all of its tabs.
"use strict";
const PAUSE = 300, AGAIN = 1000; // milliseconds after an answer, and after none
let asking = new AbortController(), next = 0;
let since = document.getElementById("main").dataset.version;
let exchanged = Date.now();

async function exchange() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) throw new Error(answer.status);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = document.getElementById("main"), made = fresh.getElementById("main");
  if (!made) { location.reload(); return; }
  const held = document.activeElement, inside = main.contains(held);
  const name = inside && (held.id ? `#${CSS.escape(held.id)}` : held.getAttribute("href") && `[href="${CSS.escape(held.getAttribute("href"))}"]`);
  const typed = document.getElementById("search")?.value;
  const opened = [...main.querySelectorAll("details")].map((one) => one.open);
  const scrolled = [...main.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
  main.replaceWith(made);
  document.querySelector("header").replaceWith(fresh.querySelector("header"));
  [...made.querySelectorAll("details")].forEach((one, n) => { if (n < opened.length) one.open = opened[n]; });
  [...made.querySelectorAll(".scroll")].forEach((one, n) => { [one.scrollLeft, one.scrollTop] = scrolled[n] ?? [0, 0]; });
  if (typed) { document.getElementById("search").value = typed; search(); }
  if (name) made.querySelector(name)?.focus({ preventScroll: true });
  since = made.dataset.version;
  exchanged = Date.now();
}

function write(numbers) {
  for (const [address, cells] of Object.entries(numbers)) {
    const row = document.querySelector(`tr[data-query="${CSS.escape(address)}"]`);
    row?.querySelectorAll(".number").forEach((cell, n) => { if (cell.textContent !== cells[n]) cell.textContent = cells[n]; });
  }
}

async function look() {
  const main = document.getElementById("main");
  const answer = await fetch(`/live?since=${encodeURIComponent(since)}`, { signal: asking.signal });
  if (answer.status === 401) { location.reload(); return; }
  if (answer.status !== 204) {
    const found = await answer.json();
    const problem = document.getElementById("problem");
    problem.hidden = !found.problem;
    if (problem.textContent !== found.problem) problem.firstElementChild.textContent = found.problem;
    write(found.numbers);
    since = found.version;
    if (found.page !== main.dataset.page) await exchange();
  }
  const refresh = Number(main.dataset.refresh) * 1000;
  if (refresh && Date.now() - exchanged > refresh) await exchange();
}

async function follow() {
  const mine = asking;
  let pause = PAUSE;
  try {
    await look();
    document.getElementById("away").hidden = true;
  } catch {
    document.getElementById("away").hidden = mine.signal.aborted;
    pause = AGAIN;
  }
  if (!mine.signal.aborted) next = setTimeout(follow, pause);
}
document.addEventListener("visibilitychange", () => {
  asking.abort();
  clearTimeout(next);
  asking = new AbortController();
  if (!document.hidden) follow();
});
if (!document.hidden) follow();
