"use strict";
// Figures come as drawings and become interactive; without scripts the drawings stay.
const hidden = new Set();
const views = [];
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

async function embed(figure) {
  const spec = JSON.parse(figure.querySelector(".spec").textContent);
  const plot = figure.querySelector(".plot");
  const options = { mode: "vega-lite", renderer: "svg", actions: false, tooltip: { disableDefaultStyle: true } };
  const { view } = await vegaEmbed(plot, spec, options);
  views.push(view);
  // One picture with a description: hundreds of marks read aloud tell nobody anything, the table of numbers does.
  plot.setAttribute("role", "img");
  plot.querySelector("svg").setAttribute("aria-hidden", "true");
  const save = figure.querySelector(".save");
  save.hidden = false;
  save.addEventListener("click", () => saveDrawing(figure));
  const numbers = figure.querySelector(".behind");
  numbers.hidden = false;
  numbers.addEventListener("toggle", () => tabulate(numbers, spec), { once: true });
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

// What a figure draws, as tables, for those who do not see it. Built when asked for: the page stays small.
function tabulate(box, spec) {
  const most = 500;
  const labels = new Map(all("[data-arm]").map((button) => [button.dataset.arm, button.textContent.trim()]));
  for (const csv of datasets(spec)) {
    const [keys, ...rows] = records(csv);
    if (rows.length < 2) continue;
    const table = document.createElement("table");
    const add = (section, cells, head) => {
      const row = section.insertRow();
      for (const [i, cell] of cells.entries()) {
        const made = row.appendChild(document.createElement(head || !i ? "th" : "td"));
        if (head || !i) made.scope = head ? "col" : "row";
        made.textContent = (!head && keys[i] === "arm" && labels.get(cell)) || cell || "–";
        if (!head && i && !Number.isNaN(Number(cell))) made.className = "number";
      }
    };
    add(table.createTHead(), keys, true);
    const body = table.createTBody();
    for (const row of rows.slice(0, most)) add(body, row, false);
    const scroll = box.appendChild(document.createElement("div"));
    Object.assign(scroll, { className: "scroll", tabIndex: 0, role: "region" });
    scroll.ariaLabel = `${box.closest("figure").id}, table ${all(".scroll", box).length}: ${keys.join(", ")}`;
    scroll.append(table);
    if (rows.length > most) {
      const note = box.appendChild(document.createElement("p"));
      note.textContent = `The first ${most} of ${rows.length} rows; the files beside this page have all.`;
    }
  }
}

// The figure's data, each once, in the order in which it is drawn.
function datasets(spec) {
  const found = new Set();
  const walk = (part) => {
    if (part === null || typeof part !== "object") return;
    const values = part.data?.values ?? spec.datasets?.[part.data?.name];
    if (typeof values === "string") found.add(values);
    Object.values(part).forEach(walk);
  };
  walk(spec);
  return found;
}

// Rows of CSV; a quoted cell may hold commas, line breaks and doubled quotes.
function records(csv) {
  const rows = [[]];
  for (const [, quoted, plain, end] of csv.matchAll(/(?:"((?:[^"]|"")*)"|([^",\n]*))(,|\n|$)/g)) {
    rows.at(-1).push(quoted?.replaceAll('""', '"') ?? plain);
    if (end === "\n") rows.push([]);
  }
  return rows.filter((row) => row.length > 1 || row[0]);
}

// One arm, every figure: what is hidden here is hidden there.
function toggle(arm) {
  if (!hidden.delete(arm)) hidden.add(arm);
  for (const button of all("[data-arm]")) button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.arm)));
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

// A table that is read whole turns into blocks where its box would cut it off; of many rows on small screens only.
function fit() {
  for (const table of all("table.stacked")) {
    table.classList.remove("blocks");
    const cut = table.scrollWidth > table.parentElement.clientWidth + 1;
    table.classList.toggle("blocks", cut && (innerWidth < 900 || table.tBodies[0].rows.length <= 12));
  }
}

document.addEventListener("click", (event) => {
  const arm = event.target.closest("[data-arm]");
  if (arm) toggle(arm.dataset.arm);
  const header = event.target.closest("table.sortable thead th");
  if (header) sort(header);
});
fit();
addEventListener("resize", fit);

// ---- a watched page loads itself again, and is then as its reader left it ------------------------------------------

const place = `andrea ${location.pathname}`;
const refresh = Number(document.documentElement.dataset.refresh ?? 0);
const pause = document.querySelector(".pause");
const nameOf = (part) => [part.closest("[id]")?.id, part.tagName, part.textContent];
const same = (a, b) => String(a) === String(b);

function remember() {
  const sorted = all("th[aria-sort]").map((th) => [nameOf(th), th.getAttribute("aria-sort")]);
  const open = all("details[open] > summary").map(nameOf);
  const focus = document.activeElement === document.body ? null : nameOf(document.activeElement);
  const state = { scroll: scrollY, hidden: [...hidden], sorted, open, focus, paused: pause.ariaPressed === "true" };
  sessionStorage.setItem(place, JSON.stringify(state));
}

function remembered() {
  try {
    const state = JSON.parse(sessionStorage.getItem(place));
    sessionStorage.removeItem(place);
    return state;
  } catch {
    return null; // a browser that keeps nothing for files
  }
}

function resume(state) {
  for (const [name, direction] of state.sorted) {
    const header = all("th").find((th) => same(nameOf(th), name));
    while (header && header.getAttribute("aria-sort") !== direction) sort(header);
  }
  for (const name of state.open) {
    const summary = all("summary").find((part) => same(nameOf(part), name));
    if (summary) summary.parentElement.open = true;
  }
  for (const arm of state.hidden) toggle(arm);
  if (state.focus) all(state.focus[1]).find((part) => same(nameOf(part), state.focus))?.focus({ preventScroll: true });
  if (pause && state.paused) pause.ariaPressed = "true";
  scrollTo(0, state.scroll);
}

function again() {
  const busy = document.hidden || pause.ariaPressed === "true" || !getSelection().isCollapsed;
  if (busy) return void setTimeout(again, 1000);
  try {
    remember();
  } catch {
    // it loads again all the same, from its top
  }
  location.reload();
}

(async () => {
  const state = remembered();
  if (state) {
    history.scrollRestoration = "manual";
    scrollTo(0, state.scroll);
  }
  for (const figure of all("figure")) {
    try {
      await embed(figure);
    } catch (error) {
      console.error(`${figure.id} stays a drawing:`, error);
    }
  }
  if (state) resume(state);
  document.documentElement.dataset.drawn = String(views.length);
  if (!refresh) return;
  pause.addEventListener("click", () => {
    pause.ariaPressed = String(pause.ariaPressed !== "true");
  });
  setTimeout(again, 1000 * refresh);
})();
