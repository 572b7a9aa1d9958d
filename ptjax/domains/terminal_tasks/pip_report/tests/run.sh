# What the policy installed is in its own home, which the tests do not look into.
cd /app
rm -f report.md.again
python3 -c '
import importlib.metadata
for name in ("jinja2", "pyyaml"):
  print(f"{name}=={importlib.metadata.version(name)}")
' > /logs/run/installed
cp report.md report.md.again && rm report.md
python3 render.py && cmp report.md report.md.again && echo same > /logs/run/again
cp report.md.again /logs/run/report.md
