"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const coarse = window.matchMedia("(pointer: coarse)").matches;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function axis(own) {
    return { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"),
             automargin: true, ...own, title: { standoff: 10, ...own.title } };
  }

  // Python provides the content; the page adds colours and sizes, which depend on the theme and the width.
  function layout(own, div, traces) {
    const ink = colour("--ink"), card = colour("--card");
    const names = traces.filter((t) => t.name && t.showlegend !== false).map((t) => t.name);
    const perRow = Math.max(1, Math.floor(div.clientWidth / (56 + 7 * Math.max(0, ...names.map((n) => n.length)))));
    const rows = Math.ceil(names.length / perRow);
    const height = (own.height || (own.hovermode ? 350 : 300)) + 28 * rows;
    return {
      hovermode: "closest", ...own, height, autosize: true, uirevision: "keep",
      dragmode: coarse ? false : "zoom",  // on a touch screen, dragging must scroll the page
      showlegend: names.length > 0,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
      paper_bgcolor: card, plot_bgcolor: card,
      margin: { l: 52, r: 12, t: 34, b: 44 },
      hoverlabel: { bgcolor: card, bordercolor: colour("--line"), font: { color: ink }, namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--accent") },
      legend: { orientation: "h", x: 0, xref: "container", xanchor: "left", maxheight: 5000,
                y: 0, yref: "container", yanchor: "bottom",
                bgcolor: "rgba(0,0,0,0)", font: { color: ink }, ...own.legend },
      xaxis: axis(own.xaxis), yaxis: axis(own.yaxis),
    };
  }

  const hidden = new Set();  // legend groups hidden in every plot

  function heatMap(trace, narrow) {
    const bar = narrow ? { orientation: "h", y: 0, yref: "container", yanchor: "bottom", len: 0.9 } : {};
    return { ...trace, colorscale: [[0, colour("--empty")], [1, colour("--full")]],
             xgap: narrow ? 0 : trace.xgap, colorbar: { ...trace.colorbar, ...bar } };
  }

  function themed(traces, narrow) {
    return traces.map((trace) => trace.type === "heatmap" ? heatMap(trace, narrow)
      : { ...trace, visible: hidden.has(trace.legendgroup) ? "legendonly" : true });
  }

  function toggle({ data: traces, curveNumber }) {
    const group = traces[curveNumber].legendgroup;
    if (!group) return true;
    if (!hidden.delete(group)) hidden.add(group);
    drawAll();
    return false;
  }

  function isolate({ data: traces, curveNumber }) {
    const group = traces[curveNumber].legendgroup;
    if (!group) return true;
    const others = traces.map((trace) => trace.legendgroup).filter((other) => other !== group);
    const alone = others.every((other) => hidden.has(other));
    hidden.clear();
    if (!alone) others.forEach((other) => hidden.add(other));
    drawAll();
    return false;
  }

  function config(name) {
    const save = (format, title) => ({
      name: format, title, icon: Plotly.Icons.camera,
      click: (div) => Plotly.downloadImage(div, {
        format, filename: `fedtern-${name}`, width: div.clientWidth, height: div.clientHeight, scale: 2,
      }),
    });
    const png = save("png", "Save as PNG"), svg = { ...save("svg", "Save as SVG"), icon: Plotly.Icons.disk };
    return { displaylogo: false, displayModeBar: true, responsive: true,
             modeBarButtons: [[png, svg], ["zoom2d", "pan2d", "resetScale2d"]] };
  }

  const shown = {};  // index of the selected choice, by plot

  async function draw(name) {
    const figure = data.figures[name], div = document.getElementById(name);
    const traces = themed(figure.choices[shown[name] || 0] || figure.data, div.clientWidth < 600);
    const first = !div.on;
    await Plotly.react(div, traces, layout(figure.layout, div, traces), config(name));
    if (first) {
      div.on("plotly_legendclick", toggle);
      div.on("plotly_legenddoubleclick", isolate);
    }
  }

  function drawAll() {
    return Promise.all(Object.keys(data.figures).map(draw));
  }

  function save(name, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
    link.download = `fedtern-${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

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
  drawAll().then(() => document.documentElement.setAttribute("data-drawn", ""));
})();
