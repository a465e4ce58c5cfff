"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function axis(own) {
    return { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"),
             automargin: true, ...own };
  }

  // Python knows what is drawn; only the page knows on what paper and how wide.
  function layout(own, div, traces) {
    const ink = colour("--ink"), card = colour("--card");
    const names = traces.filter((t) => t.name && t.showlegend !== false).map((t) => t.name);
    const perRow = Math.max(1, Math.floor(div.clientWidth / (56 + 7 * Math.max(0, ...names.map((n) => n.length)))));
    const rows = Math.ceil(names.length / perRow);
    const height = (own.height || (own.hovermode ? 360 : 320)) + 20 * rows;
    return {
      hovermode: "closest", ...own, height, autosize: true,
      showlegend: names.length > 0,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
      paper_bgcolor: card, plot_bgcolor: card,
      margin: { l: 52, r: 12, t: 34, b: 44 },
      hoverlabel: { bgcolor: card, bordercolor: colour("--line"), font: { color: ink }, namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--accent") },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 0, yref: "container", yanchor: "bottom",
                bgcolor: "rgba(0,0,0,0)", font: { color: ink } },
      xaxis: axis(own.xaxis), yaxis: axis(own.yaxis),
    };
  }

  function themed(traces) {
    return traces.map((trace) => trace.type !== "heatmap" ? trace : {
      ...trace, colorscale: [[0, colour("--empty")], [1, colour("--full")]],
    });
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

  const shown = {};  // the state of each plot that has several

  function draw(name) {
    const figure = data.figures[name], div = document.getElementById(name);
    const traces = themed(figure.choices[shown[name] || 0] || figure.data);
    return Plotly.react(div, traces, layout(figure.layout, div, traces), config(name));
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
      const line = button.closest("details").querySelector("pre").textContent;
      await navigator.clipboard.writeText(line);
      button.textContent = "Copied";
    });
  }
  dark.addEventListener("change", drawAll);
  drawAll().then(() => document.documentElement.setAttribute("data-drawn", ""));
})();
