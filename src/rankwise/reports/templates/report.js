"use strict";
// All of this is for comfort: the page says the same without it.
for (const table of document.querySelectorAll("table[data-tools]")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const collator = new Intl.Collator(undefined, { numeric: true });

  const value = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
    const text = cell.textContent.trim();
    return text && cell.classList.contains("n") ? Number(text.replaceAll(",", "")) : text;
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const keyed = rows.map((row, place) => [value(row, column), place, row]);
      keyed.sort(([a, i], [b, j]) => {
        // What is empty comes last, whichever way.
        if ((a === "") !== (b === "")) return a === "" ? 1 : -1;
        const order = typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b);
        return sign * order || i - j;
      });
      body.append(...keyed.map((one) => one[2]));
    });
  });

  const tools = document.createElement("div");
  tools.className = "tools";
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "Filter: words that a row must have";
  field.setAttribute("aria-label", "Filter the rows");
  const count = document.createElement("span");
  count.className = "soft";
  count.setAttribute("aria-live", "polite");
  tools.append(field);
  let state = "";
  const apply = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      const fits = words.every((word) => texts[place].includes(word)) && (!state || row.dataset.s === state);
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    });
    count.textContent = shown === rows.length ? `${shown} row${shown === 1 ? "" : "s"}` : `${shown} of ${rows.length} rows`;
  };
  const states = [...new Set(rows.map((row) => row.dataset.s).filter(Boolean))];
  if (states.length > 1) {
    for (const name of states) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => {
        state = state === name ? "" : name;
        for (const other of tools.querySelectorAll("button")) {
          other.setAttribute("aria-pressed", String(other.textContent === state));
        }
        apply();
      });
      tools.append(button);
    }
  }
  tools.append(count);
  field.addEventListener("input", apply);
  table.closest(".table").before(tools);
  apply();
}
for (const place of document.querySelectorAll(".run")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(place.querySelector("pre").textContent);
    button.textContent = "Copied";
  });
  place.append(button);
}
