"use strict";
// A cut edge that is clicked, or chosen with Enter or Space, shows its row of the list below the picture.
const why = document.getElementById("why");

function entry(name, value) {
  const term = document.createElement("dt"), words = document.createElement("dd");
  term.textContent = name;
  words.textContent = value;
  return [term, words];
}

function choose(edge) {
  const row = document.getElementById("cut-" + edge.dataset.cut);
  const names = [...row.closest("table").querySelectorAll("th")].map((cell) => cell.textContent);
  const list = document.createElement("dl");
  [...row.cells].forEach((cell, i) => list.append(...entry(names[i], cell.textContent)));
  why.replaceChildren(list);
  for (const other of document.querySelectorAll(".chosen")) other.classList.remove("chosen");
  for (const chosen of [edge, row]) chosen.classList.add("chosen");
  edge.closest(".scroll").after(why);
  why.scrollIntoView({ block: "nearest" });
}

for (const edge of document.querySelectorAll("[data-cut]")) {
  edge.addEventListener("click", () => choose(edge));
  edge.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(edge);
  });
}

// A link to a kernel or a rung opens its source.
function open() {
  const card = /^#(kernel|rung)-/.test(location.hash) && document.getElementById(location.hash.slice(1));
  if (card) for (const details of card.querySelectorAll("details")) details.open = true;
}
window.addEventListener("hashchange", open);
open();
