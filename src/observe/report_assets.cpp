#include "observe/report_assets.h"

namespace heddle::observe {

const char* const kReportStyle = R"css(
:root {
  color-scheme: light dark;
  --paper: #fdfdfb; --card: #f5f4f0; --ink: #1c1e21; --soft: #63676e; --hair: #e4e2dc;
  --train: #24588f; --eval: #c4561b; --bound: #3f7d58; --predicted: #b9c6d6; --alert: #9a5b00;
  --violet: #7a4b94; --grey: #a9abaf; --pale: #e9e6df; --track: #eceae4;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #141618; --card: #1c1f22; --ink: #e9e7e2; --soft: #9a9da3; --hair: #2c2f33;
    --train: #7db2ec; --eval: #f0975c; --bound: #7cc096; --predicted: #44556a; --alert: #e0ad5c;
    --violet: #c79be0; --grey: #6d7178; --pale: #2b2f34; --track: #24272b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  -webkit-text-size-adjust: 100%;
}
main { max-width: 58rem; margin: 0 auto; padding: 3.5rem 1.5rem 4rem; }
header .kind { color: var(--soft); font-size: .8rem; letter-spacing: .08em; text-transform: uppercase; margin: 0; }
h1 { font-size: clamp(1.7rem, 5vw, 2.5rem); line-height: 1.15; letter-spacing: -.02em; font-weight: 650;
  margin: .3rem 0 .4rem; overflow-wrap: anywhere; }
header .model { color: var(--soft); margin: 0; overflow-wrap: anywhere; }
section { margin-top: 3.25rem; }
h2 { font-size: 1.2rem; font-weight: 650; letter-spacing: -.01em; margin: 0 0 .35rem; }
h3 { font-size: .95rem; font-weight: 600; margin: 0 0 .5rem; }
.bars + h3, .stacks + h3 { margin-top: 1.8rem; }
.say { margin: 0 0 1rem; max-width: 44rem; }
.soft, .say { color: var(--soft); }
.say b { color: var(--ink); font-weight: 600; }

.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.6rem, 1fr)); gap: 1.5rem 1rem;
  margin: 2.25rem 0 0; padding: 1.4rem 0; border-block: 1px solid var(--hair); }
.figures dt { color: var(--soft); font-size: .82rem; }
.figures dd { margin: .1rem 0 0; font-size: 1.55rem; line-height: 1.25; font-weight: 600; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.figures dd small { display: block; font-size: .82rem; font-weight: 400; letter-spacing: 0; color: var(--soft);
  white-space: normal; line-height: 1.35; }
.facts { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 1.1rem 0 0; font-size: .85rem; }
.facts dt { color: var(--soft); font-size: .78rem; }
.facts dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.facts .wide { flex-basis: 100%; }
code { font: .92em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.when { white-space: nowrap; }
.warnings { margin: 1.5rem 0 0; padding: .8rem 1.1rem; list-style: none; background: var(--card);
  border-left: 3px solid var(--alert); border-radius: 3px; }
.warnings li { overflow-wrap: anywhere; }

.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.3rem; margin: 0 0 .9rem; padding: 0; list-style: none;
  font-size: .85rem; color: var(--soft); }
.legend i { display: inline-block; width: 1.1rem; height: 0; margin-right: .45rem; vertical-align: .25em;
  border-top: 2.5px solid var(--train); border-radius: 2px; }
.legend i.raw { opacity: .35; border-top-width: 1.5px; }
.legend i.dots { width: .55rem; height: .55rem; border: 0; border-radius: 50%; background: var(--eval); vertical-align: 0; }
.legend i.bound { border-top: 2px dashed var(--bound); border-radius: 0; }
.legend i.source-0 { border-top-color: var(--train); }
.legend i.source-1 { border-top-color: var(--eval); }
.legend i.source-2 { border-top-color: var(--bound); }
.legend i.source-3 { border-top-color: var(--violet); }
.legend i.source-4 { border-top-color: var(--alert); }
.legend i.source-5 { border-top-color: var(--grey); }
.legend i.predicted, .legend i.measured { width: .75rem; height: .75rem; border: 0; border-radius: 2px; vertical-align: -.06em; }
.legend i.predicted { background: var(--predicted); }
.legend i.measured { background: var(--train); }

.chart { margin: 0; padding: .5rem .25rem 1.7rem 3.1rem; }
.chart figcaption { position: relative; top: 1.75rem; height: 0; text-align: right; font-size: .75rem; color: var(--soft); }
.plot .drawing { position: absolute; inset: 0; }
.plot .cut { position: absolute; top: calc(100% + 1.75rem); right: 0; font-size: .75rem; line-height: 1; color: var(--soft); }
/* The switch between a linear and a logarithmic axis: radio buttons out of sight, in front of the charts that follow them. */
.choice { position: absolute; opacity: 0; pointer-events: none; }
.switch { float: right; display: flex; margin: 0 .25rem .4rem 1rem; border: 1px solid var(--hair); border-radius: 6px; overflow: hidden; font-size: .8rem; line-height: 1.5; }
.switch label { padding: .1rem .65rem; color: var(--soft); cursor: pointer; }
.switch label:hover { color: var(--ink); }
#axis-linear:checked ~ .switch [for="axis-linear"], #axis-log:checked ~ .switch [for="axis-log"] { background: var(--pale); color: var(--ink); }
#axis-linear:focus-visible ~ .switch, #axis-log:focus-visible ~ .switch { outline: 2px solid var(--train); outline-offset: 1px; }
.two-axes .on-log, #axis-log:checked ~ .two-axes .on-linear { display: none; }
#axis-log:checked ~ .two-axes .on-log { display: block; }
.plot { position: relative; touch-action: pan-y; }
.plot svg { display: block; width: 100%; height: 100%; overflow: visible; clip-path: inset(0 -6px 0 -1px);
  border-bottom: 1px solid var(--soft); }
.plot path { fill: none; vector-effect: non-scaling-stroke; stroke-linejoin: round; stroke-linecap: round; }
.plot .grid { stroke: var(--hair); stroke-width: 1; stroke-linecap: butt; }
.plot .raw { stroke: var(--train); stroke-width: 1; opacity: .28; }
.plot .line { stroke: var(--train); stroke-width: 2; }
.plot .thin { stroke: var(--train); stroke-width: 1.4; }
.plot .source-0 { stroke: var(--train); stroke-width: 2; }
.plot .source-1 { stroke: var(--eval); stroke-width: 2; }
.plot .source-2 { stroke: var(--bound); stroke-width: 2; }
.plot .source-3 { stroke: var(--violet); stroke-width: 2; }
.plot .source-4 { stroke: var(--alert); stroke-width: 2; }
.plot .source-5 { stroke: var(--grey); stroke-width: 2; }
.plot .lone { stroke-width: 6; }
.plot .dots { stroke: var(--eval); stroke-width: 7; }
.plot .bound { stroke: var(--bound); stroke-width: 1.6; stroke-dasharray: 6 5; stroke-linecap: butt; }
.plot span { position: absolute; font-size: .76rem; line-height: 1; color: var(--soft); font-variant-numeric: tabular-nums;
  white-space: nowrap; pointer-events: none; }
.plot .ty { right: calc(100% + .6rem); transform: translateY(-50%); }
.plot .tx { top: calc(100% + .55rem); transform: translateX(-50%); }
.plot .tx.end { transform: translateX(-100%); margin-left: .35rem; }
.plot .bound-label { left: .1rem; transform: translateY(.4rem); color: var(--bound); font-weight: 600; text-shadow: 0 0 2px var(--paper), 0 0 4px var(--paper), 0 0 6px var(--paper); }
.plot .mark { position: absolute; top: 0; bottom: 0; width: 9px; margin-left: -4.5px; opacity: .75;
  background: linear-gradient(var(--violet), var(--violet)) center / 1px 100% no-repeat; }
.plot .mark.faint { opacity: .25; }
.plot .mark-label { top: .15rem; margin-left: .4rem; color: var(--violet); text-shadow: 0 0 2px var(--paper), 0 0 4px var(--paper), 0 0 6px var(--paper); }
.legend i.mark { width: 0; height: .9rem; border-top: 0; border-left: 1.5px solid var(--violet); border-radius: 0; vertical-align: -.12em; }
.cursor { position: absolute; top: 0; bottom: 0; width: 0; border-left: 1px solid var(--soft); display: none; pointer-events: none; }
.tip { position: absolute; top: .25rem; display: none; z-index: 2; padding: .45rem .65rem; border-radius: 5px; pointer-events: none;
  background: var(--ink); color: var(--paper); font-size: .78rem; line-height: 1.45; white-space: nowrap; font-variant-numeric: tabular-nums; }
.tip b { font-weight: 600; }
.tip div { display: flex; justify-content: space-between; gap: 1.2rem; }
.closer { margin-top: 1.6rem; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 2rem; }

.bars { display: grid; grid-template-columns: auto 1fr auto auto; gap: .85rem 1rem; align-items: center; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
.bars .row { display: contents; }
.bars .track i { display: block; height: .6rem; min-width: 2px; border-radius: 2px; margin: 2px 0; }
.bars .p { background: var(--predicted); }
.bars .m { background: var(--train); }
.bars .num { text-align: right; line-height: 1.3; font-size: .82rem; }
.bars .num span { display: block; }
.bars .num span:first-child { color: var(--soft); }
.bars .off { text-align: right; color: var(--soft); font-size: .82rem; min-width: 3.6rem; }
.bars .total { font-weight: 600; }

/* Heat maps. */
.heat { display: grid; grid-template-columns: auto 1fr auto; gap: 3px .8rem; align-items: center; font-size: .82rem;
  font-variant-numeric: tabular-nums; margin-bottom: 1.8rem; }
.heat.many { gap: 1px .8rem; font-size: .7rem; }
.heat svg { display: block; width: 100%; height: 1.15rem; background: var(--track); border-radius: 2px; }
.heat.many svg { height: .75rem; }
.heat .less { fill: var(--train); }
.heat .more { fill: var(--eval); }
.heat .name, .heat .total, .heat .ends { color: var(--soft); }
.heat .ends { display: flex; justify-content: space-between; }

/* Bars of several parts. */
.legend i[class^="part-"], .legend i[class^="tl-"] { width: .75rem; height: .75rem; border: 0; border-radius: 2px; vertical-align: -.06em; }
.part-a, .legend .tl-f { background: var(--train); }
.part-b { background: var(--predicted); }
.part-c, .legend .tl-b { background: var(--eval); }
.part-d, .legend .tl-w { background: var(--bound); }
.part-e, .legend .tl-v { background: var(--violet); }
.part-f, .legend .tl-c { background: var(--grey); }
.part-g { background: repeating-linear-gradient(135deg, var(--grey) 0 1.5px, var(--pale) 1.5px 5px); }
.part-h { background: var(--alert); }
.part-i { background: repeating-linear-gradient(45deg, var(--eval) 0 2px, var(--pale) 2px 4px); }
.part-j { background: repeating-linear-gradient(45deg, var(--violet) 0 2px, var(--pale) 2px 4px); }
.stacks { position: relative; display: grid; grid-template-columns: auto 1fr auto; gap: .5rem 1rem; align-items: center;
  font-size: .86rem; font-variant-numeric: tabular-nums; }
.stacks .row { display: contents; }
.stacks .name { white-space: nowrap; }
.stacks .name small { display: block; color: var(--soft); white-space: normal; }
.stacks .stack { position: relative; display: flex; height: 1.15rem; background: var(--track); border-radius: 3px; }
.stacks .stack i { height: 100%; min-width: 0; box-shadow: inset -1px 0 var(--paper); }
.stacks .stack i:first-child { border-radius: 3px 0 0 3px; }
.stacks .stack .limit { position: absolute; top: -.3rem; bottom: -.3rem; width: 0; height: auto; border-left: 1.5px dashed var(--eval); box-shadow: none; border-radius: 0; }
.stacks .total { text-align: right; white-space: nowrap; }
.stacks .total small { display: block; color: var(--soft); }
.stacks.many { gap: .2rem 1rem; font-size: .76rem; line-height: 1.2; }
.stacks.many .stack { height: .7rem; }
.legend i.limit { width: 0; height: .9rem; border-top: 0; border-left: 2px dashed var(--eval); border-radius: 0; vertical-align: -.12em; }

/* Timelines. */
.timeline-figure { margin: 0 0 1.5rem; }
.timeline-figure .tools { display: flex; flex-wrap: wrap; align-items: center; justify-content: space-between; gap: .4rem 1rem; }
.timeline-figure .legend { margin: 0; }
.timeline-figure .buttons[hidden] { display: none; }
.timeline-figure button { min-width: 2.1rem; padding: .2rem .6rem; margin-left: .3rem; font: inherit; font-size: .9rem; line-height: 1.3; color: var(--ink);
  background: var(--card); border: 1px solid var(--hair); border-radius: 5px; cursor: pointer; }
.timeline-figure button:hover { border-color: var(--soft); }
.timeline-figure .view { position: relative; margin-top: .4rem; overflow-x: auto; outline: none; border-radius: 4px; }
.timeline-figure .view:focus { box-shadow: 0 0 0 2px var(--predicted); }
.timeline-figure .view.live { overflow: visible; touch-action: pan-y; cursor: grab; user-select: none; }
.timeline-figure .view.held { cursor: grabbing; }
.timeline-figure svg { display: block; min-width: 40rem; }
.timeline-figure .live svg { min-width: 0; }
.timeline-figure figcaption { font-size: .78rem; color: var(--soft); }

/* Points. */
.plot .cloud { stroke: var(--train); stroke-width: 4; opacity: .38; }
.plot .cloud.over { stroke: var(--grey); opacity: .5; }
.plot .front { stroke: var(--bound); stroke-width: 1.6; }
.plot .limit { stroke: var(--eval); stroke-width: 1.5; stroke-dasharray: 5 4; stroke-linecap: butt; }
.plot .limit-label { top: .2rem; text-shadow: 0 0 2px var(--paper), 0 0 4px var(--paper), 0 0 6px var(--paper); color: var(--eval); font-weight: 600; transform: translateX(-100%); margin-left: -.4rem; }
.plot b.point { position: absolute; width: .62rem; height: .62rem; margin: -.31rem 0 0 -.31rem; border-radius: 50%; background: var(--bound);
  box-shadow: 0 0 0 1.5px var(--paper); }
.plot b.point.over { background: var(--grey); }
.plot b.point.chosen { width: .95rem; height: .95rem; margin: -.475rem 0 0 -.475rem; background: var(--eval); z-index: 1; }
.plot b.point em { position: absolute; display: none; bottom: calc(100% + .5rem); left: 50%; transform: translateX(-50%); z-index: 3; width: max-content; max-width: 17rem;
  padding: .45rem .65rem; border-radius: 5px; background: var(--ink); color: var(--paper); font: 400 .78rem/1.45 inherit; font-style: normal; font-size: .78rem; line-height: 1.45; pointer-events: none; }
.plot b.point.left em { left: auto; right: -.4rem; transform: none; }
.plot b.point.right em { left: -.4rem; transform: none; }
.plot b.point.low em { bottom: auto; top: calc(100% + .5rem); }
.plot b.point:hover { z-index: 4; }
.plot b.point:hover em { display: block; }
.legend i.point { width: .6rem; height: .6rem; border: 0; border-radius: 50%; background: var(--bound); vertical-align: 0; }
.legend i.point.chosen { background: var(--eval); width: .75rem; height: .75rem; vertical-align: -.06em; }
.legend i.point.cloud { background: var(--train); opacity: .4; width: .4rem; height: .4rem; vertical-align: .12em; }
.legend i.point.over { background: var(--grey); width: .4rem; height: .4rem; vertical-align: .12em; }

.scroll { overflow-x: auto; }
tr.chosen td { font-weight: 600; background: var(--card); }
tr.chosen td:first-child { box-shadow: inset 3px 0 var(--eval); }
td.n:first-child { padding-left: .6rem; padding-right: .9rem; }
td.n small { color: var(--soft); font-weight: 400; }
td.plan { min-width: 13rem; }
table.close { font-size: .86rem; }
table.close td.n, table.close th.n { padding-right: .8rem; }
.stacks + .scroll, .stacks + details { margin-top: 1.6rem; }
.note { margin: .7rem 0 0; font-size: .82rem; color: var(--soft); }
.advice { margin: .4rem 0 0; padding-left: 1.2rem; }
details { margin-top: 1rem; } summary { cursor: pointer; color: var(--soft); font-size: .88rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .42rem 1.2rem .42rem 0; border-bottom: 1px solid var(--hair); vertical-align: top; }
th { font-weight: 500; color: var(--soft); font-size: .82rem; white-space: nowrap; }
td.n, th.n { text-align: right; padding-right: 1.2rem; white-space: nowrap; }
td:last-child, th:last-child { padding-right: 0; }
td.same { color: var(--bound); }
td.differs { color: var(--eval); font-weight: 600; }
.settings { columns: 2; column-gap: 3rem; }
.settings div { break-inside: avoid; margin: 0 0 1.4rem; }
.settings td:first-child { color: var(--soft); white-space: nowrap; }
.settings td:last-child { text-align: right; overflow-wrap: anywhere; }
pre { margin: 0 0 1.4rem; padding: 1rem 1.15rem; background: var(--card); border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere;
  font: .86rem/1.6 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; max-height: 26rem; overflow-y: auto; }
pre mark { background: none; color: var(--train); font-weight: 600; }
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--hair); font-size: .82rem; color: var(--soft); }
@media (max-width: 40rem) {
  main { padding: 2rem 1.1rem 3rem; }
  section { margin-top: 2.6rem; }
  .figures { grid-template-columns: 1fr 1fr; }
  .pair { grid-template-columns: 1fr; }
  .settings { columns: 1; }
  .chart { padding-left: 2.6rem; }
  .plot .tx.odd, .plot .mark.faint { opacity: .25; }
.plot .mark-label { display: none; }
  .bars { grid-template-columns: 1fr auto auto; gap: .1rem 1rem; }
  .bars .track { grid-column: 1 / -1; grid-row: auto; margin-bottom: .8rem; order: 1; }
  .bars .row { display: grid; grid-template-columns: subgrid; grid-column: 1 / -1; align-items: end; }
}
@media (max-width: 40rem) {
  .stacks { grid-template-columns: 1fr auto; gap: .1rem 1rem; }
  .stacks .row { display: grid; grid-template-columns: subgrid; grid-column: 1 / -1; align-items: end; margin-bottom: .45rem; }
  .stacks .stack { grid-column: 1 / -1; order: 1; }
  .stacks .name { white-space: normal; }
}
@media print { .tip, .cursor { display: none !important; } section { break-inside: avoid; } pre { max-height: none; } }
)css";

const char* const kChartScript = R"js(
// The read-out under the pointer. The page is complete without it.
const curves = document.getElementById("curves");
const charts = curves ? JSON.parse(curves.textContent) : {};
const number = (v) => Math.abs(v) >= 1e4 ? Math.round(v).toLocaleString("en-US")
  : v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(2) : String(+v.toPrecision(4));
const nearest = (xs, x) => {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
};
for (const [id, chart] of Object.entries(charts)) {
  const plot = document.querySelector("#" + id + " .plot");
  if (!plot || !chart.series.length || !chart.series[0].x.length) continue;
  const cursor = plot.querySelector(".cursor"), tip = plot.querySelector(".tip");
  const [low, high] = chart.x;
  const marks = [...plot.querySelectorAll(".mark")].map((mark) => {
    const note = mark.title;
    mark.removeAttribute("title");  // the read-out says it
    return { place: parseFloat(mark.style.left) / 100, note };
  });
  const row = (name, value) => {
    const line = document.createElement("div"), b = document.createElement("b");
    line.append(name); b.textContent = value; line.append(b); tip.append(line);
  };
  const hide = () => { cursor.style.display = tip.style.display = "none"; };
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const wanted = low + (high - low) * (event.clientX - box.left) / box.width;
    const lead = chart.series[0], at = nearest(lead.x, wanted), step = lead.x[at];
    const place = (step - low) / (high - low);
    if (place < 0 || place > 1) return hide();
    tip.replaceChildren();
    row("step", step.toLocaleString("en-US"));
    if (lead.tokens[at]) row("tokens", lead.tokens[at].toLocaleString("en-US"));
    for (const series of chart.series) {
      if (!series.x.length) continue;
      const i = nearest(series.x, step);
      // Held-out points are few: shown only near one of them.
      if (series.style === "dots" && Math.abs(series.x[i] - step) > (high - low) / 60) continue;
      row(series.name, series.y[i] === null ? "not finite" : number(series.y[i]));
    }
    for (const mark of marks) if (Math.abs(mark.place - place) < .008) row(mark.note, "");
    cursor.style.display = tip.style.display = "block";
    cursor.style.left = 100 * place + "%";
    const left = place * box.width + 12;
    tip.style.left = (place > .5 ? Math.max(left - 24 - tip.offsetWidth, 0) : left) + "px";
  });
  plot.addEventListener("pointerleave", hide);
}
)js";

}  // namespace heddle::observe
