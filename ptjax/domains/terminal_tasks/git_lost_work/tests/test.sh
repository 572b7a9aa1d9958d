#!/bin/bash
mkdir -p /logs/verifier
[ -d /logs/run ] || { mkdir -p /logs/run; bash /tests/run.sh; }
same() { [ "$(cat "/logs/run/$1")" = "$2" ]; }
if same head main && same harvest $'Baskets\nPears are in\nList of the garden' && same merged yes \
  && same status "" && grep -qx Water /logs/run/main && grep -qx Baskets /logs/run/main \
  && same files $'apples 3\npears 40\nplums 5\nbasket A: pears\nwater on Mondays'
then echo 1; else echo 0; fi > /logs/verifier/reward.txt
