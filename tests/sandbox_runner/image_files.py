"""Documents and scenes for the tests of images, written byte by byte and not by what reads them."""

import io
import zipfile

PDF_TEXT = "Total due 1234.50"
CELL = 1234.5

SOLID = "difference() { cube(20, center=true); cube([10, 10, 30], center=true); }\n"
SOLID_VOLUME = 20**3 - 10 * 10 * 20

GODOT_PROJECT = {
  "game/project.godot": (
    b'config_version=4\n[application]\nconfig/name="sum"\nrun/main_scene="res://main.tscn"\n'
  ),
  "game/main.tscn": (
    b"[gd_scene load_steps=2 format=2]\n"
    b'[ext_resource path="res://main.gd" type="Script" id=1]\n'
    b'[node name="Main" type="Node"]\nscript = ExtResource( 1 )\n'
    b'[node name="Child" type="Spatial" parent="."]\n'
    b"transform = Transform( 1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 2, 2 )\n"
  ),
  "game/main.gd": (
    b"extends Node\n"
    b"func _ready():\n"
    b'\tprint("distance ", $Child.translation.length() * 7)\n'
    b"\tvar f = File.new()\n"
    b'\tf.open("user://saved.txt", File.WRITE)\n'
    b'\tf.store_string("kept")\n'
    b"\tf.close()\n"
    b'\tprint(OS.get_user_data_dir() + "/saved.txt")\n'
    b"\tget_tree().quit()\n"
  ),
}


def pdf() -> bytes:
  """One page with PDF_TEXT on it."""
  content = f"BT /F1 18 Tf 72 700 Td ({PDF_TEXT}) Tj ET".encode()
  objects = (
    b"<</Type/Catalog/Pages 2 0 R>>",
    b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
    b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R"
    b"/Resources<</Font<</F1 5 0 R>>>>>>",
    b"<</Length %d>>stream\n%s\nendstream" % (len(content), content),
    b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
  )
  out, offsets = b"%PDF-1.4\n", []
  for number, text in enumerate(objects, 1):
    offsets.append(len(out))
    out += b"%d 0 obj\n%s\nendobj\n" % (number, text)
  table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
  count = len(objects) + 1
  return out + (
    b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n"
    % (count, table, count, len(out))
  )


def spreadsheet() -> bytes:
  """One sheet, "Bill", with CELL in B2."""
  main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
  kinds = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
  package = "http://schemas.openxmlformats.org/package/2006"
  types = "application/vnd.openxmlformats-officedocument.spreadsheetml"
  link = (
    '<Relationships xmlns="{0}/relationships"><Relationship Id="r1" Type="{1}/{2}" Target="{3}"/>'
  )
  parts = {
    "[Content_Types].xml": (
      f'<Types xmlns="{package}/content-types">'
      '<Default Extension="rels" '
      'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
      f'<Override PartName="/xl/workbook.xml" ContentType="{types}.sheet.main+xml"/>'
      f'<Override PartName="/xl/sheet.xml" ContentType="{types}.worksheet+xml"/></Types>'
    ),
    "_rels/.rels": link.format(package, kinds, "officeDocument", "xl/workbook.xml"),
    "xl/_rels/workbook.xml.rels": link.format(package, kinds, "worksheet", "sheet.xml"),
    "xl/workbook.xml": (
      f'<workbook xmlns="{main}" xmlns:r="{kinds}"><sheets>'
      '<sheet name="Bill" sheetId="1" r:id="r1"/></sheets></workbook>'
    ),
    "xl/sheet.xml": (
      f'<worksheet xmlns="{main}"><sheetData><row r="2"><c r="B2"><v>{CELL}</v></c></row>'
      "</sheetData></worksheet>"
    ),
  }
  out = io.BytesIO()
  with zipfile.ZipFile(out, "w") as archive:
    for name, text in parts.items():
      closing = "</Relationships>" if name.endswith(".rels") else ""
      archive.writestr(name, text + closing)
  return out.getvalue()
