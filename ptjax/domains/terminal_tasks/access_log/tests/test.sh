#!/bin/bash
mkdir -p /logs/verifier
if cmp -s /app/report.csv /tests/expected.csv; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
