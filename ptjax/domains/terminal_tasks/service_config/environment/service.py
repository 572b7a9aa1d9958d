"""A small service. Settings:

[server] socket: where it listens; its directory is made. backlog: a whole number of 1 or more.
[items]  file: one item a line; a relative path is from the directory of this program.
         limit: how many are shown at most; 0 for all. order: none or alphabetical.
[admin]  token: the file with the token. mode: the mode that this file must have, in octal; the
         service does not start where it has another, or one that others may read.
"""

import configparser
import http.server
import os
import socketserver
import sys

config = configparser.ConfigParser()
config.read(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))


def items():
  with open(os.path.join(HERE, config["items"]["file"])) as file:
    names = file.read().split()
  if config["items"]["order"] == "alphabetical":
    names.sort()
  limit = config.getint("items", "limit")
  return "\n".join(names[:limit] if limit else names)


def token():
  path = config["admin"]["token"]
  mode = os.stat(path).st_mode & 0o777
  if mode != int(config["admin"]["mode"], 8) or mode & 0o077:
    sys.exit(f"{path} has mode {mode:o}")
  with open(path) as file:
    return file.read().strip()


TOKEN = token()


class Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    if self.path == "/admin" and self.headers.get("X-Token") != TOKEN:
      self.send_error(403)
      return
    pages = {"/health": lambda: "ok", "/items": items, "/admin": lambda: "welcome"}
    if self.path not in pages:
      self.send_error(404)
      return
    body = (pages[self.path]() + "\n").encode()
    self.send_response(200)
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, *_):
    pass

  def address_string(self):
    return "local"


class Server(socketserver.UnixStreamServer):
  request_queue_size = config.getint("server", "backlog")


path = config["server"]["socket"]
os.makedirs(os.path.dirname(path), exist_ok=True)
if os.path.exists(path):
  os.unlink(path)
items()  # a service that cannot answer does not start
Server(path, Handler).serve_forever()
