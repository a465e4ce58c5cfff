"use strict";
// Charts as SVG: lines, bands, stacked bars and heat maps. A figure is a subset of a plotly.js
// figure (data and layout), so that figures can be checked with plotly and moved to it.
const Charts = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const FONT_SIZE = 12, MARKERS = 9, LEGEND_ROW = 22;
  const DASHES = { dash: "8 5", dot: "2 4", dashdot: "8 4 2 4" };
  const measure = document.createElement("canvas").getContext("2d");

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Names in a figure are escaped for HTML, as plotly.js expects them.
  const plain = (text) => String(text).replace(/<br>/g, " ").replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");

  function node(parent, name, attributes = {}, text) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  // Numbers as d3-format writes them, as far as figures use it.
  function si(value, digits, trim) {
    if (!value) return "0";
    const units = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"]];
    const size = Math.abs(value) * (1 + 1e-9);
    const [unit, name] = units.find(([u]) => size >= u) || units[units.length - 1];
    const text = (value / unit).toPrecision(digits);
    const short = text.includes("e") ? String(Math.round(value / unit)) : text;
    return (trim && short.includes(".") ? short.replace(/\.?0+$/, "") : short) + name;
  }
  function format(value, spec) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return plain(value);
    let match;
    if ((match = /^\.(\d+)%$/.exec(spec))) return `${(100 * value).toFixed(+match[1])}%`;
    if ((match = /^\.?(\d*)(~?)s$/.exec(spec.replace(",", "")))) return si(value, +match[1] || 6, match[2] || !match[1]);
    if ((match = /^\.(\d+)~?g$/.exec(spec))) return String(+value.toPrecision(+match[1]));
    if ((match = /^,?\.(\d+)f$/.exec(spec)))
      return value.toLocaleString("en", { minimumFractionDigits: +match[1], maximumFractionDigits: +match[1] });
    if (spec === ",") return Math.round(value).toLocaleString("en");
    return String(+value.toPrecision(6));
  }
  // "%{y:.1%} after %{x:,}": values of one point by name.
  function fill(template, values) {
    return template.replace(/%\{([\w.]+)(?::([^}]*))?\}/g, (_, name, spec) => format(values[name], spec || ""));
  }

  const finite = (value) => typeof value === "number" && Number.isFinite(value);

  function linearTicks(low, high, count) {
    const rough = (high - low) / Math.max(count, 1) || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(+(i * step).toPrecision(12));
    return ticks;
  }
  function logTicks(low, high, count) {
    const decades = Math.log10(high / low), ticks = [];
    const within = decades < 1 ? [1, 2, 3, 5, 7] : decades < 2.5 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(decades / Math.max(count, 1)));
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const m of within) {
        const tick = m * 10 ** e;
        if (tick >= low * 0.999 && tick <= high * 1.001 && (within.length > 1 || e % every === 0)) ticks.push(tick);
      }
    return ticks.length > 1 ? ticks : [low, high];
  }
  function scale(domain, range, log) {
    const t = log ? Math.log10 : (v) => v;
    const low = t(domain[0]), span = t(domain[1]) - low || 1;
    const map = (v) => range[0] + (t(v) - low) / span * (range[1] - range[0]);
    map.invert = (p) => { const v = low + (p - range[0]) / (range[1] - range[0]) * span; return log ? 10 ** v : v; };
    map.domain = domain;
    return map;
  }
  function extent(traces, key, axis) {
    const log = axis.type === "log";
    let low = Infinity, high = -Infinity;
    for (const trace of traces) for (const v of trace[key] || []) if (finite(v) && (!log || v > 0)) { low = Math.min(low, v); high = Math.max(high, v); }
    if (low > high) return log ? [1, 10] : [0, 1];
    if (log) return low === high ? [low / 2, high * 2] : [low / 1.1, high * 1.1];
    if (axis.rangemode === "tozero") low = Math.min(low, 0);
    const pad = (high - low) * 0.04 || Math.abs(high) * 0.1 || 1;
    return [axis.rangemode === "tozero" ? low : low - pad, high + (axis.rangemode === "tozero" ? pad / 2 : pad)];
  }
  function tickText(axis) {
    if (axis.ticksuffix) return (v) => v ? `${si(v, 3, true).replace(/([^\d])$/, " $1").replace(/(\d)$/, "$1 ")}${axis.ticksuffix}` : "0";
    if (axis.tickformat === ".0%") return (v) => `${+(100 * v).toFixed(1)}%`;
    return (v) => Math.abs(v) >= 10000 ? si(v, 4, true) : String(+v.toPrecision(6));
  }

  const SYMBOLS = {
    circle: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
    square: (r) => `M${-r},${-r}H${r}V${r}H${-r}Z`,
    diamond: (r) => `M0,${-r * 1.3}L${r * 1.3},0L0,${r * 1.3}L${-r * 1.3},0Z`,
    "triangle-up": (r) => `M0,${-r * 1.2}L${r * 1.2},${r}H${-r * 1.2}Z`,
    x: (r) => `M${-r},${-r}L${r},${r}M${-r},${r}L${r},${-r}`,
    cross: (r) => `M${-r},0H${r}M0,${-r}V${r}`,
  };
  function marker(parent, trace, x, y) {
    const { symbol = "circle", size = 6, color } = trace.marker;
    const open = symbol === "x" || symbol === "cross";
    node(parent, "path", { d: SYMBOLS[symbol](size / 2), transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`,
      fill: open ? "none" : color, stroke: open ? color : "none", "stroke-width": 2 });
  }
  function path(trace, x, y) {
    let text = "", pen = "M";
    trace.x.forEach((v, i) => {
      const px = x(v), py = y(trace.y[i]);
      if (finite(v) && finite(trace.y[i]) && Number.isFinite(px) && Number.isFinite(py)) {
        text += `${pen}${px.toFixed(1)},${py.toFixed(1)}`; pen = "L";
      } else pen = "M";
    });
    return text;
  }
  function line(parent, trace, x, y) {
    const group = node(parent, "g", { class: "trace", opacity: trace.opacity });
    if (trace.fill) { node(group, "path", { d: path(trace, x, y) + "Z", fill: trace.fillcolor, stroke: "none" }); return; }
    node(group, "path", { d: path(trace, x, y), fill: "none", stroke: trace.line.color, "stroke-width": trace.line.width,
      "stroke-dasharray": DASHES[trace.line.dash], "stroke-linejoin": "round" });
    if (!trace.mode.includes("markers")) return;
    const n = trace.x.length, every = Math.max(1, Math.ceil(n / (trace.marker.maxdisplayed || MARKERS)));
    for (let i = n - 1; i >= 0; i -= every) {
      const px = x(trace.x[i]), py = y(trace.y[i]);
      if (Number.isFinite(px) && Number.isFinite(py)) marker(group, trace, px, py);
    }
  }

  function legendRows(entries, width) {
    const rows = [[]];
    let used = 0;
    for (const entry of entries) {
      const wide = Math.min(38 + measure.measureText(plain(entry.name)).width, width);
      if (used + wide > width && rows[rows.length - 1].length) { rows.push([]); used = 0; }
      rows[rows.length - 1].push({ entry, at: used, wide });
      used += wide + 8;
    }
    return entries.length ? rows : [];
  }
  function drawLegend(chart, rows, top, isBar) {
    const layer = node(chart.svg, "g", { class: "legend" });
    rows.forEach((row, r) => row.forEach(({ entry, at, wide }) => {
      const off = chart.hidden && chart.hidden.has(entry.legendgroup);
      const item = node(layer, "g", { class: "legenditem", transform: `translate(${at},${top + r * LEGEND_ROW})`, opacity: off ? 0.4 : 1 });
      if (isBar) node(item, "rect", { x: 4, y: 5, width: 12, height: 12, rx: 2, fill: entry.marker.color });
      else {
        node(item, "path", { d: "M2,11H24", stroke: entry.line.color, "stroke-width": entry.line.width, "stroke-dasharray": DASHES[entry.line.dash], fill: "none" });
        if (entry.marker) marker(item, entry, 13, 11);
      }
      node(item, "text", { x: isBar ? 22 : 30, y: 15, "font-size": FONT_SIZE, fill: chart.ink }, plain(entry.name));
      if (!entry.legendgroup || !chart.options.onLegend) return;
      const target = node(item, "rect", { class: "legendtoggle", width: wide, height: LEGEND_ROW, fill: "transparent",
        tabindex: 0, role: "button", "aria-pressed": !off, "aria-label": `Show ${plain(entry.name)}` });
      let pending = 0;
      target.addEventListener("click", (event) => {
        clearTimeout(pending);
        if (event.detail > 1) chart.options.onLegend(entry.legendgroup, true);
        else pending = setTimeout(() => chart.options.onLegend(entry.legendgroup, false), 220);
      });
      target.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); chart.options.onLegend(entry.legendgroup, false); }
      });
    }));
  }

  function axes(chart, x, y, box, layout, xTicks, yTicks, labels) {
    const layer = node(chart.svg, "g", { class: "axes", "font-size": FONT_SIZE - 1 });
    const bottom = box.top + box.height;
    for (const tick of yTicks) {
      const at = y(tick);
      if (labels.yGrid) node(layer, "path", { d: `M${box.left},${at.toFixed(1)}H${box.left + box.width}`, stroke: chart.rule });
      node(layer, "text", { x: box.left - 7, y: at + 4, "text-anchor": "end", fill: chart.soft }, labels.y(tick));
    }
    let free = -Infinity;
    for (const tick of xTicks) {
      const at = x(tick), text = labels.x(tick), half = measure.measureText(text).width / 2;
      if (labels.xGrid) node(layer, "path", { d: `M${at.toFixed(1)},${box.top}V${bottom}`, stroke: chart.rule });
      if (at - half < free) continue;
      free = at + half + 8;
      node(layer, "text", { x: Math.min(at, chart.width - half - 1), y: bottom + 16, "text-anchor": "middle", fill: chart.soft }, text);
    }
    node(layer, "text", { x: box.left + box.width / 2, y: bottom + 34, "text-anchor": "middle", fill: chart.ink, "font-size": FONT_SIZE }, layout.xaxis?.title?.text || "");
    const yTitle = layout.yaxis?.title?.text;
    if (yTitle) node(layer, "text", { x: 0, y: box.top - 10, fill: chart.ink, "font-size": FONT_SIZE }, yTitle);
  }

  function start(div, traces, layout, options) {
    const old = div.chart || {};
    const width = Math.max(div.clientWidth, 120);
    measure.font = `${FONT_SIZE}px ${getComputedStyle(document.body).fontFamily}`;
    const chart = { div, width, options, zoom: old.zoom, hidden: options.hidden, ink: colour("--ink"), soft: colour("--soft"),
      rule: colour("--line"), card: colour("--card") };
    chart.svg = node(null, "svg", { class: "main-svg", xmlns: NS, width, role: "img", "font-family": getComputedStyle(document.body).fontFamily });
    div.chart = chart; div.data = traces; div.layout = layout;
    return chart;
  }
  function finish(chart, height) {
    chart.svg.setAttribute("height", height);
    chart.svg.setAttribute("viewBox", `0 0 ${chart.width} ${height}`);
    const tip = chart.div.querySelector(".tip") || Object.assign(document.createElement("div"), { className: "tip", hidden: true });
    chart.tip = tip;
    const bar = chart.div.querySelector(".modebar") || modebar(chart.div);
    chart.div.replaceChildren(chart.svg, tip, bar);
  }

  function modebar(div) {
    const bar = document.createElement("div");
    bar.className = "modebar";
    for (const kind of ["PNG", "SVG"]) {
      const button = document.createElement("button");
      button.type = "button"; button.className = "modebar-btn"; button.textContent = kind;
      button.dataset.title = button.title = `Save as ${kind}`;
      button.addEventListener("click", () => save(div, kind.toLowerCase()));
      bar.append(button);
    }
    return bar;
  }
  function download(name, blob) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob); link.download = name; link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  function save(div, kind) {
    const { svg, card, width } = div.chart, height = +svg.getAttribute("height");
    const copy = svg.cloneNode(true);
    copy.querySelectorAll(".hover, .legendtoggle").forEach((part) => part.remove());
    const ground = node(null, "rect", { width, height, fill: card });
    copy.prepend(ground);
    const text = new XMLSerializer().serializeToString(copy), name = `fedtern-${div.id}.${kind}`;
    if (kind === "svg") { download(name, new Blob([text], { type: "image/svg+xml" })); return; }
    const image = new Image(), canvas = document.createElement("canvas");
    image.onload = () => {
      canvas.width = 2 * width; canvas.height = 2 * height;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => download(name, blob));
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  }

  function showTip(chart, rows, px, py) {
    const tip = chart.tip;
    tip.replaceChildren(...rows.map(({ text, colour: key }) => {
      const row = document.createElement("div");
      if (key) { const dot = document.createElement("span"); dot.className = "key"; dot.style.background = key; row.append(dot); }
      row.append(text);
      return row;
    }));
    tip.hidden = false;
    const left = px + 14 + tip.offsetWidth > chart.width ? px - 14 - tip.offsetWidth : px + 14;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${Math.max(0, py - tip.offsetHeight / 2)}px`;
  }
  const lines = (trace, point) => {
    const [main] = trace.hovertemplate.split("<extra>");
    return main.split("<br>").map((text) => fill(text, point)).join(", ");
  };

  function drawLines(div, traces, layout, options) {
    const chart = start(div, traces, layout, options);
    const shown = traces.filter((t) => t.visible !== "legendonly" && t.x.length);
    const xaxis = layout.xaxis || {}, yaxis = layout.yaxis || {};
    const entries = traces.filter((t) => t.showlegend !== false);
    const rows = options.legend === false ? [] : legendRows(entries, chart.width);
    const plotHeight = layout.height || (layout.hovermode ? 300 : 240);
    const yText = tickText(yaxis), xText = tickText(xaxis);
    const xDomain = chart.zoom || extent(shown, "x", xaxis), yDomain = extent(shown, "y", yaxis);
    const yTicks = (yaxis.type === "log" ? logTicks : linearTicks)(...yDomain, plotHeight / 42);
    const left = 12 + Math.max(...yTicks.map((t) => measure.measureText(yText(t)).width), 16);
    const box = { left, top: 26, width: chart.width - left - 12, height: plotHeight - 26 };
    const x = scale(xDomain, [left, left + box.width], xaxis.type === "log");
    const y = scale(yDomain, [box.top + box.height, box.top], yaxis.type === "log");
    const xTicks = (xaxis.type === "log" ? logTicks : linearTicks)(...xDomain, box.width / 90);
    axes(chart, x, y, box, layout, xTicks, yTicks, { x: xText, y: yText, xGrid: true, yGrid: true });
    const clip = `clip-${div.id || Math.random().toString(36).slice(2)}`;
    node(node(chart.svg, "clipPath", { id: clip }), "rect", { x: box.left - 5, y: box.top - 5, width: box.width + 10, height: box.height + 10 });
    const layer = node(chart.svg, "g", { class: "scatterlayer", "clip-path": `url(#${clip})` });
    for (const trace of shown) line(layer, trace, x, y);
    const height = box.top + box.height + 42;
    if (rows.length) drawLegend(chart, rows, height, false);
    interact(chart, shown.filter((t) => t.hovertemplate && t.hoverinfo !== "skip"), x, y, box, layout);
    finish(chart, height + rows.length * LEGEND_ROW);
  }

  function interact(chart, traces, x, y, box, layout) {
    const hover = node(chart.svg, "g", { class: "hover" });
    const cover = node(chart.svg, "rect", { x: box.left, y: box.top, width: box.width, height: box.height, fill: "transparent" });
    const unified = layout.hovermode === "x unified";
    let from = null;
    const point = (event) => { const r = chart.svg.getBoundingClientRect(); return [event.clientX - r.left, event.clientY - r.top]; };
    const values = (trace, i) => ({ x: trace.x[i], y: trace.y[i], customdata: trace.customdata?.[i], "fullData.name": trace.name });
    function nearest(trace, px, py) {
      let best = null;
      for (let i = 0; i < trace.x.length; i++) {
        const dx = x(trace.x[i]) - px, dy = unified ? 0 : y(trace.y[i]) - py, d = dx * dx + dy * dy;
        if (Number.isFinite(d) && (!best || d < best.d)) best = { d, i, trace };
      }
      return best;
    }
    function move(event) {
      const [px, py] = point(event);
      hover.replaceChildren();
      if (from !== null) {
        node(hover, "rect", { x: Math.min(from, px), y: box.top, width: Math.abs(px - from), height: box.height, fill: chart.ink, opacity: 0.1 });
        return;
      }
      let found = traces.map((trace) => nearest(trace, px, py)).filter(Boolean);
      if (!found.length) return;
      const closest = found.reduce((a, b) => (b.d < a.d ? b : a));
      if (!unified) found = closest.d < 3600 ? [closest] : [];
      if (!found.length) { chart.tip.hidden = true; return; }
      if (unified) node(hover, "path", { d: `M${x(closest.trace.x[closest.i])},${box.top}V${box.top + box.height}`, stroke: chart.soft });
      for (const { trace, i } of found) node(hover, "circle", { cx: x(trace.x[i]), cy: y(trace.y[i]), r: 4.5, fill: trace.line.color, stroke: chart.card, "stroke-width": 1.5 });
      const rows = found.map(({ trace, i }) => ({ colour: trace.line.color, text: `${plain(trace.name)}: ${lines(trace, values(trace, i))}` }));
      if (unified) rows.unshift({ text: `${layout.xaxis?.title?.text || "x"} ${format(closest.trace.x[closest.i], layout.xaxis?.type === "log" ? ".3s" : ",")}${layout.xaxis?.ticksuffix || ""}` });
      showTip(chart, rows, px, py);
    }
    cover.addEventListener("pointermove", move);
    cover.addEventListener("pointerleave", () => { hover.replaceChildren(); chart.tip.hidden = true; from = null; });
    cover.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") { from = point(event)[0]; chart.tip.hidden = true; } });
    cover.addEventListener("pointerup", (event) => {
      const to = point(event)[0], began = from;
      from = null;
      if (began === null || Math.abs(to - began) < 8) return;
      chart.zoom = [x.invert(Math.min(began, to)), x.invert(Math.max(began, to))];
      chart.options.redraw?.();
    });
    cover.addEventListener("dblclick", () => { chart.zoom = undefined; chart.options.redraw?.(); });
  }

  function drawBars(div, traces, layout, options) {
    const chart = start(div, traces, layout, options);
    const names = traces[0]?.y || [];
    const labels = names.map((name) => String(name).split("<br>").map(plain));
    const rows = legendRows(traces, chart.width), text = tickText({});
    const wide = Math.max(0, ...labels.flat().map((l) => measure.measureText(l).width));
    const each = Math.max(30, 12 + 15 * Math.max(1, ...labels.map((l) => l.length)));
    const box = { left: Math.min(wide + 12, chart.width * 0.45), top: 8, height: each * names.length };
    box.width = chart.width - box.left - 14;
    const totals = names.map((_, i) => traces.reduce((sum, t) => sum + (t.x[i] || 0), 0));
    const x = scale([0, Math.max(...totals, 1e-9) * 1.02], [box.left, box.left + box.width], false);
    axes(chart, x, () => 0, box, layout, linearTicks(...x.domain, box.width / 90), [], { x: text, y: text, xGrid: true });
    const layer = node(chart.svg, "g", { class: "barlayer", "font-size": FONT_SIZE });
    names.forEach((_, i) => {
      const top = box.top + i * each + 4;
      labels[i].forEach((l, j) => node(layer, "text", { x: box.left - 8, y: top + each / 2 + 15 * (j - (labels[i].length - 1) / 2), "text-anchor": "end", fill: chart.ink }, l));
      let sum = 0;
      for (const trace of traces) {
        const size = trace.x[i] || 0;
        const rect = node(layer, "rect", { class: "bar", x: x(sum), y: top, width: Math.max(x(sum + size) - x(sum), 0), height: each - 8, fill: trace.marker.color });
        rect.addEventListener("pointermove", (event) => {
          const r = chart.svg.getBoundingClientRect();
          const values = { x: trace.x[i], y: trace.y[i], customdata: trace.customdata?.[i] };
          showTip(chart, [{ colour: trace.marker.color, text: `${plain(trace.name)}: ${lines(trace, values)}` }], event.clientX - r.left, event.clientY - r.top);
        });
        rect.addEventListener("pointerleave", () => { chart.tip.hidden = true; });
        sum += size;
      }
    });
    const height = box.top + box.height + 42;
    drawLegend(chart, rows, height, true);
    finish(chart, height + rows.length * LEGEND_ROW);
  }

  function mixed(from, to, share) {
    const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    const [a, b] = [parts(from), parts(to)];
    return a.map((v, i) => Math.round(v + share * (b[i] - v)));
  }
  function drawHeatMap(div, traces, layout, options) {
    const chart = start(div, traces, layout, options), trace = traces[0];
    const rows = trace.z.length, columns = trace.z[0]?.length || 0, names = trace.y.map(plain);
    const high = Math.max(1, ...trace.z.map((row) => Math.max(...row)));
    const left = 12 + Math.max(14, ...names.map((n) => measure.measureText(n).width));
    const box = { left, top: 26, width: chart.width - left - 12, height: Math.min(24 * rows, 600) };
    const canvas = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
    const paint = canvas.getContext("2d"), from = colour("--empty"), to = colour("--full");
    trace.z.forEach((row, r) => row.forEach((v, c) => { paint.fillStyle = `rgb(${mixed(from, to, v / high)})`; paint.fillRect(c, r, 1, 1); }));
    const image = node(chart.svg, "image", { x: box.left, y: box.top, width: box.width, height: box.height, preserveAspectRatio: "none",
      style: "image-rendering:pixelated", href: canvas.toDataURL() });
    const x = scale([0, columns], [box.left, box.left + box.width], false), y = scale([0, rows], [box.top, box.top + box.height], false);
    const gaps = node(chart.svg, "g", { class: "gaps" });
    for (let r = 1; r < rows; r++) node(gaps, "path", { d: `M${box.left},${y(r)}H${box.left + box.width}`, stroke: chart.card });
    if (box.width / columns >= 5) for (let c = 1; c < columns; c++) node(gaps, "path", { d: `M${x(c)},${box.top}V${box.top + box.height}`, stroke: chart.card });
    const centre = (s) => (v) => s(v + 0.5);
    axes(chart, centre(x), centre(y), box, layout, linearTicks(0, Math.max(columns - 1, 0), box.width / 70).filter(Number.isInteger), names.map((_, i) => i), { x: String, y: (i) => names[i] });
    const height = box.top + box.height + 44, mid = box.left + box.width / 2;
    const gradient = node(chart.svg, "linearGradient", { id: `ramp-${div.id}` });
    node(gradient, "stop", { offset: 0, "stop-color": from }); node(gradient, "stop", { offset: 1, "stop-color": to });
    node(chart.svg, "text", { x: mid - 68, y: height + 12, "text-anchor": "end", "font-size": FONT_SIZE - 1, fill: chart.soft }, "0");
    node(chart.svg, "rect", { x: mid - 60, y: height + 2, width: 120, height: 12, rx: 3, fill: `url(#ramp-${div.id})`, stroke: chart.rule });
    node(chart.svg, "text", { x: mid + 68, y: height + 12, "font-size": FONT_SIZE - 1, fill: chart.soft }, `${high.toLocaleString("en")} ${trace.colorbar?.title?.text || ""}`);
    chart.svg.append(image, gaps);
    gaps.setAttribute("pointer-events", "none");
    image.addEventListener("pointermove", (event) => {
      const r = chart.svg.getBoundingClientRect(), px = event.clientX - r.left, py = event.clientY - r.top;
      const c = Math.min(columns - 1, Math.max(0, Math.floor(x.invert(px)))), row = Math.min(rows - 1, Math.max(0, Math.floor(y.invert(py))));
      showTip(chart, [{ text: lines(trace, { x: c, y: names[row], z: trace.z[row][c] }) }], px, py);
    });
    image.addEventListener("pointerleave", () => { chart.tip.hidden = true; });
    finish(chart, height + 24);
  }

  function draw(div, traces, layout, options = {}) {
    const kind = traces[0]?.type;
    (kind === "bar" ? drawBars : kind === "heatmap" ? drawHeatMap : drawLines)(div, traces, layout, options);
  }
  return { draw, si, format, download, colour };
})();
