#!/bin/bash
set -e
awk 'NF == 6 && $5 ~ /^[0-9]+$/ && $6 ~ /^[0-9]+$/ && $5 >= 500 { n[$1]++; b[$1] += $6 }
     END { for (c in n) print c "," n[c] "," b[c] }' /app/access.log |
  sort -t, -k2,2nr -k1,1 | head -3 > /app/report.csv
