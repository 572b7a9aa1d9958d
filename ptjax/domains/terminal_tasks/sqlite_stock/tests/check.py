"""Reads the database, which is data; exits with 0 where all is as asked."""

import sqlite3

MOVES = [1, 2, 4, 5, 6, 7, 8, 9, 11, 14, 15, 16, 18, 19]
STOCK = {"bolt": 10, "nut": 0, "washer": 6, "spring": -1, "cap": -1, "rivet": 0}

db = sqlite3.connect("file:/app/stock.db?mode=ro", uri=True)
assert [i for (i,) in db.execute("SELECT id FROM moves ORDER BY id")] == MOVES
rows = list(db.execute("SELECT name, amount FROM stock"))
assert len(rows) == len(STOCK)
assert dict(rows) == STOCK
kinds = dict(db.execute("SELECT name, type FROM sqlite_master"))
assert (kinds.get("stock"), kinds.get("moves_by_part")) == ("view", "index")
columns = [row[2] for row in db.execute("PRAGMA index_info(moves_by_part)")]
assert columns == ["part", "day"]
assert open("/app/short.txt").read().split("\n") == ["cap", "spring", "washer", ""]
