"""A bound for all tenants that one of them does not use up for the others."""

from __future__ import annotations

import numpy as np
import pytest

from schedmate.services.history_estimator import features
from schedmate.services.history_estimator.features import Past
from schedmate.services.history_estimator.jobs import Ended, Job
from schedmate.services.history_estimator.kept import Kept


def test_a_key_is_kept_as_it_was_made_and_another_tenant_has_its_own() -> None:
    kept: Kept[list[int]] = Kept(list, 10)
    kept.at("a", ("x",)).append(1)
    assert (kept.at("a", ("x",)), kept.get("b", ("x",)), kept.get("a", ("y",))) == ([1], None, None)


def test_beyond_the_bound_the_tenant_with_the_most_keys_loses_its_oldest() -> None:
    kept: Kept[list[int]] = Kept(list, 4)
    kept.at("small", ("s",)).append(7)
    for n in range(20):
        kept.at("large", (str(n),))
    assert kept.get("small", ("s",)) == [7]
    assert [n for n in range(20) if kept.get("large", (str(n),)) is not None] == [17, 18, 19]
    kept.at("new", ("n",))
    assert (kept.get("large", ("17",)), kept.get("small", ("s",)), kept.get("new", ("n",))) == (None, [7], [])


def test_a_flood_of_names_pushes_out_nothing_of_another_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "GROUPS_MAX", 100)
    past = Past()
    for n in range(30):
        job = Job(f"v{n}", float(n), tenant="v", user="ann", name="train")
        past.submit(job)
        past.end(Ended(job, 1000.0, n + 1.0))
    before = past.row(job, 50.0).values
    for n in range(1000):
        past.submit(Job(f"f{n}", 40.0, tenant="f", user="u", name=f"{'x' * (n % 500 + 1)}y"))
    assert np.array_equal(past.row(job, 50.0).values, before, equal_nan=True)
