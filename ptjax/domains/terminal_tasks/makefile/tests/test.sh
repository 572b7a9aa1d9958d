#!/bin/bash
mkdir -p /logs/verifier
[ -d /logs/run ] || { mkdir -p /logs/run; bash /tests/run.sh; }
same() { [ "$(cat "/logs/run/$1")" = "$2" ]; }
if same first_status 0 && grep -q -- '-O1 -Wall -Werror' /logs/run/first && ! grep -qi warning /logs/run/first \
  && same area 12.566 && same second_status 0 \
  && same main $'0\nmain.o\narea' && same shapes $'0\nshapes.o\narea' \
  && same header $'0\nmain.o\nshapes.o\narea' \
  && same clean_status 0 && same left $'Makefile\nmain.c\nshapes.c\nshapes.h' \
  && cmp -s /logs/run/sources /tests/sources
then echo 1; else echo 0; fi > /logs/verifier/reward.txt
