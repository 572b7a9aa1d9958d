"""Random-access sources give every record, whatever the files look like."""

import concurrent.futures
import json
import pickle

import pyarrow
import pyarrow.parquet
import pytest
from array_record.python import array_record_module
from hypothesis import given, settings
from hypothesis import strategies as st

from ptjax.data.sources import ArrayRecord, JsonLines, Parquet, open_files

RECORDS = [{"id": i, "text": text} for i, text in enumerate(["a", "é\u2028\x85b", "", "x" * 3000])]


def write(path, records):
  if path.suffix == ".jsonl":
    lines = [json.dumps(r, ensure_ascii=False) for r in records]
    path.write_bytes("\n\n".join(lines).encode())  # an empty line between, none at the end
  elif path.suffix == ".parquet":
    table = pyarrow.Table.from_pylist(records)
    pyarrow.parquet.write_table(table, path, row_group_size=2)
  else:
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
      writer.write(json.dumps(record).encode())
    writer.close()
  return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".array_record"])
def test_every_record_by_number(tmp_path, suffix):
  paths = [
    write(tmp_path / f"a{suffix}", RECORDS[:3]),
    write(tmp_path / f"b{suffix}", RECORDS[3:]),
  ]
  source = open_files(paths)
  order = [3, 0, 2, 1, 3]
  assert [source[i] for i in order] == [RECORDS[i] for i in order]
  assert len(source) == len(RECORDS)
  copy = pickle.loads(pickle.dumps(source))
  assert [copy[i] for i in range(4)] == RECORDS
  for wrong in (4, -1):
    with pytest.raises(IndexError, match=f"record {wrong} of 4"):
      source[wrong]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=8), max_size=2), max_size=6))
def test_any_text_in_lines(tmp_path_factory, records):
  path = tmp_path_factory.mktemp("lines") / "x.jsonl"
  path.write_bytes(b"".join(json.dumps(r, ensure_ascii=False).encode() + b"\n" for r in records))
  source = JsonLines([str(path)])
  assert [source[i] for i in range(len(source))] == records


def test_bad_files_and_lines(tmp_path):
  path = tmp_path / "x.jsonl"
  path.write_text('{"a": 1}\n\n{"a": \n[1]\n')
  source = JsonLines([str(path)])
  with pytest.raises(ValueError, match=r"x\.jsonl, line 3 is not JSON"):
    source[1]
  with pytest.raises(ValueError, match=r"x\.jsonl, line 4 is no JSON object"):
    source[2]
  with pytest.raises(ValueError, match=r"y\.jsonl is no file"):
    open_files([str(tmp_path / "y.jsonl")])
  for paths in ([], ["a.csv"], ["a.jsonl", "b.parquet"]):
    with pytest.raises(ValueError, match=r"give one of \.jsonl, \.parquet"):
      open_files(paths)
  with pytest.raises(ValueError, match="JsonLines needs at least one file"):
    JsonLines([])
  bad = tmp_path / "x.array_record"
  writer = array_record_module.ArrayRecordWriter(str(bad), "group_size:1")
  writer.write(b"not json")
  writer.close()
  with pytest.raises(ValueError, match="record 0: Expecting value"):
    ArrayRecord([str(bad)])[0]


def test_parquet_reads_no_more_than_a_row_group(tmp_path):
  path = write(tmp_path / "x.parquet", [{"id": i} for i in range(10)])
  source = Parquet([path])
  assert source[7] == {"id": 7}
  assert source._group(0, 3).num_rows == 2


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".array_record"])
def test_threads_share_a_source(tmp_path, suffix):
  records = [{"id": i, "text": str(i) * 50} for i in range(60)]
  source = open_files([write(tmp_path / f"x{suffix}", records)])
  order = [i * 7 % 60 for i in range(240)]
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert list(pool.map(source.__getitem__, order)) == [records[i] for i in order]
