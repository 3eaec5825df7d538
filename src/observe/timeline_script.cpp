#include "observe/report_assets.h"

namespace heddle::observe {

const char* const kTimelineScript = R"js(
// Draws each timeline again from its data: at the width there is, and of the stretch that is looked at.
// Bars too narrow to be seen share a column, as in the drawing that the page came with.
const narrow = 2, digit = 6.1, readable = 14;
const text = (s) => s.replace(/[&<>"]/g, (c) => "&#" + c.charCodeAt(0) + ";");
const digits = (v, n) => String(+v.toPrecision(n));
const sized = (bytes) => {
  let i = 0;
  for (; bytes >= 1024 && i < 5; ++i) bytes /= 1024;
  return (i ? bytes.toFixed(1) : bytes) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][i];
};
const marks = (low, high, wanted) => {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough)), lead = rough / power;
  const step = power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10), all = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); ++k) all.push(k * step);
  return [all, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9))];
};
for (const figure of document.querySelectorAll(".timeline-figure")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const view = figure.querySelector(".view"), svg = view.querySelector("svg"), tip = view.querySelector(".tip");
  const group = svg.querySelector(".rows"), height = data.top + data.ranks * data.pitch + data.axis;
  const rows = data.rows.map(([rank, line, ...flat]) => {
    const bars = [];
    let at = 0;
    for (let i = 0; i < flat.length; i += 6) {
      const begin = at + flat[i + 3], end = begin + flat[i + 4];
      bars.push({ kind: data.kinds[flat[i]], part: flat[i + 1], label: data.labels[flat[i + 2]], begin, end, bytes: data.bytes[flat[i + 5]] });
      at = end;
    }
    const top = data.top + rank * data.pitch;
    return line ? { rank, line, bars, y: top + data.bar + 1 + (line - 1) * data.thin, height: data.thin - 1 }
      : { rank, line, bars, y: top, height: data.bar };
  });
  if (!rows.length) continue;
  let from = 0, to = data.ticks, width = 1000;
  const first = (bars, tick) => {  // that ends behind `tick`
    let low = 0, high = bars.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (bars[middle].end <= tick) low = middle + 1; else high = middle;
    }
    return low;
  };
  const draw = () => {
    width = Math.max(280, view.clientWidth);
    const inner = width - data.left - data.right, scale = inner / (to - from), out = [];
    const place = (tick) => data.left + Math.min(Math.max((tick - from) * scale, 0), inner);
    for (let rank = 0; rank < data.ranks; ++rank) {
      const y = data.top + rank * data.pitch;
      if (rank % data.named === 0) out.push(`<text class="rank" x="${data.left - 8}" y="${y + data.bar / 2 + 4}">rank ${rank * data.every}</text>`);
      out.push(`<rect class="track" x="${data.left}" y="${y}" width="${inner}" height="${data.bar}"/>`);
    }
    let drawn = 0, column = -1;
    for (const row of rows) {
      column = -1;
      for (let i = first(row.bars, from); i < row.bars.length && row.bars[i].begin < to; ++i) {
        const bar = row.bars[i], style = `class="bar ${bar.kind}${bar.part ? " later" : ""}"`;
        let x = place(bar.begin), wide = place(bar.end) - x;
        if ((bar.end - bar.begin) * scale < narrow) {
          const at = Math.floor((x + wide / 2 - data.left) / narrow);
          if (at === column) continue;
          column = at, x = data.left + at * narrow, wide = narrow;
        } else {
          wide = Math.max(wide - .6, .4);
        }
        ++drawn;
        out.push(`<rect ${style} x="${x.toFixed(2)}" y="${row.y}" width="${wide.toFixed(2)}" height="${row.height}" rx="1.5"/>`);
        if (row.height < readable) continue;
        const short = (bar.label.match(/\d.*/) || [""])[0];
        const inside = [bar.label, short].find((s) => s && s.length * digit < wide);
        if (inside) out.push(`<text class="in" x="${(x + wide / 2).toFixed(2)}" y="${row.y + row.height / 2 + 3.5}">${text(inside)}</text>`);
      }
    }
    const bottom = data.top + data.ranks * data.pitch, [ticks, places] = marks(from * data.tick, to * data.tick, width / 120);
    for (const value of ticks) {
      const x = place(value / data.tick).toFixed(1);
      out.push(`<line x1="${x}" x2="${x}" y1="${bottom}" y2="${bottom + 4}"/><text class="tick" x="${x}" y="${bottom + 16}"${x > width - 30 ? ' style="text-anchor:end"' : ""}>${value.toFixed(places)} ${text(data.unit)}</text>`);
    }
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    group.innerHTML = out.join("");
    figure.dataset.drawn = drawn;
    figure.dataset.from = digits(from * data.tick, 6);
    figure.dataset.to = digits(to * data.tick, 6);
  };
  const look = (begin, length) => {
    length = Math.min(Math.max(length, 200), data.ticks);
    from = Math.min(Math.max(begin, 0), data.ticks - length);
    to = from + length;
    tip.style.display = "none";
    draw();
  };
  const zoom = (factor, at) => look(at - (at - from) * factor, (to - from) * factor);
  const pointed = (event) => {
    const box = svg.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    return { x, y, tick: from + (x - data.left) / (width - data.left - data.right) * (to - from) };
  };
  const line = (name, value) => {
    const div = document.createElement("div"), b = document.createElement("b");
    div.append(name); b.textContent = value; div.append(b); tip.append(div);
  };
  const tell = (event) => {
    const { x, y, tick } = pointed(event), time = (ticks, places) => digits(ticks * data.tick, places) + " " + data.unit;
    const length = (ticks) => data.unit === "s" && ticks * data.tick < .5 ? digits(ticks * data.tick * 1e3, 3) + " ms" : time(ticks, 4);
    const row = rows.find((r) => y >= r.y && y < r.y + r.height + 1);
    tip.style.display = "none";
    if (!row || tick < from || tick > to) return;
    const i = first(row.bars, tick), bar = row.bars[i];
    const begin = bar && bar.begin <= tick ? bar.begin : i > 0 ? row.bars[i - 1].end : 0;
    const end = bar ? (bar.begin <= tick ? bar.end : bar.begin) : data.ticks;
    const does = bar && bar.begin <= tick;
    if (!does && row.line) return;
    tip.replaceChildren();
    line("rank " + row.rank * data.every, does ? bar.label + (bar.part ? " of part " + (bar.part + 1) : "") : "waits");
    line("takes", length(end - begin));
    line("from", time(begin, 6) + " to " + time(end, 6));
    if (does && bar.bytes) line("bytes", sized(bar.bytes));
    tip.style.display = "block";
    tip.style.left = Math.max(0, Math.min(x + 12, width - tip.offsetWidth)) + "px";
    tip.style.top = (y + 16) + "px";
  };
  let held = null;
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== view) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return look(from + event.deltaX / width * (to - from), to - from);
    zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 250))), pointed(event).tick);
  }, { passive: false });
  view.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    held = { x: event.clientX, from };
    view.classList.add("held");
  });
  view.addEventListener("pointermove", (event) => { if (!held) tell(event); });
  addEventListener("pointermove", (event) => {
    if (!held) return;
    look(held.from - (event.clientX - held.x) / (width - data.left - data.right) * (to - from), to - from);
  });
  const drop = () => { held = null; view.classList.remove("held"); };
  addEventListener("pointerup", drop);
  addEventListener("pointercancel", drop);
  view.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  view.addEventListener("dblclick", () => look(0, data.ticks));
  view.addEventListener("keydown", (event) => {
    const length = to - from, middle = (from + to) / 2;
    if (event.key === "+" || event.key === "=") zoom(.6, middle);
    else if (event.key === "-") zoom(1 / .6, middle);
    else if (event.key === "0") look(0, data.ticks);
    else if (event.key === "ArrowLeft") look(from - length / 5, length);
    else if (event.key === "ArrowRight") look(from + length / 5, length);
    else return;
    event.preventDefault();
  });
  figure.querySelector(".buttons").addEventListener("click", (event) => {
    const what = event.target.dataset.do, middle = (from + to) / 2;
    if (what === "in") zoom(.5, middle);
    if (what === "out") zoom(2, middle);
    if (what === "all") look(0, data.ticks);
  });
  for (const hidden of figure.querySelectorAll("[hidden]")) hidden.hidden = false;
  view.classList.add("live");
  addEventListener("resize", draw);
  draw();
}
)js";

}  // namespace heddle::observe
