"use strict";
// Figures come as drawings and become interactive; without scripts the drawings stay.
const hidden = new Set();
const views = [];

async function embed(figure) {
  const spec = JSON.parse(figure.querySelector(".spec").textContent);
  const plot = figure.querySelector(".plot");
  const options = { mode: "vega-lite", renderer: "svg", actions: false, tooltip: { disableDefaultStyle: true } };
  const { view } = await vegaEmbed(plot, spec, options);
  views.push(view);
  const save = figure.querySelector(".save");
  save.hidden = false;
  save.addEventListener("click", () => saveDrawing(figure));
}

// A colour of the page is a variable; a file that stands alone needs its value.
function saveDrawing(figure) {
  const styles = getComputedStyle(document.documentElement);
  const drawing = new XMLSerializer().serializeToString(figure.querySelector(".plot svg"));
  const text = drawing.replace(/var\((--[\w-]+)\)/g, (_, name) => styles.getPropertyValue(name).trim());
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  link.download = `${figure.id}.svg`;
  link.click();
  URL.revokeObjectURL(link.href);
}

// One arm, every figure: what is hidden here is hidden there.
function toggle(arm) {
  if (!hidden.delete(arm)) hidden.add(arm);
  for (const button of document.querySelectorAll("[data-arm]")) {
    button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.arm)));
  }
  for (const view of views) view.signal("hidden", [...hidden]).runAsync();
}

function sort(header) {
  const table = header.closest("table");
  const up = header.getAttribute("aria-sort") !== "ascending";
  const column = [...header.parentNode.children].indexOf(header);
  const numeric = header.classList.contains("number");
  const value = (row) => row.children[column].dataset.sort;
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === ""); // what is absent comes last either way
    const order = numeric ? Number(x) - Number(y) : x.localeCompare(y, undefined, { numeric: true });
    return up ? order : -order;
  });
  for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  table.tBodies[0].append(...rows);
}

document.addEventListener("click", (event) => {
  const arm = event.target.closest("[data-arm]");
  if (arm) toggle(arm.dataset.arm);
  const header = event.target.closest("table.sortable thead th");
  if (header) sort(header);
});

(async () => {
  for (const figure of document.querySelectorAll("figure")) {
    try {
      await embed(figure);
    } catch (error) {
      console.error(`${figure.id} stays a drawing:`, error);
    }
  }
  document.documentElement.dataset.drawn = String(views.length);
})();
