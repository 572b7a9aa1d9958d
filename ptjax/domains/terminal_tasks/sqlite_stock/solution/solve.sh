#!/bin/bash
set -e
cd /app
sqlite3 stock.db <<'SQL'
DELETE FROM moves WHERE id NOT IN (SELECT min(id) FROM moves GROUP BY part, day, amount);
DELETE FROM moves WHERE part NOT IN (SELECT id FROM parts);
CREATE INDEX moves_by_part ON moves(part, day);
CREATE VIEW stock(name, amount) AS
  SELECT name, coalesce(sum(amount), 0) FROM parts LEFT JOIN moves ON part = parts.id GROUP BY parts.id;
SQL
sqlite3 stock.db > short.txt <<'SQL'
WITH days AS (SELECT part, day, sum(amount) AS change FROM moves GROUP BY part, day),
  levels AS (SELECT part, sum(change) OVER (PARTITION BY part ORDER BY day) AS level FROM days)
SELECT DISTINCT name FROM levels JOIN parts ON part = parts.id WHERE level < 0 ORDER BY name;
SQL
