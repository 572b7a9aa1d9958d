"""Each image with its tools at work, on every backend."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable

import pytest
from image_files import CELL, GODOT_PROJECT, PDF_TEXT, SOLID, SOLID_VOLUME, pdf, spreadsheet
from sandbox_driver import Driver

from sandbox_runner import Outcome, PoolConfig, Request, Result
from sandbox_runner.images import describe
from sandbox_runner.images.store import BUILD, SYSTEM_CACHE
from sandbox_runner.images.to_docker import build_from_base
from sandbox_runner.posture import COMMON_VARIABLES

OpenImage = Callable[[str], Driver]


def run(driver: Driver, *argv: str, code: int = 0, **fields) -> Result:
  limits = driver.pool.config.limits
  result = driver.run(driver.pool.run(Request(argv, limits=limits, **fields)))
  assert (result.outcome, result.exit_code) == (Outcome.exit, code), result
  return result


def run_python(driver: Driver, code: str, **fields) -> dict:
  """What a program prints as JSON."""
  files = {"main.py": code.encode(), **fields.pop("files", {})}
  return json.loads(run(driver, "python", "main.py", files=files, **fields).stdout)


def test_code(open_image: OpenImage):
  driver = open_image("code")
  told = run_python(
    driver,
    "import sys\n"
    "held = {'numpy', 'sympy'} <= set(sys.modules)\n"
    "import json, os, numpy, sympy\n"
    "x = sympy.symbols('x')\n"
    "print(json.dumps({'held': held, 'determinant': float(numpy.linalg.det(numpy.eye(4) * 3)),\n"
    "  'integral': str(sympy.integrate(x * sympy.exp(x), x)), 'cores': os.environ['"
    "OPENBLAS_NUM_THREADS'], 'threads': len(os.listdir('/proc/self/task'))}))\n",
  )
  assert told["held"]  # by the warm interpreter, which is a fork away
  assert told["determinant"] == pytest.approx(81)
  assert told["integral"] == "(x - 1)*exp(x)"
  assert (told["cores"], told["threads"]) == ("1", 1)
  draws = [run(driver, "python3", "-c", "import numpy; print(numpy.random.random())") for _ in "ab"]
  assert draws[0].stdout != draws[1].stdout  # no state of a generator is shared
  tests = b"def test_a():\n  assert 1 + 1 == 2\n\ndef test_b():\n  assert 1 + 1 == 3\n"
  command = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_sum.py")
  result = run(driver, *command, code=1, files={"test_sum.py": tests})
  assert b"1 failed, 1 passed" in result.stdout


def test_terminal(open_image: OpenImage):
  driver = open_image("terminal")

  async def go() -> None:
    async with driver.pool.lease(limits=driver.pool.config.limits) as session:
      shell = session.shell()

      async def said(command: str) -> str:
        result = await shell.run(command)
        assert (result.outcome, result.exit_code) == (Outcome.exit, 0), result
        return result.stdout.decode().replace("\r\n", "\n")

      assert (await said("tty")).startswith("/dev/pts/")
      assert await said("stty size") == "24 80\n"
      assert await said("mkfifo pipe; (echo through >pipe &); cat pipe") == "through\n"
      await said("git init -q repo; cd repo; git config user.email a@b; git config user.name me")
      await said("echo one >file; git add file; git commit -q -m first")
      assert await said("git log --format=%s | cat; git status --short") == "first\n"
      await said("pip install flask")
      assert await said("flask --version | grep -c Flask") == "1\n"
      assert await said("python -c 'import flask; print(flask.__file__)'") == (
        "/tmp/.local/lib/python3.11/site-packages/flask/__init__.py\n"
      )
      await said("printf 'int main(){return 7;}' >seven.c; gcc -o seven seven.c")
      assert await said("./seven; echo $?") == "7\n"
      assert await said("echo '{\"a\": [1, 2]}' | jq -cM .a") == "[1,2]\n"

  driver.run(go())


def test_listing_in_a_terminal(open_image: OpenImage):
  driver = open_image("terminal")
  if driver.pool.backend.name == "docker+runsc":
    pytest.skip("gVisor's old release refuses AT_NO_AUTOMOUNT, which ls gives to look at a file")
  result = run(driver, "ls", "-l", "/usr/bin/git")
  assert result.stdout.endswith(b"/usr/bin/git\n")


def test_tmux(open_image: OpenImage):
  driver = open_image("terminal")
  script = (
    "tmux new-session -d -s one; tmux send-keys -t one 'echo typed >/work/seen' Enter\n"
    "while ! [ -s seen ]; do sleep 0.1; done; cat seen; tmux kill-server"
  )
  assert run(driver, "bash", "-c", script).stdout == b"typed\n"


def test_documents(open_image: OpenImage):
  driver = open_image("documents")
  told = run_python(
    driver,
    "import io, json, subprocess\n"
    "import docx, openpyxl, pdfplumber, pypdf\n"
    "letter = docx.Document(); letter.add_paragraph('a letter'); letter.save('letter.docx')\n"
    "with pdfplumber.open('bill.pdf') as bill: words = bill.pages[0].extract_words()\n"
    "print(json.dumps({\n"
    "  'pypdf': pypdf.PdfReader('bill.pdf').pages[0].extract_text(),\n"
    "  'words': [word['text'] for word in words],\n"
    "  'pdftotext': subprocess.check_output(['pdftotext', 'bill.pdf', '-'], text=True).strip(),\n"
    "  'cell': openpyxl.load_workbook('bill.xlsx')['Bill']['B2'].value,\n"
    "  'letter': docx.Document('letter.docx').paragraphs[0].text}))\n",
    files={"bill.pdf": pdf(), "bill.xlsx": spreadsheet()},
  )
  assert told["pypdf"] == told["pdftotext"] == PDF_TEXT
  assert told["words"] == PDF_TEXT.split()
  assert told["cell"] == CELL
  assert told["letter"] == "a letter"


@pytest.mark.slow
@pytest.mark.docker
def test_dockerfile_makes_the_same_image():
  """On our own base, for here is no registry."""
  bases = list(SYSTEM_CACHE.glob("base-*"))
  if not bases and not os.environ.get("PTJAX_REQUIRE_DOCKER"):
    pytest.skip(f"no image is built; {BUILD} documents")
  base, docker = "sandbox_runner/test-base", shutil.which("docker")
  pack = f"tar -C {bases[0]} -c . | {docker} import - {base}"
  subprocess.run(["sh", "-c", pack], check=True, stdout=subprocess.DEVNULL)
  try:
    build_from_base(describe("documents"), base, docker)
    driver = Driver(PoolConfig("docker", 1, image="documents", runtime="runc"))
    code = "import pypdf; print(len(pypdf.PdfReader('bill.pdf').pages))"
    files = {"bill.pdf": pdf()}
    assert run(driver, "python3", "-c", code, files=files).stdout == b"1\n"
    driver.close()
  finally:
    subprocess.run([docker, "rmi", base], check=True, stdout=subprocess.DEVNULL)


def test_modeling3d(open_image: OpenImage):
  driver = open_image("modeling3d")
  made = run(
    driver,
    *("sh", "-c"),
    "openscad -o solid.stl solid.scad && "
    "xvfb-run -a openscad -o solid.png --imgsize=200,150 solid.scad",
    files={"solid.scad": SOLID.encode()},
    copy_out=("solid.stl", "solid.png"),
  )
  told = run_python(
    driver,
    "import json, manifold3d, trimesh\n"
    "from PIL import Image\n"
    "picture = Image.open('solid.png')\n"
    "solid = trimesh.load('solid.stl')\n"
    "outer = manifold3d.Manifold.cube((2, 2, 2), True)\n"
    "hole = manifold3d.Manifold.cube((1, 1, 4), True)\n"
    "print(json.dumps({'tight': solid.is_watertight, 'volume': solid.volume,\n"
    "  'difference': (outer - hole).volume(),\n"
    "  'size': picture.size, 'colours': len(picture.getcolors(30000))}))\n",
    files=made.files,
  )
  assert told["tight"]
  assert told["volume"] == pytest.approx(SOLID_VOLUME)
  assert told["size"] == [200, 150]
  assert told["colours"] >= 4  # the ground, and faces in more than two lights
  assert told["difference"] == pytest.approx(2**3 - 1 * 1 * 2)
  command = "godot3-server --path game | tee out; cat $(tail -1 out)"
  scene = run(driver, "sh", "-c", command, files=GODOT_PROJECT).stdout.splitlines()
  assert b"distance 21" in scene
  assert scene[-1] == b"kept"


@pytest.mark.parametrize("name", ["code", "terminal", "documents", "modeling3d"])
def test_variables_of_images_are_not_taken_for_the_hosts(name: str):
  assert set(describe(name).env) <= COMMON_VARIABLES
