#!/bin/bash
set -e
cd /app
pip install -q --user jinja2 pyyaml
pip freeze --user | grep -iE '^(jinja2|pyyaml)==' | tr 'A-Z' 'a-z' | sort > requirements.txt
sed -i 's/yaml\.load(/yaml.safe_load(/' render.py
python3 render.py
