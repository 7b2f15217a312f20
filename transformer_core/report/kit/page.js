"use strict";
// The page shows the same without this script.
(() => {
  const number = (cell) => {
    const data = cell.querySelector("data");
    return data ? Number(data.value) : NaN;
  };
  const text = (cell) => cell.textContent.trim();
  const sort = (table, column, descending) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const numeric = rows.some((row) => !Number.isNaN(number(row.cells[column])));
    const sign = descending ? -1 : 1;
    rows.sort((a, b) => {
      const [x, y] = [a.cells[column], b.cells[column]];
      if (!numeric) return sign * text(x).localeCompare(text(y));
      const [p, q] = [number(x), number(y)];
      // Missing values come last in both directions.
      return Number.isNaN(p) - Number.isNaN(q) || sign * (p - q);
    });
    body.append(...rows);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(table, column, descending);
      });
    });
    const filter = document.createElement("input");
    filter.type = "search";
    filter.className = "filter";
    filter.placeholder = "amp_bf16, FASTER …";
    filter.setAttribute("aria-label", "Filter rows / 행 거르기");
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/);
      for (const row of table.tBodies[0].rows) {
        const said = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => said.includes(word));
      }
    });
    table.closest(".scroll").before(filter);
  }
  const search = document.getElementById("search");
  if (search) {
    search.hidden = false;
    // Figures have styles of their own, which nobody looks for.
    const said = new Map();
    const saidIn = (section) => {
      if (!said.has(section)) {
        const copy = section.cloneNode(true);
        for (const style of copy.querySelectorAll("style")) style.remove();
        said.set(section, copy.textContent.toLowerCase());
      }
      return said.get(section);
    };
    search.querySelector("input").addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/);
      for (const section of document.querySelectorAll("main > section")) {
        const found = words.every((word) => saidIn(section).includes(word));
        section.hidden = !found;
        const whole = section.querySelector(":scope > details.whole");
        if (whole) whole.open = found && event.target.value.trim() !== "";
        document.querySelector(`nav a[href="#${section.id}"]`).parentElement.hidden = !found;
      }
    });
  }
  // In narrow columns, a name breaks after an underscore.
  for (const name of document.querySelectorAll("th code, td code")) {
    if (getComputedStyle(name).whiteSpace === "nowrap") continue;
    const parts = name.textContent.split(/(?<=_)/);
    name.replaceChildren(parts[0], ...parts.slice(1).flatMap((part) => [document.createElement("wbr"), part]));
  }
  // On a phone the answer comes before the contents.
  const index = document.getElementById("index");
  if (index && matchMedia("(max-width: 60rem)").matches) index.open = false;
  // A link into something folded, or hidden by the search, shows it.
  const open = () => {
    let name = location.hash.slice(1);
    try {
      name = decodeURIComponent(name);
    } catch {
      // Not encoded: the name as it stands.
    }
    const target = document.getElementById(name);
    const whole = target && target.querySelector(":scope > details.whole");
    if (whole) whole.open = true;
    for (let up = target; up; up = up.parentElement) {
      up.hidden = false;
      if (up.tagName === "DETAILS") up.open = true;
    }
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  // Following the same link again changes no hash.
  addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link && link.hash === location.hash) open();
  });
  if (location.hash) open();
})();
