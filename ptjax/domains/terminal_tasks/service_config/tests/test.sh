#!/bin/bash
mkdir -p /logs/verifier
[ -d /logs/run ] || { mkdir -p /logs/run; bash /tests/run.sh; }
if cmp -s /logs/run/answers /tests/answers && [ "$(cat /logs/run/mode)" = 0o0 ] \
  && cmp -s /app/service.py /tests/service.py && [ "$(cat /app/data/token)" = willow-417 ] \
  && cmp -s /app/data/items.txt /tests/items.txt
then echo 1; else echo 0; fi > /logs/verifier/reward.txt
