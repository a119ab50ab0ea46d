// Search: hide elements whose data-name doesn't contain the text; in a graph, fade them. `/` focuses the field.
"use strict";
function search() {
  const field = document.getElementById("search");
  if (!field) return;
  const wanted = field.value.trim().toLowerCase();
  let found = 0, all = 0;
  for (const one of document.querySelectorAll("main [data-name]")) {
    const fits = one.dataset.name.toLowerCase().includes(wanted);
    if (one.closest("svg")) one.classList.toggle("faded", !fits);
    else { one.hidden = !fits; all += 1; found += fits; }
  }
  for (const one of document.querySelectorAll("main .group")) {
    one.hidden = !one.querySelector("[data-name]:not([hidden])");
    if (wanted) one.open = true;
  }
  const count = document.getElementById("found");
  if (count) count.textContent = wanted && all ? `${found} of ${all}` : "";
}
document.addEventListener("input", (event) => { if (event.target.id === "search") search(); });
document.addEventListener("keydown", (event) => {
  const field = document.getElementById("search");
  if (!field) return;
  if (event.key === "/" && document.activeElement.tagName !== "INPUT") { event.preventDefault(); field.focus(); }
  if (event.key === "Escape" && document.activeElement === field) { field.value = ""; search(); }
});
