#!/bin/bash
set -e
cd /app/tally
python3 - <<'PY'
import re

times = open("times.py").read()
times = times.replace(
  "if not rest.isdigit() or int(rest) > 60:",
  "if not hours.isdigit() or len(rest) != 2 or not rest.isdigit() or int(rest) > 59:",
)
times = times.replace(
  "    return int(hours)\n", '    if not hours.isdigit():\n      raise ValueError(f"no duration: {text!r}")\n    return int(hours)\n'
)
times = times.replace(
  '  return f"{count // 60}:{count % 60:02d}"\n',
  '  sign, count = "-" if count < 0 else "", abs(count)\n  return f"{sign}{count // 60}:{count % 60:02d}"\n',
)
open("times.py", "w").write(times)
report = open("report.py").read()
report = report.replace("(entries, totals={}):", "(entries):")
report = report.replace("  for person, text in entries:", "  totals = {}\n  for person, text in entries:")
report = report.replace("if n >= allowed", "if n > allowed")
open("report.py", "w").write(report)
PY
