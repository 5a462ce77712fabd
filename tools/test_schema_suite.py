"""The table of the JSON Schema Test Suite counts what is accepted, refused and possible."""

import json

import schema_suite


def test_the_table_counts_schemas_and_texts(tmp_path, capsys, monkeypatch):
    groups = [{"description": "ages", "schema": {"type": "integer", "minimum": 3}, "tests": [
                  {"data": 5, "valid": True}, {"data": 2, "valid": False}, {"data": "x", "valid": False}]},
              {"description": "not supported", "schema": {"not": {"type": "string"}}, "tests": []}]
    (tmp_path / "minimum.json").write_text(json.dumps(groups))
    monkeypatch.setattr("sys.argv", ["schema_suite", str(tmp_path)])
    assert schema_suite.main() == 0
    printed = capsys.readouterr().out
    assert "| minimum | 2 | 1 | 1 | 1 of 1 | 0 of 2 |" in printed and 'Unimplemented keys: ["not"]' in printed


def test_a_text_that_should_not_be_possible_is_told(tmp_path, capsys, monkeypatch):
    groups = [{"description": "all", "schema": True, "tests": [{"data": 5, "valid": False}]}]
    (tmp_path / "any.json").write_text(json.dumps(groups))
    monkeypatch.setattr("sys.argv", ["schema_suite", str(tmp_path)])
    assert schema_suite.main() == 1
    assert "possible, but not valid: any, all: 5" in capsys.readouterr().out
