"""Apps with the patterns of real Flower apps end near their plain versions, for fewer bytes."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED HERE: install the extra flower")
pytest.importorskip("torch", reason="APPS ARE NOT TESTED HERE: install the extra flower")

from patterns import PATTERNS, run

RAW = {"further arrays in requests and replies"}  # the further arrays travel as they are


@pytest.mark.parametrize("name", PATTERNS)
def test_compressed_app_ends_near_the_plain_app(tmp_path, name):
    pattern = PATTERNS[name]
    plain = run(pattern, tmp_path / "plain", compressed=False)
    compressed = run(pattern, tmp_path / "compressed", compressed=True)
    assert compressed.metric == pytest.approx(plain.metric, abs=pattern.tolerance)
    if name not in RAW:
        assert compressed.up < plain.up / 5
        assert compressed.down < plain.down / 2


def test_model_in_an_evaluation_reply_stays_on_the_node(tmp_path):
    quiet = run(PATTERNS["central evaluation"], tmp_path / "quiet", compressed=True)
    returning = run(PATTERNS["evaluate returns the model"], tmp_path / "returning", compressed=True)
    assert returning.up < quiet.up * 1.1


def test_further_arrays_cost_what_they_cost_without_compression(tmp_path):
    pattern = PATTERNS["further arrays in requests and replies"]
    plain = run(pattern, tmp_path / "plain", compressed=False)
    compressed = run(pattern, tmp_path / "compressed", compressed=True)
    further = plain.up / 2  # in each upload, as many arrays as the model has
    assert further < compressed.up < further * 1.2


@pytest.mark.parametrize("place", ["outer", "inner"])
def test_logging_mod_works_on_either_side_of_the_compression(tmp_path, place):
    logged = []

    def log_metrics(message, context, app):
        server_round = message.content["config"]["server-round"]
        reply = app(message, context)
        if metrics := reply.content.metric_records.get("metrics"):  # the handshake has none
            logged.append((server_round, sorted(metrics)))
        return reply

    pattern = PATTERNS["central evaluation"]
    plain = run(pattern, tmp_path / "plain", compressed=False, outer=[log_metrics])
    expected = logged.copy()
    logged.clear()
    compressed = run(pattern, tmp_path / "a", compressed=True, **{place: [log_metrics]})
    assert compressed.metric == pytest.approx(plain.metric, abs=pattern.tolerance)
    assert logged == expected
