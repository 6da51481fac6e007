// Search and filter; without it, every image is in the list. Texts are compared, never made HTML.
(function () {
  "use strict";
  var form = document.querySelector(".facets");
  var rows = Array.prototype.slice.call(document.querySelectorAll(".entry"));

  function apply() {
    var wanted = new FormData(form), shown = 0;
    var words = wanted.get("text").toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach(function (row) {
      var text = (row.cells[0].textContent + " " + row.dataset.packages).toLowerCase();
      var fits = words.every(function (word) { return text.indexOf(word) >= 0; });
      wanted.forEach(function (value, name) {
        if (name !== "text" && value && row.dataset[name].split(" ").indexOf(value) < 0) fits = false;
      });
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    });
    form.querySelector("output").textContent = shown + " of " + rows.length;
    var state = new URLSearchParams();
    wanted.forEach(function (value, name) { if (value) state.set(name, value); });
    history.replaceState(null, "", state.toString() ? "#" + state : location.pathname + location.search);
  }

  function restore() {
    new URLSearchParams(location.hash.slice(1)).forEach(function (value, name) {
      var field = form.elements.namedItem(name);
      if (field && "value" in field) field.value = value;
    });
    apply();
  }

  if (form) {
    form.hidden = false;
    form.addEventListener("input", apply);
    form.addEventListener("submit", function (event) { event.preventDefault(); });
    form.addEventListener("reset", function () { setTimeout(apply, 0); });
    window.addEventListener("hashchange", restore);
    restore();
  }
  if (navigator.clipboard) document.querySelectorAll(".line").forEach(function (line) {
    var button = document.createElement("button");
    button.type = "button"; button.className = "copy"; button.textContent = "Copy";
    button.addEventListener("click", function () {
      navigator.clipboard.writeText(line.querySelector("code").textContent).then(function () {
        button.textContent = "Copied";
        setTimeout(function () { button.textContent = "Copy"; }, 1500);
      });
    });
    line.appendChild(button);
  });
})();
