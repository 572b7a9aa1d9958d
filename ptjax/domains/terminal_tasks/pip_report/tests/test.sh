#!/bin/bash
mkdir -p /logs/verifier
[ -d /logs/run ] || { mkdir -p /logs/run; bash /tests/run.sh; }
wheels=$(printf '%s\n' /opt/wheels/*.whl | sed -nE 's#.*/(jinja2|pyyaml)-([0-9.]+)-.*#\1==\2#p' | sort)
lower() { tr 'A-Z' 'a-z' < "$1" | tr -d ' \r'; }
if cmp -s /logs/run/report.md /tests/report.md && [ "$(cat /logs/run/again)" = same ] \
  && [ "$(cat /logs/run/installed)" = "$wheels" ] && [ "$(lower /app/requirements.txt)" = "$wheels" ] \
  && cmp -s /app/stations.yaml /tests/stations.yaml && cmp -s /app/report.j2 /tests/report.j2
then echo 1; else echo 0; fi > /logs/verifier/reward.txt
