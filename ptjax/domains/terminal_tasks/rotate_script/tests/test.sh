#!/bin/bash
mkdir -p /logs/verifier
[ -d /logs/run ] || { mkdir -p /logs/run; bash /tests/run.sh; }
if python3 /tests/check.py; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
