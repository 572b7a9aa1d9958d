# 600 requests of 9 clients from a small generator of numbers of our own, some lines damaged.
function draw(n) {
  state = (state * 1103 + 12345) % 65536
  return int(state / 7) % n
}
BEGIN {
  state = 4713
  split("200 200 200 301 404 500 502 503 499", statuses, " ")
  split("GET POST PUT", methods, " ")
  for (i = 0; i < 600; i++) {
    client = "10.0.0." (1 + int((draw(9) * draw(9)) / 8))
    status = statuses[1 + draw(9)]
    time = sprintf("2026-03-01T%02d:%02d:%02d", int(i / 60) % 24, i % 60, draw(60))
    method = methods[1 + draw(3)]
    path = "/item/" draw(50)
    bytes = 100 + draw(9000)
    if (i % 47 == 5) bytes = "-"
    if (i % 59 == 7) status = "50x"
    if (i % 61 == 9) { print client, time, method, path, status; continue }
    print client, time, method, path, status, bytes
  }
}
