#!/bin/bash
mkdir -p /logs/verifier
if cmp -s /app/contacts.tsv /tests/contacts.tsv; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
