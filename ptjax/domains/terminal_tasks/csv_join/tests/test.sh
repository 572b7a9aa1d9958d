#!/bin/bash
mkdir -p /logs/verifier
if diff -q --strip-trailing-cr /app/joined.csv /tests/joined.csv >/dev/null \
  && diff -q --strip-trailing-cr /app/unknown.txt /tests/unknown.txt >/dev/null
then echo 1; else echo 0; fi > /logs/verifier/reward.txt
