#!/bin/bash
set -e
cd /app
python3 - <<'PY'
import re

names, phones, mails = {}, {}, set()
for line in open("contacts.txt", encoding="utf-8"):
  if not line.strip() or line.lstrip().startswith("#"):
    continue
  fields = [" ".join(f.split()) for f in re.split(r"[;\t]", line)]
  mail = next(f.lower() for f in fields if "@" in f)
  mails.add(mail)
  for field in fields:
    if "@" in field or not field:
      continue
    if re.match(r"[+0-9]", field):
      digits = re.sub(r"[^0-9]", "", field)
      phones[mail] = "+" + (digits if field[0] == "+" else re.sub("^0", "44", digits))
    else:
      names[mail] = field
with open("contacts.tsv", "w", encoding="utf-8") as file:
  for mail in sorted(mails):
    file.write(f"{names[mail]}\t{mail}\t{phones.get(mail, '')}\n")
PY
