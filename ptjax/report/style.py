"""The stylesheet of the report: one measure, one accent, system type, light and dark."""

from ptjax.report.figures import PALETTE


def _variables(theme: int) -> str:
  return "".join(f"--{name}:{colors[theme]};" for name, colors in PALETTE.items())


CSS = (
  f":root{{color-scheme:light dark;{_variables(0)}}}"
  f"@media (prefers-color-scheme:dark){{:root{{{_variables(1)}}}}}"
  """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
  font:15px/1.55 "Inter","Segoe UI","Helvetica Neue",Helvetica,Arial,"Liberation Sans",sans-serif;
  font-variant-numeric:tabular-nums}
main{max-width:1080px;margin:0 auto;padding:44px 32px 72px}
h1{font-size:15px;font-weight:600;margin:0;letter-spacing:.01em}
h2{font-size:19px;font-weight:600;margin:52px 0 4px;letter-spacing:-.005em}
h3{font-size:14px;font-weight:600;margin:0 0 6px}
p{margin:6px 0 14px;max-width:74ch}
.muted,figcaption,.note{color:var(--muted);font-size:13px}
.headline{font-size:54px;line-height:1.1;font-weight:600;letter-spacing:-.025em;margin:22px 0 6px}
.headline .from{color:var(--muted);font-weight:400}
.headline .arrow{color:var(--muted);font-weight:300;padding:0 .16em}
.headline .to{color:var(--s0)}
.facts{display:flex;flex-wrap:wrap;gap:10px 34px;margin:26px 0 0;padding:16px 0;
  border-top:1px solid var(--rule);border-bottom:1px solid var(--rule)}
.facts div{min-width:84px}
.facts b{display:block;font-size:19px;font-weight:600;letter-spacing:-.01em}
.facts span{color:var(--muted);font-size:12.5px}
.notice{border-left:3px solid var(--s1);padding:4px 14px;margin:18px 0}
.notice p{margin:4px 0}
figure{margin:0;min-width:0}
figure svg{display:block;width:100%;height:auto}
figure svg text{font-family:inherit!important}
figcaption{margin-top:2px}
.wide{margin-top:16px}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));
  gap:34px 40px;margin-top:20px}
table{border-collapse:collapse;width:100%;font-size:14px;margin-top:14px}
th{font-weight:500;color:var(--muted);font-size:12.5px;text-align:right}
td{text-align:right}
th,td{padding:6px 0 6px 18px;border-bottom:1px solid var(--rule)}
th:first-child,td:first-child{text-align:left;padding-left:0}
tr.total td{font-weight:600}
.task{margin-top:26px;border-top:1px solid var(--rule);padding-top:14px}
.sides{display:grid;gap:16px 24px;
  grid-template-columns:repeat(auto-fit,minmax(min(100%,380px),1fr))}
.side{min-width:0}
.side h3{display:flex;flex-wrap:wrap;gap:4px 12px;margin-top:8px;
  font-weight:500;color:var(--muted)}
.side h3 b{font-weight:600;color:var(--ink)}
.pass{color:var(--s2)}
.fail{color:var(--s3)}
pre{margin:0;padding:12px 14px;border:1px solid var(--rule);border-radius:6px;
  font:12.5px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
  white-space:pre-wrap;overflow-wrap:anywhere;max-height:340px;overflow:auto;unicode-bidi:isolate}
.prompt{border:0;padding:0;font-family:inherit;font-size:14px;margin-bottom:8px;max-width:82ch}
details{margin-top:14px}
summary{cursor:pointer;color:var(--muted)}
code{font:12.5px ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
.config td{text-align:left;vertical-align:top;overflow-wrap:anywhere}
.config td:first-child{width:44%}
.sortable{overflow-x:auto;margin-top:14px}
.sortable>input{position:absolute;opacity:0}
.rows{display:flex;flex-direction:column;font-size:13px;min-width:1000px}
.row{display:grid;grid-template-columns:var(--columns);padding:5px 0;
  border-bottom:1px solid var(--rule)}
.row>*{text-align:right}
.row>:first-child{text-align:left;overflow-wrap:anywhere}
.row.head{order:-2;color:var(--muted);font-size:12.5px}
.row.head label{cursor:pointer}
.row.total{font-weight:600}
.row small{display:block;color:var(--muted);font-size:11px;font-weight:400}
@media print{pre{max-height:none}details{display:none}}
"""
)
