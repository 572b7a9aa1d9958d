#!/bin/bash
set -e
cd /app
chmod 600 data/token
sed -i -e 's#^socket = .*#socket = /app/run/service.sock#' -e 's/^backlog = .*/backlog = 8/' \
  -e 's#^file = .*#file = data/items.txt#' -e 's/^limit = .*/limit = 3/' -e 's/^order = .*/order = alphabetical/' \
  -e 's/^mode = .*/mode = 600/' service.ini
