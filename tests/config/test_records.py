"""What a run used, read back from its folder: the same rows with the same chains."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miles.config.records import RECORD_FILE, is_run_folder, read_record, record_text
from miles.config.resolution import Resolution
from miles.config.toml_out import config_toml
from miles.errors import ConfigError
from tests.config.support import VARIANTS

pytestmark = pytest.mark.unit
TEXTS = st.text(min_size=1, max_size=20).filter(lambda text: text.strip() and text.lower() != "none")


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "sft"])
def test_the_same_rows_come_back(bench, variant, tmp_path):
    command, selectors = VARIANTS[variant]

    @given(st.floats(1e-9, 1), st.integers(0, 9), TEXTS)
    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def law(lr, seed, key):
        resolution = bench.resolve(
            command, selectors | {"lr": str(lr), "metadata_key": key}, {"MILES_LR": "3"}, [f"seed = {seed}\n[{command}]\nlr = 2"]
        )
        (tmp_path / RECORD_FILE).write_text(record_text(resolution))
        record = read_record(tmp_path)
        assert record.rows == resolution.rows
        assert (record.command, record.schedule) == (command, resolution.derived.schedule)
        assert record.staleness_bound == resolution.derived.staleness_bound

    law()


def test_a_secret_is_in_no_form(bench):
    found = bench.examine("train", {"wandb_key": "s3cr3t"}, {"MILES_WANDB_KEY": "s3cr3t2"}, ['wandb_key = "s3cr3t3"'])
    assert "s3cr3t" not in repr(found.rows) + repr(found.problems)


@pytest.mark.parametrize(
    ("flags", "files"),
    [
        ({"wandb_kye": "s3cr3t"}, []),
        ({"wandb_api_password": "s3cr3t"}, []),
        ({}, ['wandb_kee = "s3cr3t"']),
        ({}, ['wandb_key = "s3cr3t']),
        ({}, ['wandb_key = { a = "s3cr3t" }']),
        ({}, ['wandb_key = ["s3cr3t"]']),
    ],
)
def test_a_mistake_with_a_secret_does_not_show_it(bench, flags, files):
    found = bench.examine("train", flags, files=files)
    assert found.problems
    assert "s3cr3t" not in repr(found.problems) + repr(found.rows)


@pytest.mark.parametrize(
    ("flags", "more"),
    [
        ({"sglang": (("api-key", "s3cr3t"), ("log-level", "info"))}, {}),
        ({}, {"env": {"MILES_SGLANG": "api-key=s3cr3t"}}),
        ({}, {"files": ['sglang = { api-key = "s3cr3t" }']}),
    ],
)
def test_the_keys_of_servers_are_secrets_too(bench, flags, more):
    found = bench.examine("train", {"engine": "sglang"} | flags, **more)
    assert not [problem for problem in found.problems if problem.option == "sglang"]
    assert "s3cr3t" not in repr(found.rows) + repr(found.problems)
    assert "api-key=…" in next(row.value for row in found.rows if row.option == "sglang")
    text = config_toml(Resolution("train", found.config, found.derived, found.rows, ()))
    assert "s3cr3t" not in text
    assert "api-key not written down" in text


def test_a_remedy_repeats_no_secret(bench):
    other = bench.examine("train", {"max_weight_staleness": "1", "sglang": (("api-key", "s3cr3t"),)})
    assert other.problems and "s3cr3t" not in repr(other.problems)


def test_a_folder_without_a_run_is_refused(tmp_path):
    assert not is_run_folder(tmp_path)
    with pytest.raises(ConfigError, match="is no run folder"):
        read_record(tmp_path)
    with pytest.raises(ConfigError, match="there is no such command or folder"):
        read_record(tmp_path / "gone")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"values": {"lr": 3}}', '{"values": {"lr": {"value": "1"}}}', "\x00"])
def test_a_damaged_record_is_told(tmp_path, text):
    (tmp_path / RECORD_FILE).write_text(text)
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        read_record(tmp_path)
    assert "miles config show train --config" in caught.value.problems[0].remedy


def test_what_programs_read_names_layer_table_and_value(bench):
    data = json.loads(record_text(bench.resolve("train", files=["[train]\nlr = 2"])))
    link = data["values"]["lr"]["chain"][0]
    assert (link["layer"], link["table"], link["value"]) == ("file", "train", "2")
    assert data["values"]["lr"]["origin"].startswith(link["origin"])
