#!/usr/bin/env python3
"""Makes tests/reference/data: one table of texts in the formats that people keep data in, written by pyarrow.

    python3 -m venv .venv-data
    .venv-data/bin/pip install pyarrow==26.0.1
    .venv-data/bin/python tests/reference/make_data_files.py

rows.json is what every file holds, nested.json what those named nested-* do; a file's name says how it was written.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather
import pyarrow.parquet as pq

FOLDER = Path(__file__).parent / "data"
WORDS = "the loom weaves a long thread under Größe 世界 🧵 and \"quotes\", commas\nand lines\ttabs".split(" ")


def rows():
    out = []
    for i in range(60):
        text = " ".join(WORDS[(i * 7 + k * k) % len(WORDS)] for k in range(i % 11 + 1))
        out.append(dict(id=i * i - 50, text=text if i % 13 else "", topic=["art", "code", "news"][i % 3],
                        score=i / 8, good=i % 3 == 0))
    return out


def nested_rows():
    out = []
    for i in range(20):
        turns = [dict(role="user" if k % 2 == 0 else "assistant", content=f"turn {k} of {i}: " + WORDS[(i + k) % len(WORDS)])
                 for k in range(i % 4)]
        out.append(dict(messages=None if i % 7 == 6 else turns, tags=[None, "a", "é"][: i % 4], n=None if i % 5 == 0 else i,
                        deep=[[k] * k for k in range(i % 3)], source=dict(name=None if i % 6 == 0 else f"s{i}", year=2000 + i),
                        text=None if i == 3 else f"row {i}"))
    return out


def write_parquet(table, nested):
    plain = dict(compression="none", use_dictionary=False, store_schema=False)
    for codec in ["none", "snappy", "gzip", "zstd", "lz4"]:
        pq.write_table(table, FOLDER / f"{codec}.parquet", compression=codec, store_schema=False)
    pq.write_table(table, FOLDER / "plain.parquet", **plain)
    pq.write_table(table, FOLDER / "groups.parquet", row_group_size=7, store_schema=False, compression="none", write_statistics=False)
    pq.write_table(table, FOLDER / "pages-2.parquet", data_page_version="2.0", data_page_size=64, compression="snappy",
                   store_schema=False, write_batch_size=5)
    pq.write_table(table, FOLDER / "pages-1.parquet", data_page_size=64, write_batch_size=5, **plain)
    for encoding in ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]:
        pq.write_table(table, FOLDER / f"{encoding.lower().replace('_', '-')}.parquet", data_page_version="2.0",
                       column_encoding=dict(text=encoding, topic=encoding, id="DELTA_BINARY_PACKED"), **plain)
    pq.write_table(nested, FOLDER / "nested-1.parquet", compression="snappy", store_schema=False)
    pq.write_table(nested, FOLDER / "nested-2.parquet", data_page_version="2.0", row_group_size=6, compression="zstd", store_schema=False)
    pq.write_table(table, FOLDER / "refused-brotli.parquet", compression="brotli", store_schema=False)


def write_stream(path, table, **options):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=17)


def write_arrow(table, nested):
    for codec in ["uncompressed", "lz4", "zstd"]:
        feather.write_feather(table, FOLDER / f"{codec}.feather", compression=codec, chunksize=25)
    write_stream(FOLDER / "stream.arrow", table)
    write_stream(FOLDER / "nested-stream.arrow", nested)
    write_stream(FOLDER / "nested-zstd.arrow", nested, compression="zstd")
    large = table.set_column(1, "text", table["text"].cast(pa.large_string()))
    write_stream(FOLDER / "large.arrow", large)
    views = table.set_column(1, "text", table["text"].combine_chunks().cast(pa.string_view()))
    write_stream(FOLDER / "views.arrow", views)
    coded = table.set_column(2, "topic", table["topic"].combine_chunks().dictionary_encode())
    write_stream(FOLDER / "dictionary.arrow", coded)
    topics = coded["topic"].combine_chunks()
    far = pa.DictionaryArray.from_arrays(pc.add(topics.indices, 150).cast(pa.uint8()),
                                         pa.concat_arrays([pa.array(["unused"] * 150), topics.dictionary]))
    write_stream(FOLDER / "dictionary-unsigned.arrow", table.set_column(2, "topic", far))
    texts = table.set_column(1, "text", table["text"].combine_chunks().dictionary_encode())
    write_stream(FOLDER / "dictionary-delta.arrow", pa.concat_tables([texts.slice(0, 30), texts.slice(30)]), emit_dictionary_deltas=True)


def main():
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    plain, deep = rows(), nested_rows()
    for name, content in [("rows", plain), ("nested", deep)]:
        text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in content) + "\n]\n"
        (FOLDER / f"{name}.json").write_text(text)
    table, nested = pa.Table.from_pylist(plain), pa.Table.from_pylist(deep)
    write_parquet(table, nested)
    write_arrow(table, nested)


if __name__ == "__main__":
    main()
