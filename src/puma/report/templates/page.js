"use strict";
// The theme: the reader's own until the button is pressed.
{
  const root = document.documentElement;
  const stored = (() => { try { return localStorage.getItem("puma-theme"); } catch { return null; } })();
  if (stored) root.dataset.theme = stored;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("puma-theme", root.dataset.theme); } catch { /* private mode */ }
  });
}

// Units: margins and radii in steps of 1/255, as pixels are stored, or as shares of the pixel range.
const units = { listeners: [], steps: () => document.documentElement.dataset.unit === "255" };
{
  const root = document.documentElement, button = document.getElementById("unit");
  const told = () => { button.textContent = units.steps() ? "Units: 1/255" : "Units: [0, 1]"; };
  try { if (localStorage.getItem("puma-unit") === "1") root.dataset.unit = "1"; } catch { /* private mode */ }
  told();
  button.hidden = !document.querySelector("main :not(label) > .in255");
  button.addEventListener("click", () => {
    root.dataset.unit = units.steps() ? "1" : "255";
    told();
    try { localStorage.setItem("puma-unit", root.dataset.unit); } catch { /* private mode */ }
    for (const listener of units.listeners) listener();
  });
}

// Tools: every table can be copied, every figure saved.
{
  const make = (name, text) => { const made = document.createElement(name); made.textContent = text; return made; };

  function bar(words, actions) {
    const tools = make("div", words);
    tools.className = "tools";
    for (const [name, label, action] of actions) {
      const button = make("button", name);
      button.type = "button";
      button.setAttribute("aria-label", label);
      button.addEventListener("click", async () => {
        await action();
        button.textContent = "Done";
        setTimeout(() => { button.textContent = name; }, 1500);
      });
      tools.append(button);
    }
    return tools;
  }

  const plain = (cell) => cell.innerText.replace(/\s+/g, " ").trim();

  function cells(table) {
    const rows = [[...table.tHead.rows[0].cells].map(plain)];
    for (const body of table.tBodies) {
      let heading = "";
      for (const row of body.rows) {
        if (row.cells[0].scope === "rowgroup") { heading = `${plain(row.cells[0])}: `; continue; }
        const texts = [...row.cells].map(plain);
        rows.push([heading + texts[0], ...texts.slice(1)]);
      }
    }
    return rows;
  }

  const signs = { "−": "-", "–": "-", "→": "->", "≤": "<=", "≥": ">=", "±": "+-", "∞": "inf" };
  const latexSigns = { "−": "$-$", "–": "--", "→": "$\\to$", "≤": "$\\leq$", "≥": "$\\geq$", "±": "$\\pm$", "∞": "$\\infty$",
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$" };
  const kinds = {
    CSV: (rows) => rows.map((row) => row.map((text) => {
      const written = text.replace(/[−–→≤≥±∞]/g, (sign) => signs[sign]);
      return /[",\n]/.test(written) ? `"${written.replaceAll('"', '""')}"` : written;
    }).join(",")).join("\n"),
    Markdown: (rows) => {
      const line = (row) => `| ${row.map((text) => text.replace(/[\\|]/g, "\\$&")).join(" | ")} |`;
      return [line(rows[0]), `|${rows[0].map((_, index) => index ? "---:" : "---").join("|")}|`, ...rows.slice(1).map(line)].join("\n");
    },
    LaTeX: (rows) => {
      const escaped = (text) => text.replace(/[\\~^<>|−–→≤≥±∞]|[&%$#_{}]/g, (sign) => latexSigns[sign] ?? `\\${sign}`);
      const line = (row) => `${row.map(escaped).join(" & ")} \\\\`;
      return [`\\begin{tabular}{l${"r".repeat(rows[0].length - 1)}}`, "\\toprule", line(rows[0]), "\\midrule", ...rows.slice(1).map(line),
        "\\bottomrule", "\\end{tabular}"].join("\n");
    },
  };

  async function copy(text) {
    try { await navigator.clipboard.writeText(text); } catch {
      const area = make("textarea", text);
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  for (const box of document.querySelectorAll(".scroll")) {
    const table = box.querySelector("table"), name = table.caption.textContent;
    box.after(bar("Copy as", Object.entries(kinds).map(([kind, write]) =>
      [kind, `Copy ${name} as ${kind}`, () => copy(`${write(cells(table))}\n`)])));
  }

  const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-family", "text-anchor"];
  const SVG = "http://www.w3.org/2000/svg";

  // A copy whose look does not need the page: every style written out, what is hidden left out.
  function bare(element) {
    const copy = element.cloneNode(false), style = getComputedStyle(element);
    if (style.display === "none") return null;
    copy.removeAttribute("class");
    if (!["svg", "g", "defs", "title"].includes(element.tagName)) {
      for (const name of STYLES) copy.setAttribute(name, style.getPropertyValue(name));
    }
    for (const child of element.childNodes) {
      const inner = child.nodeType === Node.ELEMENT_NODE ? bare(child) : child.cloneNode(false);
      if (inner) copy.append(inner);
    }
    return copy;
  }

  function written(figure) {
    const picture = figure.querySelector("svg[role=img]"), [, , width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
    const keys = [...figure.querySelectorAll(".legend span:has(> .key)")], whole = height + 24 + 18 * keys.length;
    const look = getComputedStyle(document.body), made = document.createElementNS(SVG, "svg");
    const put = (parent, name, values, text) => {
      const child = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(values)) child.setAttribute(key, value);
      if (text !== undefined) child.textContent = text;
      parent.append(child);
      return child;
    };
    for (const [key, value] of Object.entries({ xmlns: SVG, viewBox: `0 0 ${width} ${whole}`, width: 2 * width, height: 2 * whole })) made.setAttribute(key, value);
    put(made, "title", {}, picture.getAttribute("aria-label"));
    put(made, "rect", { width, height: whole, fill: look.backgroundColor });
    const words = { fill: look.color, "font-family": look.fontFamily };
    put(made, "text", { ...words, x: 4, y: 15, "font-size": 13, "font-weight": "bold" }, figure.querySelector("figcaption strong").textContent);
    const inner = bare(picture);
    for (const [key, value] of Object.entries({ y: 22, width, height })) inner.setAttribute(key, value);
    made.append(inner);
    keys.forEach((key, index) => {
      const small = bare(key.querySelector("svg"));
      for (const [name, value] of Object.entries({ x: 56, y: height + 24 + 18 * index, width: 28, height: 14 })) small.setAttribute(name, value);
      made.append(small);
      put(made, "text", { ...words, x: 92, y: height + 35 + 18 * index, "font-size": 11 }, key.innerText.replace(/\s+/g, " ").trim());
    });
    return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(made)}\n`;
  }

  for (const figure of document.querySelectorAll("figure")) {
    const title = figure.querySelector("figcaption strong").textContent;
    figure.append(bar("", [["Save as SVG", `Save ${title} as SVG`, () => {
      const link = make("a", ""), address = URL.createObjectURL(new Blob([written(figure)], { type: "image/svg+xml" }));
      link.href = address;
      link.download = `${title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "")}.svg`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(address), 1000);
    }]]));
  }
}

// The gallery: columns of numbers, one place per sample; tiles are made a page at a time.
{
  const all = JSON.parse(document.getElementById("gallery-columns").textContent);
  if (all) gallery(all);
}

function gallery(all) {
  const PAGE = 60, STRIP = 8, COLUMNS = 32, PER_SHEET = 512;
  const find = (id) => document.getElementById(id);
  const control = Object.fromEntries(["group", "class", "kept", "origin", "from", "to", "sort"].map((id) => [id, find(id)]));
  const every = all.id.map((_, place) => place);
  const steps = () => all.norm === "linf" && units.steps();
  const signed = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value) * (steps() ? 255 : 1), small = size !== 0 && size < (steps() ? 0.01 : 0.001);
    return (value < 0 ? "−" : "+") + (small ? size.toExponential(1).replace("-", "−") : size.toFixed(steps() ? (size < 10 ? 2 : 1) : 4)) + (steps() ? "/255" : "");
  };
  const named = (label) => label === null || label === undefined || label < 0 ? "–" : all.classes[label] ?? String(label);
  const labelOf = (place) => all.label ? named(all.label[place]) : "label unknown";
  const marginOf = (place) => all.margin[place] !== null ? signed(all.margin[place])
    : ["−∞", "none", "+∞"][all.sign[place] + 1];
  const planOf = (place) => all.planned ? (all.kept[place] ? "✓ kept" : "✕ pruned") : "no plan";
  const strengthOf = (place) => !all.planned ? "–" : !all.kept[place] ? "– (pruned)" : steps() ? signed(all.strength[place]) : all.strength[place];
  const wrong = (place) => all.label && all.label[place] !== all.prediction[place];
  let listed = every, made = 0, open = { list: every, index: 0 };

  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function paint(box, place) {
    if (!all.tile) { box.hidden = true; return; }
    const [width, height] = all.tile, inside = place % PER_SHEET, sheet = Math.floor(place / PER_SHEET);
    const rows = Math.ceil(Math.min(PER_SHEET, every.length - sheet * PER_SHEET) / COLUMNS);
    const column = inside % COLUMNS, row = Math.floor(inside / COLUMNS);
    box.className = `picture sheet${sheet}`;
    box.style.aspectRatio = `${width} / ${height}`;
    box.style.backgroundSize = `${COLUMNS * 100}% ${rows * 100}%`;
    box.style.backgroundPosition = `${100 * column / (COLUMNS - 1)}% ${rows > 1 ? 100 * row / (rows - 1) : 0}%`;
  }

  function words(place) {
    return `Sample ${all.id[place]}, ${labelOf(place)}, predicted ${named(all.prediction[place])}, margin ${marginOf(place)}${all.planned ? `, ${planOf(place).slice(2)}` : ""}${all.generated && all.generated[place] ? ", generated" : ""}`;
  }

  function tile(list, index) {
    const place = list[index], made = element("button", undefined, "tile");
    made.type = "button";
    if (all.planned) made.dataset.kept = all.kept[place];
    made.dataset.place = place;
    made.setAttribute("aria-label", words(place));
    const frame = element("span", undefined, "frame"), picture = element("span");
    picture.style.display = "block";
    paint(picture, place);
    frame.append(picture);
    if (all.generated) made.dataset.generated = all.generated[place];
    if (all.tile && all.generated && all.generated[place]) frame.append(element("span", "generated", "badge"));
    made.append(frame, element("strong", labelOf(place)));
    made.append(element("span", `→ ${named(all.prediction[place])}`, wrong(place) ? "wrong" : ""));
    made.append(element("span", `margin ${marginOf(place)}`));
    if (all.planned && all.kept[place]) made.append(element("span", `strength ${signed(all.strength[place])}`));
    made.append(element("span", [all.planned ? planOf(place) : "", !all.tile && all.generated && all.generated[place] ? "generated" : ""].filter(Boolean).join(", ")));
    made.addEventListener("click", () => show(list, index));
    return made;
  }

  function matching() {
    const group = control.group.value ? new Set(all.groups[control.group.value][2]) : null;
    const share = (input) => input.value === "" ? null : Number(input.value) / (steps() ? 255 : 1);
    const low = share(control.from), high = share(control.to);
    return every.filter((place) => {
      const margin = all.margin[place] ?? (all.sign[place] ? all.sign[place] * Infinity : NaN);
      return (!group || group.has(place))
        && (control.class.value === "" || all.label[place] === Number(control.class.value))
        && (control.kept.value === "" || all.kept[place] === Number(control.kept.value))
        && (control.origin.value === "" || all.generated[place] === Number(control.origin.value))
        && (low === null || margin >= low) && (high === null || margin <= high);
    });
  }

  function sorted(list) {
    const name = control.sort.value.replace("-", ""), turn = control.sort.value.startsWith("-") ? -1 : 1;
    const column = all[name] ?? all.id;
    const value = (place) => column[place] ?? (name === "margin" && all.sign[place] ? all.sign[place] * Infinity : NaN);
    return list.sort((one, two) => {
      const a = value(one), b = value(two);
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b) || one - two;
      return (a === b ? 0 : a < b ? -turn : turn) || one - two;
    });
  }

  function refresh() {
    listed = sorted(matching());
    made = 0;
    find("tiles").replaceChildren();
    more();
  }

  function more() {
    const tiles = document.createDocumentFragment(), end = Math.min(made + PAGE, listed.length);
    for (let index = made; index < end; index += 1) tiles.append(tile(listed, index));
    find("tiles").append(tiles);
    const first = find("tiles").children[made];
    if (made && first) first.focus();
    made = end;
    const matched = listed.length ? `${listed.length.toLocaleString("en")} samples match, ${made.toLocaleString("en")} shown.` : "No sample matches.";
    const bad = { from: "Margin from", to: "Margin to" };
    const refused = Object.keys(bad).filter((id) => control[id].validity.badInput).map((id) => `${bad[id]} is not a number and is not applied.`);
    find("count").textContent = [matched, ...refused].join(" ");
    find("more").hidden = made >= listed.length;
  }

  function show(list, index) {
    open = { list, index };
    const place = list[index];
    find("detail-title").textContent = `${labelOf(place)}, sample ${all.id[place]}`;
    paint(find("picture"), place);
    find("picture").setAttribute("aria-label", `Picture of sample ${all.id[place]}`);
    const groups = Object.values(all.groups).filter((group) => group[2].includes(place)).map((group) => group[0]);
    const numbers = {
      sample_id: all.id[place], label: labelOf(place), prediction: named(all.prediction[place]) + (wrong(place) ? " (wrong)" : ""),
      rival: named(all.rival[place]), margin: all.margin[place] === null || steps() ? marginOf(place) : all.margin[place],
      search: all.statuses[all.status[place]] ?? "unknown", plan: planOf(place),
      strength: strengthOf(place),
      origin: all.generated ? (all.generated[place] ? "generated" : "real") : "unknown", groups: groups.join(", "),
    };
    find("numbers").replaceChildren(...Object.entries(numbers).map(([name, value]) => {
      const pair = element("div");
      pair.append(element("dt", name), element("dd", String(value)));
      return pair;
    }));
    find("place").textContent = `${(index + 1).toLocaleString("en")} of ${list.length.toLocaleString("en")}`;
    find("previous").setAttribute("aria-disabled", index === 0);  // not "disabled": that would lose the focus
    find("next").setAttribute("aria-disabled", index === list.length - 1);
    if (!find("detail").open) find("detail").showModal();
  }

  function step(by) {
    const index = open.index + by;
    if (index >= 0 && index < open.list.length) show(open.list, index);
  }

  function option(select, value, text) {
    const made = element("option", text);
    made.value = value;
    select.append(made);
  }

  function strips() {
    find("strips").replaceChildren();
    for (const [name, [title, sentence, members]] of Object.entries(all.groups)) if (name !== "random") strip(name, title, sentence, members);
  }

  function strip(name, title, sentence, members) {
    const box = element("div", undefined, "strip"), heading = element("h3", title), tiles = element("div", undefined, "tiles");
    const browse = element("button", `Browse ${members.length.toLocaleString("en")}`);
    browse.type = "button";
    browse.addEventListener("click", () => {
      find("filters").reset();
      control.group.value = name;
      refresh();
      find("browse").scrollIntoView();
      control.group.focus();
    });
    heading.append(browse);
    for (let index = 0; index < Math.min(STRIP, members.length); index += 1) tiles.append(tile(members, index));
    box.append(heading, element("p", sentence), tiles);
    find("strips").append(box);
  }

  option(control.group, "", "all");
  for (const [name, [title, , members]] of Object.entries(all.groups)) option(control.group, name, `${title} (${members.length.toLocaleString("en")})`);
  option(control.class, "", "all");
  const present = new Set(all.label ?? []);
  all.classes.forEach((name, label) => { if (present.has(label)) option(control.class, String(label), name); });
  control.class.parentElement.hidden = !all.label;
  find("kept-label").hidden = !all.planned;
  if (!all.planned) for (const by of control.sort.querySelectorAll("[value$=strength]")) by.remove();
  find("origin-label").hidden = !all.generated || new Set(all.generated).size < 2;
  // One event each: the "change" of a number comes with the click on a tile, and would take the tile away under it.
  for (const one of Object.values(control)) one.addEventListener(one.tagName === "INPUT" ? "input" : "change", refresh);
  find("filters").addEventListener("submit", (event) => event.preventDefault());
  find("filters").addEventListener("reset", () => setTimeout(refresh));
  find("more").addEventListener("click", more);
  find("close").addEventListener("click", () => find("detail").close());
  find("previous").addEventListener("click", () => step(-1));
  find("next").addEventListener("click", () => step(1));
  find("detail").addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  // A number that was typed stays the same distance.
  units.listeners.push(() => {
    if (all.norm !== "linf") return;
    const scale = units.steps() ? 255 : 1 / 255;
    for (const input of [control.from, control.to]) if (input.value !== "") input.value = String(Number((Number(input.value) * scale).toPrecision(6)));
    strips();
    refresh();
  });
  if (all.norm !== "linf") for (const hint of find("filters").querySelectorAll(".in255")) hint.remove();
  strips();
  refresh();
}
