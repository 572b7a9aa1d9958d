"""Writes report.md from stations.yaml."""

from pathlib import Path

import jinja2
import yaml

HERE = Path(__file__).parent

data = yaml.load((HERE / "stations.yaml").read_text())
template = jinja2.Template((HERE / "report.j2").read_text(), trim_blocks=True)
(HERE / "report.md").write_text(template.render(stations=data["stations"]) + "\n")
