#!/bin/bash
set -e
cd /app
python3 - <<'PY'
import csv, re


def key(text):
  return re.sub(r"^([A-Z])0*(?=.)", r"\1", text.strip().upper())


customers = {key(row["id"]): row for row in csv.DictReader(open("customers.csv"))}
rows, unknown = [], []
for row in csv.DictReader(open("orders.csv")):
  who = customers.get(key(row["customer"]))
  if who is None:
    unknown.append(row["order"])
  else:
    amount = float(row["amount"].replace(",", "."))
    rows.append([int(row["order"]), who["name"], who["city"], f"{amount:.2f}"])
with open("joined.csv", "w", newline="") as file:
  writer = csv.writer(file, lineterminator="\n")
  writer.writerow(["order", "name", "city", "amount"])
  writer.writerows(sorted(rows))
open("unknown.txt", "w").write("".join(f"{n}\n" for n in unknown))
PY
