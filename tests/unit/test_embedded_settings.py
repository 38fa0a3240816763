"""The single process: a variable that means the API's means no other part's."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedmate.embedded import UpSettings, dispatcher_settings


def test_the_api_s_host_and_port_are_not_the_dispatcher_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCHEDMATE_API_PORT", "9999")
    monkeypatch.setenv("SCHEDMATE_API_HOST", "0.0.0.0")
    told = dispatcher_settings(UpSettings(state_dir=tmp_path), {"state_dir": tmp_path})
    assert (told.api_host, told.api_port) == ("127.0.0.1", 0)
    assert UpSettings(state_dir=tmp_path).api_port == 9999
