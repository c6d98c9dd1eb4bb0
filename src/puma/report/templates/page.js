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
  const signed = (value) => value === null || value === undefined ? "–" : (value < 0 ? "−" : "+")
    + (value !== 0 && Math.abs(value) < 0.001 ? Math.abs(value).toExponential(1).replace("-", "−") : Math.abs(value).toFixed(4));
  const named = (label) => label === null || label === undefined || label < 0 ? "–" : all.classes[label] ?? String(label);
  const labelOf = (place) => all.label ? named(all.label[place]) : "label unknown";
  const marginOf = (place) => all.margin[place] !== null ? signed(all.margin[place])
    : ["−∞", "none", "+∞"][all.sign[place] + 1];
  const planOf = (place) => all.planned ? (all.kept[place] ? "✓ kept" : "✕ pruned") : "no plan";
  const strengthOf = (place) => !all.planned ? "–" : all.kept[place] ? all.strength[place] : "– (pruned)";
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
    return `Sample ${all.id[place]}, ${labelOf(place)}, predicted ${named(all.prediction[place])}, margin ${marginOf(place)}${all.planned ? `, ${planOf(place).slice(2)}` : ""}`;
  }

  function tile(list, index) {
    const place = list[index], made = element("button", undefined, "tile");
    made.type = "button";
    if (all.planned) made.dataset.kept = all.kept[place];
    made.dataset.place = place;
    made.setAttribute("aria-label", words(place));
    const picture = element("span");
    picture.style.display = "block";
    paint(picture, place);
    made.append(picture, element("strong", labelOf(place)));
    made.append(element("span", `→ ${named(all.prediction[place])}`, wrong(place) ? "wrong" : ""));
    made.append(element("span", `margin ${marginOf(place)}`));
    if (all.planned && all.kept[place]) made.append(element("span", `strength ${signed(all.strength[place])}`));
    made.append(element("span", [all.planned ? planOf(place) : "", all.generated && all.generated[place] ? "generated" : ""].filter(Boolean).join(", ")));
    made.addEventListener("click", () => show(list, index));
    return made;
  }

  function matching() {
    const group = control.group.value ? new Set(all.groups[control.group.value][2]) : null;
    const low = control.from.value === "" ? null : Number(control.from.value);
    const high = control.to.value === "" ? null : Number(control.to.value);
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
      rival: named(all.rival[place]), margin: all.margin[place] === null ? marginOf(place) : all.margin[place],
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

  option(control.group, "", "all");
  for (const [name, [title, sentence, members]] of Object.entries(all.groups)) {
    option(control.group, name, `${title} (${members.length.toLocaleString("en")})`);
    if (name === "random") continue;
    const strip = element("div", undefined, "strip"), heading = element("h3", title), tiles = element("div", undefined, "tiles");
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
    strip.append(heading, element("p", sentence), tiles);
    find("strips").append(strip);
  }
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
  refresh();
}
