// Search, filters, sites and comparison. Without it, every image is in the list, and everything
// about an image on its page. Texts are compared and shown, never made HTML.
(function () {
  "use strict";
  const data = window.catalogData;
  const MARKS = {"yes": ["verified", "✓ runs"], "no": ["failed", "✗ does not run"], "cannot tell": ["built", "? cannot tell"]};
  const SHOWN = 3; // packages that were found in an image

  function all(selector, root) { return Array.from((root || document).querySelectorAll(selector)); }

  function make(tag, attributes, ...content) {
    const made = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    made.append(...content);
    return made;
  }

  function stated() { return new URLSearchParams(location.hash.slice(1)); }

  function state(pairs) {
    const kept = new URLSearchParams(pairs.filter(([, value]) => value)).toString();
    history.replaceState(null, "", kept ? "#" + kept : location.pathname + location.search);
  }

  // The numbers of an image's values: each is the one before plus a step.
  function numbers(image) {
    let number = 0;
    return image.values.map((step) => (number += step));
  }

  function copyable(line) {
    if (!navigator.clipboard) return;
    const button = make("button", {type: "button", class: "copy"}, "Copy");
    button.addEventListener("click", () => {
      navigator.clipboard.writeText(line.querySelector("code").textContent).then(() => {
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
    });
    line.append(button);
  }

  function commandLine(about, command) {
    const line = make("div", {class: "line"}, make("small", {}, about), make("code", {}, command));
    copyable(line);
    return line;
  }

  // ---- The list ----

  function startList(form) {
    const rows = all(".entry").map((row, at) => ({row, image: data.images[at], text: row.cells[0].textContent.toLowerCase()}));
    const texts = data.values.map(([kind, name, text]) => kind === "package" ? (name + " " + text).toLowerCase() : "");
    const packages = new Map(), found = new Map();
    const bar = make("div", {class: "picked", hidden: ""});
    let picked = [];

    function packagesOf(image) {
      if (!packages.has(image)) packages.set(image, numbers(image).filter((number) => texts[number]));
      return packages.get(image);
    }

    function withWord(word) {
      if (!found.has(word)) found.set(word, texts.map((text) => text.includes(word)));
      return found.get(word);
    }

    // The packages that have the words which the image's own text lacks; null if a word is nowhere.
    function match(entry, words) {
      const matched = [];
      for (const word of words.filter((one) => !entry.text.includes(one))) {
        const has = withWord(word), own = packagesOf(entry.image).filter((number) => has[number]);
        if (!own.length) return null;
        matched.push(...own);
      }
      return [...new Set(matched)];
    }

    function answerAt(image, site) {
      const own = image.answers.map((number) => data.answers[number]).find(([name]) => name === site);
      return own && {answer: own[1], runtime: own[2], reasons: own[3], lines: own[4]};
    }

    function showFound(entry, matched) {
      all(".found", entry.row).forEach((one) => one.remove());
      if (!matched.length) return;
      const names = matched.slice(0, SHOWN).map((number) => data.values[number].slice(1).join(" "));
      if (matched.length > SHOWN) names.push("and " + (matched.length - SHOWN) + " more");
      entry.row.cells[0].append(make("small", {class: "found"}, "has " + names.join(", ")));
    }

    function showSite(entry, site) {
      if (entry.site === site) return;
      entry.site = site;
      if (entry.below) entry.below.remove();
      entry.below = null;
      const link = entry.row.querySelector("a"), answer = answerAt(entry.image, site);
      link.hash = answer ? new URLSearchParams({site}).toString() : "";
      if (!site) return;
      const cell = make("td", {colspan: entry.row.cells.length});
      const [style, word] = answer ? MARKS[answer.answer] : ["built", "? no host contract"];
      cell.append(make("p", {}, make("span", {class: "badge state " + style}, word + " at " + site), " ", make("span", {class: "soft"}, answer ? answer.reasons : "")));
      if (answer && answer.lines.length) {
        const [command, name] = entry.image.brought[answer.runtime];
        if (command) cell.append(commandLine("get the image", command));
        answer.lines.forEach(([about, line]) => cell.append(commandLine(about, line.split("IMAGE").join(name))));
      }
      entry.below = make("tr", {class: "at-site"}, cell);
      entry.row.after(entry.below);
    }

    function fits(row, name, value) {
      return row.dataset[name] === undefined || row.dataset[name].split(" ").includes(value);
    }

    function apply() {
      const wanted = Object.fromEntries(new FormData(form)), site = wanted.site || "";
      const words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean);
      const filters = Object.entries(wanted).filter(([name, value]) => value && !["text", "site", "answer"].includes(name));
      if (form.elements.answer) form.elements.answer.disabled = !site;
      let shown = 0;
      found.clear();
      rows.forEach((entry) => {
        let matched = filters.every(([name, value]) => fits(entry.row, name, value)) ? match(entry, words) : null;
        const answer = matched && site && answerAt(entry.image, site);
        if (matched && site && wanted.answer && (!answer || answer.answer !== wanted.answer)) matched = null;
        entry.row.hidden = !matched;
        if (matched) { showFound(entry, matched); showSite(entry, site); shown += 1; }
        if (entry.below) entry.below.hidden = !matched;
      });
      form.querySelector("output").textContent = shown + " of " + rows.length;
      document.querySelector(".none").hidden = shown > 0;
      state([...Object.entries(wanted), ...picked.map((name) => ["compare", name])]);
    }

    function pick(names) {
      picked = names.slice(-2);
      rows.forEach((entry) => { entry.box.checked = picked.includes(entry.image.name); });
      bar.hidden = !picked.length;
      bar.replaceChildren();
      if (!picked.length) return;
      const [a, b] = picked;
      bar.append(make("span", {class: "name"}, make("code", {}, a)));
      if (b) {
        bar.append(make("span", {class: "name"}, make("code", {}, b)));
        bar.append(make("a", {href: "./compare.html#" + new URLSearchParams({a, b})}, "Compare the two"));
      } else bar.append(make("span", {class: "soft"}, "Choose a second image to compare."));
      const none = make("button", {type: "button"}, "Choose none");
      none.addEventListener("click", () => { pick([]); apply(); form.elements.text.focus(); });
      bar.append(none);
    }

    function addBox(entry) {
      entry.box = make("input", {type: "checkbox", "aria-label": "Compare " + entry.image.name, title: "Compare"});
      entry.box.addEventListener("change", () => {
        pick(entry.box.checked ? [...picked, entry.image.name] : picked.filter((name) => name !== entry.image.name));
        apply();
      });
      entry.row.cells[0].prepend(entry.box);
    }

    function restore() {
      const values = stated();
      Array.from(form.elements).filter((field) => field.name).forEach((field) => {
        const value = values.get(field.name) || "";
        const known = field.tagName !== "SELECT" || Array.from(field.options).some((option) => option.value === value);
        field.value = known ? value : "";
      });
      const known = rows.map((entry) => entry.image.name);
      pick(values.getAll("compare").filter((name) => known.includes(name)));
      apply();
    }

    form.hidden = false;
    if (rows.length > 1) document.querySelector(".images").classList.add("with-boxes");
    rows.forEach(addBox);
    bar.setAttribute("role", "region");
    bar.setAttribute("aria-label", "Images to compare");
    document.querySelector("main").append(bar);
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(() => { apply(); form.elements.text.focus(); }, 0));
    window.addEventListener("hashchange", restore);
    restore();
  }

  // ---- Two images ----

  const KINDS = [["axis", "Axes and proof"], ["package", "Packages"], ["size", "Sizes"], ["check", "Checks"], ["label", "Labels"]];
  const AXES = [["recipe", "recipe"], ["recipe_version", "version"], ["base", "base"], ["cuda", "CUDA"], ["mpi", "MPI"], ["arch", "architecture"], ["flavour", "flavour"], ["cpu", "processor"], ["proof", "proof"]];

  function human(text) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let value = Number(text), at = 0;
    for (; value >= 999.5 && at < units.length - 1; at += 1) value /= 1000;
    return (at ? value.toPrecision(3) : value) + " " + units[at];
  }

  // Names and texts by kind, as `build-images diff` compares them; null where nothing is known.
  function valuesOf(image) {
    const values = {axis: new Map(AXES.map(([key, name]) => [name, String(image.axes[key])]))};
    KINDS.slice(1).forEach(([kind]) => { values[kind] = image.known.includes(kind) ? new Map() : null; });
    numbers(image).forEach((number) => {
      const [kind, name, text] = data.values[number];
      values[kind].set(name, text);
    });
    return values;
  }

  function table(kind, rows, a, b) {
    const cell = (label, text) => {
      if (text === undefined) return make("td", {"data-label": label, class: "absent"}, "–");
      if (kind === "size") return make("td", {"data-label": label, title: text + " bytes"}, human(text));
      return make("td", {"data-label": label}, text);
    };
    return make("table", {class: "list stack sides"},
      make("thead", {}, make("tr", {}, ...["", "A", "B"].map((title) => make("th", {scope: "col"}, title || kind)))),
      make("tbody", {}, ...rows.map((name) => make("tr", {}, make("th", {scope: "row"}, name), cell("A", a.get(name)), cell("B", b.get(name))))));
  }

  function section(kind, title, a, b) {
    const part = make("section", {class: "kind " + kind}), heading = make("h2", {}, title);
    part.append(heading);
    if (!a || !b) {
      const why = kind === "package" ? "an SBOM is missing" : "they are not known for both images";
      part.append(make("p", {class: "soft"}, "Not compared: " + why + "."));
      return part;
    }
    const names = kind === "axis" ? [...a.keys()] : [...new Set([...a.keys(), ...b.keys()])].sort();
    const differ = names.filter((name) => a.get(name) !== b.get(name)), equal = names.filter((name) => a.get(name) === b.get(name));
    heading.append(" ", make("small", {class: "soft"}, differ.length ? differ.length + " differ" : "equal"));
    if (differ.length) part.append(table(kind, differ, a, b));
    if (equal.length) {
      const details = make("details", {}, make("summary", {}, equal.length + " equal"));
      details.addEventListener("toggle", () => details.append(table(kind, equal, a, b)), {once: true});
      part.append(details);
    }
    return part;
  }

  function startPair(form) {
    const place = document.querySelector(".comparison"), byName = new Map(data.images.map((image) => [image.name, image]));

    function apply() {
      const a = byName.get(form.elements.a.value), b = byName.get(form.elements.b.value);
      if (!a || !b) return;
      state([["a", a.name], ["b", b.name]]);
      const values = [valuesOf(a), valuesOf(b)];
      const link = (image) => make("a", {href: "./images/" + encodeURIComponent(image.name) + ".html"}, image.name);
      place.replaceChildren(
        make("dl", {class: "facts sides-named"}, make("dt", {}, "A"), make("dd", {}, link(a)), make("dt", {}, "B"), make("dd", {}, link(b))),
        ...KINDS.map(([kind, title]) => section(kind, title, values[0][kind], values[1][kind])),
        make("section", {}, make("h2", {}, "Files"), commandLine("compares the files, too", "build-images diff " + a.path + " " + b.path)));
    }

    function restore() {
      const values = stated(), names = data.images.map((image) => image.name);
      const a = names.includes(values.get("a")) ? values.get("a") : names[0];
      const other = names.find((name) => name !== a) || a;
      form.elements.a.value = a;
      form.elements.b.value = names.includes(values.get("b")) ? values.get("b") : other;
      apply();
    }

    all("select", form).forEach((select) => select.append(...data.images.map((image) => make("option", {}, image.name))));
    document.querySelector(".by-command").hidden = true;
    form.hidden = false;
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.querySelector("button").addEventListener("click", () => {
      [form.elements.a.value, form.elements.b.value] = [form.elements.b.value, form.elements.a.value];
      apply();
    });
    window.addEventListener("hashchange", restore);
    restore();
  }

  // ---- The page of an image: the site that was chosen in the list is open ----

  function openSite() {
    const site = stated().get("site");
    const details = all("details.site").find((one) => one.dataset.site === site);
    if (!details) return;
    details.open = true;
    details.scrollIntoView();
  }

  all(".line").forEach(copyable);
  const list = document.querySelector(".facets:not(.pair)"), pair = document.querySelector(".pair");
  if (list && data) startList(list);
  if (pair && data && data.images.length) startPair(pair);
  openSite();
  window.addEventListener("hashchange", openSite);
})();
