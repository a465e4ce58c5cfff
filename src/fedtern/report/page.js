"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const hidden = new Set();  // legend groups hidden in every plot

  function toggle(group, alone) {
    if (alone) isolate(group);
    else if (!hidden.delete(group)) hidden.add(group);
    drawAll();
  }

  function isolate(group) {
    const groups = new Set(Object.values(data.figures).flatMap((figure) => figure.data.map((trace) => trace.legendgroup)));
    groups.delete(undefined); groups.delete(group);
    const wasAlone = [...groups].every((other) => hidden.has(other));
    hidden.clear();
    if (!wasAlone) groups.forEach((other) => hidden.add(other));
  }

  const shown = {};  // index of the selected choice, by plot

  function draw(name) {
    const figure = data.figures[name], div = document.getElementById(name);
    const traces = (figure.choices[shown[name] || 0] || figure.data).map((trace) =>
      hidden.has(trace.legendgroup) ? { ...trace, visible: "legendonly" } : trace);
    Charts.draw(div, traces, figure.layout, { hidden, onLegend: toggle, redraw: () => draw(name) });
  }

  function drawAll() {
    Object.keys(data.figures).forEach(draw);
  }

  const save = (name, text) => Charts.download(`fedtern-${name}.csv`, new Blob([text], { type: "text/csv;charset=utf-8" }));

  for (const button of document.querySelectorAll("[data-csv]")) {
    button.addEventListener("click", () => save(button.dataset.csv, data.csv[button.dataset.csv]));
  }
  for (const select of document.querySelectorAll("[data-choice]")) {
    select.addEventListener("change", () => {
      shown[select.dataset.choice] = select.selectedIndex;
      draw(select.dataset.choice);
    });
  }
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const line = button.closest("details").querySelector("pre");
      try {
        await navigator.clipboard.writeText(line.textContent);
        button.textContent = "Copied";
      } catch {  // browsers refuse the clipboard to pages loaded over plain HTTP
        getSelection().selectAllChildren(line);
        button.textContent = "Selected";
      }
    });
  }
  dark.addEventListener("change", drawAll);
  let width = 0;  // a drawing changes the height
  new ResizeObserver(([entry]) => {
    if (entry.contentRect.width !== width) { width = entry.contentRect.width; drawAll(); }
  }).observe(document.querySelector("main"));
  drawAll();
  document.documentElement.setAttribute("data-drawn", "");
})();
